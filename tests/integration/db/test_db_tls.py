"""Database connections over TLS, with the options of [database]connection in doc/security.md."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db.maintenance import migrate, readiness
from nova.db.sql.engine import Database
from tests.certificates import Authority, authority
from tests.integration.cluster import command_of, environment
from tests.integration.databases import Server, start_mariadb, start_postgresql

VERIFIED = {"postgresql": ["sslmode=verify-full&sslrootcert={ca}"],
            "mariadb": ["ssl_ca={ca}", "ssl_ca={ca}&ssl_verify_identity=true"]}
PLAIN = {"postgresql": "sslmode=disable", "mariadb": "ssl_disabled=true"}
ENCRYPTION = {"postgresql": "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl",
              "mariadb": "SELECT variable_value FROM information_schema.session_status "
                         "WHERE variable_name = 'Ssl_version'"}
WAYS = [(kind, query) for kind, queries in VERIFIED.items() for query in queries]


@dataclasses.dataclass
class Secured:
    """A server that requires TLS, the authority of its certificate, and another authority."""

    server: Server
    authority: Authority
    other: Authority

    def url(self, query: str, ca: str | None = None, host: str = "127.0.0.1") -> str:
        """Return the URL of a new database."""
        made = sa.make_url(self.server.new_database()).set(
            host=host, port=self.server.port, query={}, password=None if self.server.kind == "mariadb" else "secret")
        return f"{made.render_as_string(hide_password=False)}?{query.format(ca=ca or self.authority.file)}"


@pytest.fixture(scope="module")
def secured() -> Iterator[dict[str, Secured]]:
    with authority() as ours, authority() as other:
        files = {}
        for user in ("postgres", "mysql"):
            files[user] = ours.issue(user)
            shutil.chown(files[user].key, user)
            os.chmod(files[user].key, 0o600)
        hba = pathlib.Path(ours.file).with_name("pg_hba.conf")
        hba.write_text("hostssl all all 127.0.0.1/32 trust\n")
        with (start_postgresql("-c", "ssl=on", "-c", f"ssl_cert_file={files['postgres'].certificate}",
                               "-c", f"ssl_key_file={files['postgres'].key}", "-c", f"hba_file={hba}") as first,
              start_mariadb(f"--ssl-cert={files['mysql'].certificate}", f"--ssl-key={files['mysql'].key}",
                            "--require-secure-transport=ON") as second):
            yield {"postgresql": Secured(first, ours, other), "mariadb": Secured(second, ours, other)}


@pytest.mark.parametrize(("kind", "query"), WAYS)
def test_tls_database_connections_are_encrypted_after_a_restart(secured: dict[str, Secured], kind: str,
                                                                query: str) -> None:
    it = secured[kind]
    url = it.url(query)
    migrate.sync(url)
    readiness.check(url)
    database = Database(url)
    for _again in range(2):
        said = database.read(lambda connection: connection.scalar(sa.text(ENCRYPTION[kind])))
        assert str(said).startswith("TLSv1.")
        it.server.kill()
        it.server.restart()
    database.close()


@pytest.mark.parametrize(("kind", "query"), WAYS)
def test_database_certificate_of_an_unknown_authority_is_refused(secured: dict[str, Secured], kind: str,
                                                                 query: str) -> None:
    it = secured[kind]
    with pytest.raises(exception.DatabaseUnusable, match=r"cannot be used: .*(?i:certificate verify failed)") as raised:
        readiness.check(it.url(query, it.other.file))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("kind", "query"), WAYS)
def test_database_certificate_for_another_host_name_is_refused(secured: dict[str, Secured], kind: str,
                                                               query: str) -> None:
    with pytest.raises(exception.DatabaseUnusable, match=r"(?i)(not match host name|name mismatch).*localhost"):
        readiness.check(secured[kind].url(query, host="localhost"))


@pytest.mark.parametrize(("kind", "query"), WAYS)
def test_missing_tls_file_of_the_database_is_named_in_the_error(secured: dict[str, Secured], kind: str,
                                                                query: str) -> None:
    with pytest.raises(exception.DatabaseUnusable, match="/no/such/file"):
        readiness.check(secured[kind].url(query, "/no/such/file"))


@pytest.mark.parametrize("kind", PLAIN)
def test_unencrypted_connection_to_a_tls_only_database_is_refused(secured: dict[str, Secured], kind: str) -> None:
    with pytest.raises(exception.DatabaseUnusable, match=r"no encryption|Access denied"):
        readiness.check(secured[kind].url(PLAIN[kind]))


@pytest.mark.parametrize(("kind", "query"), WAYS)
def test_database_server_without_tls_is_refused(secured: dict[str, Secured], request: pytest.FixtureRequest, kind: str,
                                                query: str) -> None:
    plain = dataclasses.replace(secured[kind], server=request.getfixturevalue(kind))
    with pytest.raises(exception.DatabaseUnusable, match=r"does not support SSL|doesn't support it"):
        readiness.check(plain.url(query))


@pytest.mark.parametrize(("kind", "query"), WAYS)
def test_db_sync_reports_tls_errors_in_one_line(secured: dict[str, Secured], tmp_path: pathlib.Path, kind: str,
                                                query: str) -> None:
    config = tmp_path / "nova.conf"
    for ca, reason in ((secured[kind].other.file, "certificate verify failed"), ("/no/such/file", "/no/such/file")):
        config.write_text(f"[database]\nconnection = {secured[kind].url(query, ca)}\n")
        done = subprocess.run([*command_of("manage"), "--config-file", str(config), "db", "sync"], capture_output=True,
                              text=True, timeout=120, check=False, cwd="/", env={**os.environ, **environment()})
        assert done.returncode != 0
        [line] = [each for each in done.stderr.splitlines() if reason in each.lower()]
        assert "cannot be used" in line
        assert "Traceback" not in done.stderr
        assert "secret" not in done.stderr


def contexts(database: Database, count: int) -> list[object]:
    """Return the TLS contexts of ``count`` MariaDB connections that are open at the same time."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(database.engine.connect()) for _ in range(count)]
        return [one.connection.dbapi_connection.ctx for one in opened]  # type: ignore[union-attr]


def test_mariadb_connections_without_tls_files_share_one_context(secured: dict[str, Secured],
                                                                 request: pytest.FixtureRequest) -> None:
    """A context holds all certificates of the machine: 0.9 MB for each connection of a conductor.

    Connections are encrypted if the server supports TLS.
    """
    made = []
    for server in (secured["mariadb"].server, request.getfixturevalue("mariadb")):
        url = dataclasses.replace(secured["mariadb"], server=server).url("")
        for database in (Database(url), Database(url)):
            with contextlib.closing(database):
                made += contexts(database, 3)
                encrypted = database.read(lambda conn: conn.execute(sa.text(ENCRYPTION["mariadb"])).scalar())
                assert bool(encrypted) == (server is secured["mariadb"].server)
    assert len({id(one) for one in made}) == 1


def test_new_mariadb_connections_read_tls_files_again(secured: dict[str, Secured]) -> None:
    """An operator may have replaced the files."""
    database = Database(secured["mariadb"].url("ssl_ca={ca}"))
    with contextlib.closing(database):
        first, second = contexts(database, 2)
        assert first is not second
