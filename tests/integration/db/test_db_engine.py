"""Transactions across restarts of the database server."""

from __future__ import annotations

import concurrent.futures
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import conf, exception
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.maintenance import migrate, readiness
from nova.db.networks import security_groups
from nova.db.sql.engine import Database
from nova.objects.base import new_uuid
from tests.integration.databases import Server, start_mariadb, start_postgresql
from tests.unit.conductor.database.test_statement_limits import ENDLESS, cancelled_once

SECRET = "correcthorse"


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_transaction_is_retried_after_a_database_restart(start: object) -> None:
    with start() as server:  # type: ignore[operator]
        database = Database(server.new_database())

        def create(connection: sa.Connection) -> None:
            connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))

        def insert(connection: sa.Connection) -> int:
            connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            return int(connection.scalar(sa.text("SELECT COUNT(*) FROM t")) or 0)

        database.write(create)
        assert database.write(insert) == 1
        server.kill()
        again = threading.Timer(1.0, server.restart)
        again.start()
        assert database.write(insert) == 2
        again.join()
        database.close()


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_unreachable_database_raises_service_unavailable(start: object) -> None:
    with start() as server:  # type: ignore[operator]
        database = Database(server.new_database(), max_retries=3)
        server.kill()
        with pytest.raises(exception.ServiceUnavailable):
            database.read(lambda connection: connection.scalar(sa.text("SELECT 1")))
        database.close()


@pytest.mark.parametrize(("start", "user", "why"), [
    (start_postgresql, "nobody", 'role "nobody" does not exist'), (start_mariadb, "nobody", "Access denied")])
def test_refused_database_connection_reports_the_reason(start: object, user: str, why: str) -> None:
    with start() as server:  # type: ignore[operator]
        url = sa.make_url(server.new_database())
        with pytest.raises(exception.DatabaseUnusable, match=why) as raised:
            readiness.check(url.set(username=user, password="secret").render_as_string(hide_password=False))
        assert "secret" not in str(raised.value)
        with pytest.raises(exception.DatabaseUnusable, match="missing"):
            readiness.check(url.set(database="missing").render_as_string(hide_password=False))
        with pytest.raises(exception.DatabaseUnusable, match="the database has no tables"):
            readiness.check(url.render_as_string(hide_password=False))


def _take_one(connection: sa.Connection) -> None:
    each = dict.fromkeys(quotas.COUNTED, 1)
    quotas.take(connection, quotas.Room(quotas.Account("p", "u", {"instances": 10}, {}, {}), 1, each))


def _release_one(connection: sa.Connection) -> None:
    quotas.spend(connection, "p", "u", -1, -1, -1)


@pytest.mark.parametrize(("change", "left"), [(_take_one, 3), (_release_one, 1)])
@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_quota_changes_lock_the_project_row_before_the_user_row(start: object, change: Callable[[sa.Connection], None],
                                                                left: int) -> None:
    """Two transactions that lock the rows in different orders would deadlock."""
    with start() as server:  # type: ignore[operator]
        url = server.new_database()
        migrate.sync(url)
        database = Database(url)
        table = tables.quota_usages
        for user in ("u", ""):  # so that the user's row is the first one in the table
            database.write(lambda connection, user=user: connection.execute(sa.insert(table).values(
                project_id="p", user_id=user, instances=2, cores=2, ram=2)))
        # The planner scans a table that it knows to be small instead of using the index.
        database.write(lambda connection: connection.execute(sa.text(
            "ANALYZE quota_usages" if database.dialect == "postgresql" else "ANALYZE TABLE quota_usages")))
        changing = threading.Thread(target=database.write, args=(change,))
        with database.engine.connect() as connection, connection.begin():
            connection.execute(sa.select(table).where(table.c.user_id == "").with_for_update())
            changing.start()
            changing.join(1.0)
            assert changing.is_alive(), "the transaction does not wait for the project's row"
            connection.execute(sa.select(table).where(table.c.user_id == "u").with_for_update(nowait=True))
        changing.join(10.0)
        used = database.read(lambda connection: connection.execute(sa.select(table.c.instances)).scalars().all())
        assert used == [left, left]
        database.close()


