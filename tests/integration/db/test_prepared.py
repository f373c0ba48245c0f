"""Prepared statements on PostgreSQL: the same results and errors as without them, also if the server loses them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import decimal
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova.db.sql import hot, prepared
from nova.db.sql.engine import Database
from tests.integration.databases import Server, start_pgbouncer, start_postgresql

TABLE = sa.Table("things", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("name", sa.Text),
                 sa.Column("small", sa.Integer), sa.Column("share", sa.Float), sa.Column("price", sa.Numeric),
                 sa.Column("on", sa.Boolean), sa.Column("at", sa.DateTime))
ROW: dict[str, Any] = {"id": 1, "name": "it's 100 % \\ \"odd\" ünï", "small": -3, "share": 0.1,
                       "price": decimal.Decimal("1.10"), "on": True, "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6)}
EMPTY = {**dict.fromkeys(ROW), "id": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_postgresql() as server:
        yield server


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    database = Database(server.new_database(), pool_size=1, max_overflow=0)
    TABLE.create(database.engine)
    database.write(lambda connection: connection.execute(TABLE.insert(), [ROW, EMPTY]))
    yield database
    database.close()


def texts(database: Database) -> list[str]:
    """Return the texts of the statements that the only connection has prepared."""
    return database.lookup(lambda connection: [row[0] for row in connection.exec_driver_sql(
        "SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")])


def by_id(number: int) -> sa.Select[Any]:
    return sa.select(TABLE).where(TABLE.c.id == number)


@pytest.mark.parametrize("column", sorted(ROW))
def test_prepared_statement_returns_the_same_rows(database: Database, column: str) -> None:
    statement = sa.select(TABLE).where(TABLE.c[column] == sa.bindparam("value", type_=TABLE.c[column].type))
    results = [database.read(lambda connection: connection.execute(statement, {"value": ROW[column]}).mappings().all())
               for _ in range(5)]
    assert results == [[ROW]] * 5
    assert len(texts(database)) == 1


def test_prepared_statement_writes_the_same_values(database: Database) -> None:
    changed = {**ROW, "name": None, "small": 2**31 - 1, "share": None, "on": False}
    for values in (ROW, changed, ROW, changed, ROW, changed, ROW, changed):
        database.write(lambda connection, values=values: connection.execute(  # type: ignore[misc]
            TABLE.update().where(TABLE.c.id == 1).values(**{key: values[key] for key in values if key != "id"})))
        assert database.read(lambda connection: dict(connection.execute(by_id(1)).mappings().one())) == values
    # The update is prepared once for texts and numbers, once for the nulls.
    assert len([text for text in texts(database) if " AS UPDATE " in text]) == 2


def test_number_beyond_64_bits_finds_nothing(database: Database) -> None:
    for number in (1, 1, 1, 1, 2**70, 1):
        rows = database.read(lambda connection, number=number: connection.execute(  # type: ignore[misc]
            by_id(number)).all())
        assert len(rows) == (number == 1)


def test_statement_that_cannot_be_prepared_is_executed_in_its_transaction(database: Database) -> None:
    # A literal may be a number and a text; a parameter may not.
    value = sa.bindparam("value", "0", sa.Text)
    equal = sa.select((TABLE.c.small == value).label("number"), (TABLE.c.name == value).label("text")).where(
        TABLE.c.id == 1)

    def transaction(connection: sa.Connection) -> tuple[bool, bool]:
        connection.execute(TABLE.update().where(TABLE.c.id == 2).values(small=TABLE.c.small + 1))
        return connection.execute(equal).one()._tuple()

    database.write(lambda connection: connection.execute(TABLE.update().values(small=0)))
    assert {database.write(transaction) for _ in range(6)} == {(True, False)}
    assert database.lookup(lambda connection: connection.execute(equal).one()) == (True, False)
    assert database.read(lambda connection: connection.execute(by_id(2)).one().small) == 6
    assert not [text for text in texts(database) if "AS number" in text]


def test_prepared_statement_computes_with_the_types_of_literals(database: Database) -> None:
    one = sa.case((TABLE.c.small < 0, 1), else_=0)
    statement = sa.select(sa.func.sum(one), sa.func.substr(sa.func.max(TABLE.c.name), 6, 3), sa.func.sum(one * 2**40))
    results = [tuple(database.read(lambda connection: connection.execute(statement).one())) for _ in range(5)]
    assert {repr(row) for row in results} == {f"(1, '100', Decimal('{2**40}'))"}
    assert len(texts(database)) == 1


def test_order_of_parameters_does_not_matter(database: Database) -> None:
    statement = sa.select(TABLE.c.id).where(TABLE.c.name == sa.bindparam("name"), TABLE.c.id == 1)
    for execute in (sa.Connection.execute, hot.execute, sa.Connection.execute):  # the second has the constant first
        if execute is hot.execute:
            database.engine.dispose()  # The connection of the first executions closes.
        for _ in range(5):
            assert database.read(lambda connection, execute=execute: execute(  # type: ignore[misc]
                connection, statement, {"name": ROW["name"]}).first().id) == 1
    assert len(texts(database)) == 1


def test_transaction_continues_after_each_error_within_a_savepoint(database: Database) -> None:
    def transaction(connection: sa.Connection) -> int:
        with contextlib.suppress(db_exception.DBDuplicateEntry), connection.begin_nested():
            connection.execute(TABLE.insert(), ROW)
        return int(connection.execute(by_id(1)).one().id)

    assert [database.write(transaction) for _ in range(5)] == [1] * 5
    assert len(texts(database)) == 2


def test_statement_with_many_parameters_is_not_prepared(database: Database) -> None:
    for _ in range(4):
        assert len(database.read(lambda connection: connection.execute(
            sa.select(TABLE).where(TABLE.c.id.in_(range(1000)))).all())) == 2
    assert not texts(database)


def test_streamed_statement_is_not_prepared(database: Database) -> None:
    for _ in range(5):
        rows = database.read(lambda connection: connection.execution_options(stream_results=True).execute(
            sa.select(TABLE.c.id).order_by(TABLE.c.id)).all())
        assert [row.id for row in rows] == [1, 2]
    assert not texts(database)


def test_lost_prepared_statements_do_not_fail_the_transaction(database: Database) -> None:
    """A proxy that shares the sessions of the server (PgBouncer) has the same effect as DEALLOCATE."""
    for number in range(10):
        assert database.read(lambda connection: connection.execute(by_id(1)).one().id) == 1
        if number == 5:
            assert texts(database)
            database.read(lambda connection: connection.exec_driver_sql("DEALLOCATE ALL"))
    assert not texts(database)  # the process does without from now on


def test_statement_continues_after_a_migration_has_changed_its_result(database: Database) -> None:
    statement = sa.select(TABLE.c.small).where(TABLE.c.id == 1)
    for number in range(10):
        assert database.read(lambda connection: connection.scalar(statement)) == -3
        if number == 5:
            database.write(lambda connection: connection.exec_driver_sql(
                "ALTER TABLE things ALTER COLUMN small TYPE bigint"))
    assert len(texts(database)) == 1


def test_a_connection_prepares_a_limited_number_of_statements(database: Database,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_PREPARED", 4)
    for length in range(1, 8):
        for _ in range(4):
            rows = database.read(lambda connection, length=length: connection.execute(  # type: ignore[misc]
                sa.select(TABLE).where(TABLE.c.id.in_(range(length)))).all())
            assert len(rows) == min(2, length - 1)
    assert len(texts(database)) == 4


@pytest.mark.parametrize(("mode", "settings", "kept"), [
    ("session", ["default_pool_size = 8"], True), ("transaction", ["default_pool_size = 2"], False),
    ("transaction", ["server_reset_query_always = 1", "default_pool_size = 4"], False)])
def test_transactions_succeed_through_pgbouncer(server: Server, mode: str, settings: list[str], kept: bool) -> None:
    """A session of the server executes transactions of several clients in turn, unless the mode is "session"."""
    update = sa.update(TABLE).where(TABLE.c.id == sa.bindparam("this"))
    locked = sa.select(TABLE.c.small).where(TABLE.c.id == sa.bindparam("this")).with_for_update()

    def transaction(connection: sa.Connection) -> None:
        for number in (1, 2):
            small = hot.execute(connection, locked, {"this": number}).first().small
            hot.execute(connection, update, {"this": number, "small": small + 1})

    def transactions(database: Database) -> None:
        for _ in range(20):
            database.write(transaction)
            database.lookup(lambda connection: connection.execute(by_id(1)).one())

    url = sa.make_url(server.new_database())
    with start_pgbouncer(server, mode, *settings) as proxy, contextlib.ExitStack() as stack:
        # Two processes, since a process that has lost a prepared statement does without.
        databases = [Database(proxy.url(str(url.database)), statement_seconds=30) for _ in range(2)]
        for database in databases:
            stack.callback(database.close)
        TABLE.create(databases[0].engine)
        databases[0].write(lambda connection: connection.execute(TABLE.insert(), [
            {**ROW, "id": number, "small": 0} for number in (1, 2)]))
        with concurrent.futures.ThreadPoolExecutor(6) as threads:
            list(threads.map(transactions, databases * 3))
        assert databases[0].read(lambda connection: connection.scalars(
            sa.select(TABLE.c.small)).all()) == [120, 120]
        assert all(texts(database) for database in databases) or not kept
