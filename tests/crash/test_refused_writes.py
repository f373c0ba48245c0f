"""A database that refuses writes is treated as an unavailable database: transactions are retried."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import requests
import sqlalchemy as sa

from nova import context, exception
from nova.db.sql import errors
from nova.db.sql.engine import Database
from tests.crash import invariants
from tests.crash.faults import refusals
from tests.crash.steps import Points
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

FULL = pytest.mark.full
# Seconds for which writes are refused, and seconds of a build and a delete on their host, which end meanwhile; and both
# with --quick.
_REFUSED, _WORK = 8.0, 6.0
_QUICK_REFUSED, _QUICK_WORK = 5.0, 3.0
Refuse = Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


# --- a single transaction -------------------------------------------------------------------------------
def make_table(database: Database) -> None:
    database.write(lambda connection: connection.execute(sa.text("CREATE TABLE t (n INTEGER, s VARCHAR(4000))")))


def waits(database: Database, refusal: AbstractContextManager[None], caplog: pytest.LogCaptureFixture,
          rows: int = 1) -> None:
    """Write while writes are refused for a second: the transaction is retried, and executed once."""
    def write(connection: sa.Connection) -> None:
        for _ in range(rows):
            connection.execute(sa.text("INSERT INTO t VALUES (1, :s)"), {"s": "x" * 4000})

    with contextlib.ExitStack() as stack, caplog.at_level("INFO"):
        stack.enter_context(refusal)
        end = threading.Timer(1.0, stack.close)
        end.start()
        database.write(write)
        end.join()
    assert database.read(lambda connection: connection.scalar(sa.text("SELECT COUNT(*) FROM t"))) == rows
    assert "Transaction failed, retrying" in caplog.text
    database.close()


@pytest.mark.parametrize("terminate", [False, True])
def test_transaction_waits_for_a_read_only_server(server: Server, terminate: bool,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    url = refusals.ordinary_account(server, server.new_database())
    database = Database(url)
    make_table(database)
    waits(database, refusals.read_only(server, url, terminate), caplog)


def test_transaction_waits_for_space_in_a_full_tablespace(postgresql: Server, caplog: pytest.LogCaptureFixture) -> None:
    with refusals.small_disk(32) as disk:
        place = disk / "space"
        place.mkdir(mode=0o777)
        place.chmod(0o777)
        shutil.chown(place, "postgres")
        url = postgresql.new_database()
        refusals.execute(postgresql.admin_url, f"CREATE TABLESPACE small LOCATION '{place}'",
                         f"ALTER DATABASE {sa.make_url(url).database} SET TABLESPACE small")
        database = Database(url)
        make_table(database)
        waits(database, refusals.full(disk), caplog, rows=50)
        refusals.execute(postgresql.admin_url, f"DROP DATABASE {sa.make_url(url).database}", "DROP TABLESPACE small")


@pytest.mark.parametrize("refusal", [refusals.full, refusals.mounted_read_only])
def test_transaction_waits_for_a_full_or_read_only_sqlite_disk(
        refusal: Callable[[pathlib.Path], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture) -> None:
    with refusals.small_disk(4) as disk:
        database = Database(f"sqlite:///{disk}/nova.sqlite")
        make_table(database)
        if refusal is refusals.mounted_read_only:  # a file that is open for writing prevents the remount
            database.close()
        waits(database, refusal(disk), caplog, rows=300)


def test_writers_to_a_read_only_server_do_not_queue(server: Server) -> None:
    """Write in parallel. Waiting calls would occupy the threads of readers, so later calls fail after one attempt."""
    url = refusals.ordinary_account(server, server.new_database())
    database = Database(url)
    make_table(database)
    tries: list[None] = []

    def write(connection: sa.Connection) -> None:
        tries.append(None)
        connection.execute(sa.text("INSERT INTO t VALUES (1, 's')"))

    def ask(_number: int) -> bool:
        with context.deadline(time.monotonic() + 20):
            try:
                database.write(write)
            except exception.ServiceUnavailable as error:
                return "read only" not in str(error)
            return True

    with refusals.read_only(server, url), concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(ask, range(8)))
        before = len(tries)
        assert not any(pool.map(ask, range(100)))
        assert len(tries) - before == 100
        print(f"{before} tries of the first 8 transactions, 1 of each of the next 100")
        assert database.read(lambda connection: connection.scalar(sa.text("SELECT COUNT(*) FROM t"))) == 0
    assert ask(0)
    assert ask(1)
    database.close()


@pytest.mark.parametrize("statement", [
    "INSERT INTO u VALUES (1)", "INSERT INTO u VALUES (NULL)", "SELECT missing FROM u", "SELECT * FROM nowhere",
    "SELEC 1", "INSERT INTO u VALUES (99999999999999)", "INSERT INTO u (id, id) VALUES (1, 2)",
    "INSERT INTO u VALUES (1, 2, 3)", "SELECT (SELECT 1 UNION SELECT 2)"])
def test_statement_errors_are_not_retried(server: Server, statement: str) -> None:
    database = Database(server.new_database())
    database.write(lambda connection: connection.execute(sa.text("CREATE TABLE u (id INTEGER NOT NULL PRIMARY KEY)")))
    database.write(lambda connection: connection.execute(sa.text("INSERT INTO u VALUES (1)")))
    tries: list[None] = []

    def run(connection: sa.Connection) -> None:
        tries.append(None)
        connection.execute(sa.text(statement)).close()

    with pytest.raises(Exception) as raised:
        database.write(run)
    assert len(tries) == 1
    assert isinstance(raised.value, exception.InvalidInput) or not errors.is_transient(raised.value)
    database.close()


# --- a whole Nova ---------------------------------------------------------------------------------------
@contextlib.contextmanager
def _small_sqlite() -> Iterator[tuple[str, Refuse]]:
    with refusals.small_disk(24) as disk:
        yield f"sqlite:///{disk}/nova.sqlite", lambda: refusals.full(disk)


@pytest.fixture(params=["terminated", "postgresql", "mariadb", pytest.param("sqlite", marks=FULL)])
def nova(request: pytest.FixtureRequest, rabbitmq: Rabbit, tmp_path: pathlib.Path,
         quick: bool) -> Iterator[tuple[Cluster, Refuse]]:
    """Return a cluster, and a function that makes its database refuse writes."""
    work = _QUICK_WORK if quick else _WORK
    options = {"fake": {"latency": f"spawn:{work},destroy:{work}"}, "DEFAULT": {"rpc_response_timeout": 5}}
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url, refuse = stack.enter_context(_small_sqlite())
        else:
            server: Server = request.getfixturevalue(request.param.replace("terminated", "postgresql"))
            url = refusals.ordinary_account(server, server.new_database())

            def refuse() -> AbstractContextManager[None]:
                return refusals.read_only(server, url, request.param == "terminated")

        cluster = stack.enter_context(Cluster(rabbitmq.new_vhost(), url, computes=2, options=options,
                                              launcher=Points(tmp_path).launcher))
        yield cluster, refuse
        cluster.restore(invariants.BOUND)
        cluster.audit()


def create(nova: Cluster) -> requests.Response:
    return nova.api.request("POST", "/servers", {"server": {
        "name": "refused", "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto"}}, timeout=60)


def test_builds_and_deletes_succeed_while_writes_are_refused(nova: tuple[Cluster, Refuse], quick: bool) -> None:
    cluster, refuse = nova
    deleted = cluster.boot_many(3, "deleted")
    cluster.all_active(deleted, 60)
    building = cluster.boot_many(3, "building")
    eventually(lambda: all(server["OS-EXT-SRV-ATTR:host"] for server in cluster.api.servers().values()), 30,
               "every server has a host")
    for uuid in deleted:
        cluster.api.delete(f"/servers/{uuid}")
    begin = time.monotonic()
    with refuse():
        response = create(cluster)
        assert cluster.api.request("GET", "/flavors").status_code == 200
        time.sleep(max(0.0, (_QUICK_REFUSED if quick else _REFUSED) - (time.monotonic() - begin)))
    accepted = building
    if response.status_code == 202:  # the disk had room for these few rows
        accepted = [*building, response.json()["server"]["id"]]
    else:
        assert response.status_code == 503, response.text
        assert int(response.headers["Retry-After"]) > 0
    cluster.all_active(accepted, invariants.BOUND)
    cluster.api.wait_gone(deleted, invariants.BOUND)
    invariants.check(cluster, cluster.api.servers(), deleted=deleted)
    actions = {uuid: cluster.api.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"] for uuid in accepted}
    assert not [uuid for uuid, of in actions.items() if any(action["message"] for action in of)]
    assert {invariants.times_built(cluster)[uuid] for uuid in accepted} == {1}
    assert not [name for name, process in cluster.processes.items()
                if b"Unexpected error in" in process.log.read_bytes()]