@pytest.mark.parametrize(("start", "endless"), [
    (start_postgresql, ENDLESS), (start_mariadb, "SELECT COUNT(*) FROM seq_1_to_1000000000 WHERE SHA2(seq, 512) = ''")])
def test_statement_beyond_the_timeout_is_cancelled_and_not_retried(start: object, endless: str) -> None:
    with start() as server:  # type: ignore[operator]
        database = Database(server.new_database(), statement_seconds=1)
        cancelled_once(database, endless)
        database.close()


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_invalid_column_values_are_refused_and_not_logged(start: object, caplog: pytest.LogCaptureFixture) -> None:
    with start() as server:  # type: ignore[operator]
        url = server.new_database()
        migrate.sync(url)
        database = Database(url)
        values = {"project_id": "p", "user_id": "", "instances": 2, "cores": 2, "ram": 2}
        for wrong in ({"user_id": SECRET * 50}, {"user_id": SECRET, "ram": 2**70}, {"user_id": SECRET + "\ud800"}):
            with pytest.raises(exception.InvalidInput):
                database.write(lambda connection, wrong=wrong: connection.execute(
                    sa.insert(tables.quota_usages).values({**values, **wrong})))
        with pytest.raises((db_exception.DBError, sa.exc.DBAPIError)) as raised:
            database.write(lambda connection: connection.execute(
                sa.text("INSERT INTO nowhere VALUES (:value)"), {"value": SECRET}))
        assert SECRET not in str(raised.value)
        with pytest.raises((db_exception.DBError, sa.exc.DBAPIError)) as raised:
            database.write(lambda connection: connection.execute(
                sa.text("INSERT INTO quota_usages (project_id) VALUES (:value)"), {"value": SECRET}))
        assert SECRET not in "".join(traceback.format_exception(raised.value))
        assert SECRET not in caplog.text
        database.close()


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_transaction_is_retried_after_a_lock_timeout(start: object) -> None:
    with start() as server:  # type: ignore[operator]
        url = server.new_database()
        migrate.sync(url)
        database, holder = Database(url, statement_seconds=2), Database(url)
        table = tables.quota_usages
        holder.write(lambda connection: connection.execute(sa.insert(table).values(
            project_id="p", user_id="", instances=2, cores=2, ram=2)))
        tries = []

        def release(connection: sa.Connection) -> None:
            tries.append(1)
            if len(tries) == 2:
                held.rollback()
            quotas.spend(connection, "p", "", -1, -1, -1)

        with holder.engine.connect() as connection:
            held = connection.begin()
            connection.execute(sa.select(table).with_for_update())
            database.write(release)
        assert len(tries) == 2
        database.close()
        holder.close()


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_group_of_a_new_server_is_not_deleted_at_the_same_time(start: object) -> None:
    conf.register()
    with start() as server:  # type: ignore[operator]
        url = server.new_database()
        migrate.sync(url)
        database = Database(url)
        group = database.write(lambda connection: security_groups.create(connection, "project", "web", ""))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with database.engine.begin() as connection:
                security_groups.resolve(connection, "project", ["web"])
                deletion = pool.submit(database.write, lambda connection: security_groups.delete(connection, group.id))
                assert not concurrent.futures.wait([deletion], timeout=1).done
                security_groups.add_members(connection, [group.id], [new_uuid()])
            with pytest.raises(exception.SecurityGroupInUse):
                deletion.result(30)
        database.close()


@pytest.fixture
def pooled(postgresql: Server) -> Iterator[Database]:
    """Yield a PostgreSQL database with one connection, and a table t of numbers."""
    database = Database(postgresql.new_database(), pool_size=1, max_overflow=0)
    database.write(lambda connection: connection.execute(sa.text("CREATE TABLE t (n INTEGER)")))
    yield database
    database.close()


def _in_transaction(connection: sa.Connection) -> bool:
    """Return False if each statement is a transaction of its own."""
    first, second = (connection.scalar(sa.text("SELECT CAST(transaction_timestamp() AS TEXT)")) for _ in range(2))
    return first == second


