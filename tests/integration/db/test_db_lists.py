"""Query plans of server lists on PostgreSQL and MariaDB."""

from __future__ import annotations

import pytest

from nova.db.sql.engine import Database
from tests.unit.conductor.database.test_list_plans import *  # noqa: F403
from tests.unit.conductor.database.test_list_plans import DELETED, LIVE, check_lists


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def list_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).new_database())


def test_list_statements_without_statistics_read_no_table_for_each_row(filled: Database) -> None:
    """A new or restored database of PostgreSQL has no statistics: the planner takes a table with wide rows for empty.
    It may read a range by another index, but each of them once."""
    if filled.dialect != "postgresql":
        pytest.skip("MariaDB estimates from its indexes")
    with filled.engine.connect() as connection, connection.begin() as transaction:
        connection.exec_driver_sql("SET LOCAL statement_timeout = '20s'")
        connection.exec_driver_sql("DELETE FROM pg_statistic")
        connection.exec_driver_sql("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relkind IN ('r', 'i')")
        try:
            check_lists(connection, 16 * (LIVE + DELETED))  # ranges of a statement
        finally:
            transaction.rollback()
