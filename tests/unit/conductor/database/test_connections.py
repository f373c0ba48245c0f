"""Number of database connections of conductors."""

import concurrent.futures

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.service import connections_of
from nova.db.sql.engine import Database

# Default max_connections of PostgreSQL, less superuser_reserved_connections.
_ALLOWED = 97


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6])
def test_two_conductors_need_fewer_connections_than_postgresql_allows(workers):
    heartbeats = 2
    assert 2 * workers * (connections_of(workers) + heartbeats) < _ALLOWED


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_worker_has_at_least_four_connections(workers):
    assert connections_of(workers) >= 4


def test_transaction_without_a_free_connection_is_refused(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/one.sqlite", pool_size=1, max_overflow=0)
    database.engine.pool._timeout = 0.1
    with database.engine.connect(), pytest.raises(exception.ServiceUnavailable, match="in use"):
        database.read(lambda connection: connection.execute(sa.text("SELECT 1")))
    database.close()


def test_threads_beyond_the_pool_size_wait_for_a_connection(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/few.sqlite", pool_size=2, max_overflow=0)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda number: database.read(
            lambda connection: connection.scalar(sa.text("SELECT :n"), {"n": number})), range(100)))
    assert found == list(range(100))
    database.close()
