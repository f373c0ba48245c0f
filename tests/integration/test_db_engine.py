"""Transactions go on when their database server was away for a moment."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db.engine import Database
from tests.integration.databases import start_mariadb, start_postgresql


@pytest.mark.parametrize("start", [start_postgresql, start_mariadb])
def test_a_killed_database_is_waited_for(start: object) -> None:
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
def test_a_database_that_stays_away_is_a_clean_error(start: object) -> None:
    with start() as server:  # type: ignore[operator]
        database = Database(server.new_database(), max_retries=3)
        server.kill()
        with pytest.raises(exception.ServiceUnavailable):
            database.read(lambda connection: connection.scalar(sa.text("SELECT 1")))
        database.close()
