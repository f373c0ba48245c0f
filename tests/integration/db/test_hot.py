"""Statements that are executed on the driver's cursor have the same results and errors as those of SQLAlchemy."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import decimal
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import context, exception
from nova.db.sql import errors, hot, types
from nova.db.sql.engine import Database
from tests.integration.databases import Server, start_mariadb, start_postgresql

METADATA = sa.MetaData()
TABLE = sa.Table(
    "things", METADATA, sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", types.text(30), unique=True), sa.Column("small", sa.Integer), sa.Column("share", sa.Float),
    sa.Column("price", sa.Numeric(8, 2)), sa.Column("on", sa.Boolean), sa.Column("at", types.Utc),
    sa.Column("list", types.Json(list[int])), sa.Column("data", types.LongBytes))
ROW: dict[str, Any] = {"id": 1, "name": "100 % 'ü", "small": -3, "share": 0.5, "price": decimal.Decimal("1.10"),
                       "on": True, "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC), "list": [1, 2],
                       "data": b"\0\xff"}
EMPTY = {**dict.fromkeys(ROW), "id": 2}
BY_ID = sa.select(TABLE).where(TABLE.c.id == sa.bindparam("this"))
SUM = (TABLE.c.small + sa.bindparam("more", type_=sa.Integer)).label("sum")
SMALLER = sa.select(TABLE.c.id, SUM, TABLE.c.id).where(
    TABLE.c.on == sa.literal(True, sa.Boolean)).order_by(TABLE.c.id)
INSERT = sa.insert(TABLE)
UPDATE = sa.update(TABLE).where(TABLE.c.id == sa.bindparam("this"))


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    if request.param == "sqlite":
        yield None
        return
    with (start_postgresql if request.param == "postgresql" else start_mariadb)() as server:
        yield server


@pytest.fixture
def database(server: Server | None, tmp_path: pathlib.Path) -> Iterator[Database]:
    database = Database(server.new_database() if server else f"sqlite:///{tmp_path}/db", max_retries=1)
    METADATA.create_all(database.engine)
    for row in (ROW, EMPTY):
        database.write(lambda connection, row=row: hot.execute(connection, INSERT, row))  # type: ignore[misc]
    yield database
    database.close()


def test_values_are_stored_and_read_as_by_sqlalchemy(database: Database) -> None:
    for row in (ROW, EMPTY):
        assert database.read(lambda connection, row=row: connection.execute(  # type: ignore[misc]
            BY_ID, {"this": row["id"]}).mappings().one()) == row
        stored = database.lookup(lambda connection, row=row: hot.execute(  # type: ignore[misc]
            connection, BY_ID, {"this": row["id"]}).first())
        assert stored._asdict() == row
    assert database.read(lambda connection: hot.execute(connection, BY_ID, {"this": 9}).first()) is None


def test_result_has_the_labels_and_the_order_of_the_statement(database: Database) -> None:
    (row,) = database.read(lambda connection: hot.execute(connection, SMALLER, {"more": 5}).all())
    assert (tuple(row), row.id, row.sum) == ((1, 2, 1), 1, 2)
    assert list(database.read(lambda connection: hot.execute(connection, SMALLER, {"more": None}))) == [(1, None, 1)]


def test_first_results_in_two_threads_are_converted_once(database: Database) -> None:
    describing = threading.Barrier(2)

    class Number(sa.types.TypeDecorator[int]):
        impl, cache_ok = sa.Integer, True

        def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
            describing.wait(20)
            return None

    statement = sa.select(TABLE.c.list, sa.type_coerce(TABLE.c.small, Number).label("small")).where(TABLE.c.id == 1)

    def read(_number: int = 0) -> Any:
        return database.read(lambda connection: hot.execute(connection, statement, {}).first())

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert [*threads.map(read, range(2)), read()] == [(ROW["list"], ROW["small"])] * 3


def test_transaction_continues_after_an_error_within_a_savepoint(database: Database) -> None:
    def transaction(connection: sa.Connection) -> Any:
        with contextlib.suppress(db_exception.DBDuplicateEntry), connection.begin_nested():
            hot.execute(connection, INSERT, ROW)
        return connection.execute(BY_ID, {"this": 1}).one().name

    assert database.write(transaction) == ROW["name"]


def test_update_changes_the_given_columns_and_counts_rows(database: Database) -> None:
    changes: list[dict[str, Any]] = [
        {"small": 7}, {"list": None, "name": "b"}, {"name": "c", "list": [3]}, {"small": 8}]
    for change in changes:
        assert database.write(lambda connection, change=change: hot.execute(  # type: ignore[misc]
            connection, UPDATE, {**change, "this": 1}).rowcount) == 1
    assert database.write(lambda connection: hot.execute(connection, UPDATE, {"small": 8, "this": 1}).rowcount) == 1
    assert database.write(lambda connection: hot.execute(connection, UPDATE, {"small": 8, "this": 9}).rowcount) == 0
    stored = database.read(lambda connection: hot.execute(connection, BY_ID, {"this": 1}).first())
    assert stored._asdict() == {**ROW, "small": 8, "name": "c", "list": [3]}


@pytest.mark.parametrize(("values", "raised"), [
    ({**EMPTY, "id": 1}, db_exception.DBDuplicateEntry), ({**EMPTY, "id": 3, "name": ROW["name"]},
                                                          db_exception.DBDuplicateEntry),
    ({**EMPTY, "id": 3, "name": "x" * 31}, exception.InvalidInput), ({**EMPTY, "id": None}, db_exception.DBError)])
def test_errors_are_those_of_sqlalchemy(database: Database, values: dict[str, Any], raised: type[Exception]) -> None:
    found = []
    for execute in (lambda connection: connection.execute(INSERT, values),
                    lambda connection: hot.execute(connection, INSERT, values)):
        if values["id"] is None and database.dialect == "sqlite":
            pytest.skip("SQLite generates the number")
        with pytest.raises(raised) as caught:
            database.write(execute)
        text = str(caught.value).replace("[SQL parameters hidden due to hide_parameters=True]\n", "")
        found.append((type(caught.value), getattr(caught.value, "columns", None), text))
    assert found[0] == found[1]


def test_lost_connection_is_replaced(server: Server | None, database: Database) -> None:
    if server is None:
        pytest.skip("SQLite has no connections that can be lost")
    number = "pg_backend_pid()" if database.dialect == "postgresql" else "connection_id()"
    kill = "SELECT pg_terminate_backend(%s)" if database.dialect == "postgresql" else "KILL %s"
    attempts = []

    def transaction(connection: sa.Connection) -> Any:
        attempts.append(connection.exec_driver_sql(f"SELECT {number}").scalar())
        if len(attempts) == 1:
            with database.engine.connect() as other:
                other.exec_driver_sql(kill % attempts[0])
        return hot.execute(connection, BY_ID, {"this": 1}).first()

    assert database.read(transaction).name == ROW["name"]
    assert len(set(attempts)) == 2


def test_late_request_is_stopped(database: Database) -> None:
    with pytest.raises(exception.ServiceUnavailable), context.deadline(0.0):
        database.read(lambda connection: hot.execute(connection, BY_ID, {"this": 1}))


def test_statement_is_seen_by_listeners(database: Database) -> None:
    statements = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    database.lookup(lambda connection: hot.execute(connection, BY_ID, {"this": 1}))
    assert [text.split()[0] for text in statements if not text.startswith("BEGIN")] == ["SELECT"]


def test_missing_parameter_is_an_error_of_the_program(database: Database) -> None:
    with pytest.raises(KeyError):
        database.read(lambda connection: hot.execute(connection, BY_ID, {}))
    with pytest.raises(TypeError, match="lists"):
        database.read(lambda connection: hot.execute(connection, sa.select(TABLE).where(
            TABLE.c.id.in_(sa.bindparam("these", expanding=True))), {"these": [1]}))
    with pytest.raises(msgspec.ValidationError):
        database.write(lambda connection: hot.execute(connection, sa.select(
            sa.literal("{}", types.Json(list[int])).label("wrong")), {}))
    assert errors.is_transient(RuntimeError()) is False
