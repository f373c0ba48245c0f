"""The readiness check reports in a single line why a database cannot be used."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
import time

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db.maintenance import migrate, readiness
from nova.db.sql.engine import Database


def why(url: str) -> str:
    with pytest.raises(exception.DatabaseUnusable) as raised:
        readiness.check(url)
    said = str(raised.value)
    assert "\n" not in said
    return said


def at_revision(url: str, revision: str) -> None:
    database = Database(url)
    database.write(lambda connection: connection.execute(
        sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision}))
    database.close()


def test_readiness_check_accepts_the_newest_schema(database_url: str) -> None:
    migrate.sync(database_url)
    readiness.check(database_url)


def test_readiness_check_uses_the_newest_revision_of_alembic(database_url: str) -> None:
    migrate.sync(database_url)
    assert readiness.newest() == migrate.version(database_url)


def test_readiness_check_does_not_create_a_missing_sqlite_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "nova.sqlite"
    assert "the file does not exist: run nova-manage db sync" in why(f"sqlite:///{file}")
    assert migrate.version(f"sqlite:///{file}") is None
    assert not file.exists()


def test_db_sync_reports_a_missing_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(exception.DatabaseUnusable, match="unable to open database file"):
        migrate.sync(f"sqlite:///{tmp_path}/missing/nova.sqlite")


def test_readiness_check_reports_a_file_that_is_no_database(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_text("Not a database at all, but long enough to look at." * 100)
    assert "file is not a database" in why(f"sqlite:///{tmp_path}/text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_readiness_check_reports_a_read_only_sqlite_file(tmp_path: pathlib.Path, database_url: str) -> None:
    migrate.sync(database_url)
    for file in tmp_path.iterdir():
        file.chmod(0o400)
    tmp_path.chmod(0o500)
    assert why(database_url)


def test_readiness_check_reports_missing_tables(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").touch()
    assert "the database has no tables: run nova-manage db sync" in why(f"sqlite:///{tmp_path}/empty")


def test_readiness_check_reports_an_older_schema(database_url: str) -> None:
    migrate.sync(database_url)
    at_revision(database_url, "0001")
    said = why(database_url)
    assert f"the database is at revision 0001, this release needs {readiness.newest()}: run nova-manage db sync" in said


def test_readiness_check_accepts_a_newer_schema(database_url: str) -> None:
    migrate.sync(database_url)
    at_revision(database_url, "9999")
    readiness.check(database_url)


@pytest.mark.parametrize(("url", "says"), [
    ("nonsense", "Could not parse"),
    ("oracle+nothing://nova:secret@localhost/nova", "oracle.nothing"),
    ("sqlite://", "in-memory"),
    ("postgresql+psycopg2://nova:secret@127.0.0.1:1/nova", "refused"),
    ("mysql+pymysql://nova:secret@127.0.0.1:1/nova", "refused"),
])
def test_readiness_error_contains_the_reason_without_the_password(url: str, says: str) -> None:
    said = why(url)
    assert says in said
    assert "secret" not in said


def test_readiness_wait_retries_until_the_database_server_accepts() -> None:
    """The database server accepts connections after a while and closes every connection."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        url = f"mysql+pymysql://nova@127.0.0.1:{server.getsockname()[1]}/nova"
        with pytest.raises(readiness.Unreachable, match="refused"):
            readiness.wait(url, 0.1)

        def come_up() -> None:
            time.sleep(0.5)
            server.listen()
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        coming = threading.Thread(target=come_up)
        coming.start()
        with pytest.raises(readiness.Unreachable, match="Lost connection"):
            readiness.wait(url, 1.5)
        server.shutdown(socket.SHUT_RDWR)
        coming.join()