def test_only_lookups_run_without_a_transaction(pooled: Database) -> None:
    assert not pooled.lookup(_in_transaction)
    for transact in (pooled.read, pooled.write, pooled.snapshot):
        assert transact(_in_transaction)
        assert not pooled.lookup(_in_transaction)


@pytest.mark.parametrize("fail", [
    lambda connection: connection.execute(sa.text("SELECT 1 / 0")),
    lambda connection: connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())")),
    lambda _connection: int("x")], ids=["statement", "connection", "function"])
def test_changes_after_a_failed_lookup_are_rolled_back_as_usual(
        pooled: Database, fail: Callable[[sa.Connection], None]) -> None:
    """A lookup must not leave its mode on the connection, which the next transaction uses."""
    pooled.max_retries = 1

    def insert_and_fail(connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO t VALUES (1)"))
        raise exception.Conflict("rolled back")

    with pytest.raises(Exception, match=r"cannot be stored|not available|literal"):
        pooled.lookup(fail)
    with pytest.raises(exception.Conflict):
        pooled.write(insert_and_fail)
    assert pooled.read(lambda connection: connection.scalar(sa.text("SELECT COUNT(*) FROM t"))) == 0


def test_transactions_are_read_committed_whatever_the_default_of_the_server(postgresql: Server) -> None:
    url = sa.make_url(postgresql.new_database())
    database = Database(url.update_query_dict(
        {"options": "-c default_transaction_isolation=serializable"}).render_as_string(hide_password=False))
    for _again in range(2):
        assert database.write(lambda connection: connection.scalar(
            sa.text("SHOW transaction_isolation"))) == "read committed"
        database.lookup(lambda connection: connection.scalar(sa.text("SELECT 1")))
    database.close()


def _level(connection: sa.Connection) -> str | None:
    return connection.scalar(sa.text("SHOW transaction_isolation"))


@pytest.mark.parametrize("options", ["", "-c default_transaction_isolation=serializable"])
def test_snapshot_does_not_change_the_following_transactions(postgresql: Server, options: str) -> None:
    """The connection of a snapshot must return to the pool without a level of its own."""
    url = sa.make_url(postgresql.new_database()).update_query_dict({"options": options} if options else {})
    database = Database(url.render_as_string(hide_password=False), pool_size=1, max_overflow=0)
    for _again in range(2):
        assert database.snapshot(_level) == "repeatable read"
        assert database.write(_level) == database.lookup(_level) == "read committed"
    database.close()


@pytest.mark.parametrize("options", ["", "-c default_transaction_isolation=serializable"])
def test_lookup_outlasts_a_connection_that_is_lost_at_its_end(postgresql: Server, options: str) -> None:
    """A lookup must send nothing after its last statement. With another level than that of the server it is an ordinary
    transaction, which is repeated."""
    plain = postgresql.new_database()
    url = sa.make_url(plain).update_query_dict({"options": options} if options else {})
    database = Database(url.render_as_string(hide_password=False), pool_size=1, max_overflow=0)
    others = Database(plain)
    database.snapshot(_level)
    lost: list[int] = []

    def lose(connection: sa.Connection) -> int:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        if not lost:
            lost.append(pid)
            others.read(lambda other: other.scalar(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid}))
        return 7

    assert database.lookup(lose) == 7
    assert database.read(_level) == "read committed"
    database.close()
    others.close()


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_snapshot_is_retried_after_a_database_restart(start: object) -> None:
    with start() as server:  # type: ignore[operator]
        url = server.new_database()
        database, others = Database(url, pool_size=1, max_overflow=0), Database(url)
        database.write(lambda connection: connection.execute(sa.text("CREATE TABLE t (n INTEGER)")))

        def count_twice(connection: sa.Connection) -> bool:
            """Return True if a change by another connection is not visible."""
            first = connection.scalar(sa.text("SELECT COUNT(*) FROM t"))
            others.write(lambda other: other.execute(sa.text("INSERT INTO t VALUES (1)")))
            return first == connection.scalar(sa.text("SELECT COUNT(*) FROM t"))

        for _again in range(2):
            assert database.snapshot(count_twice)
            assert not database.read(count_twice)
            server.kill()
            server.restart()
        database.close()
        others.close()
