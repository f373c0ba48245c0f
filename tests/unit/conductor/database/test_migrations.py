"""Upgrades of the schema create exactly the tables of the models."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading

import pytest
import sqlalchemy as sa

from nova import conf, exception
from nova.db import tables
from nova.db.hosts import compute_nodes
from nova.db.maintenance import migrate, readiness
from nova.db.sql.engine import Database
from nova.objects.base import utcnow


def _differences(url: str) -> list[object]:
    database = Database(url)
    try:
        return database.read(migrate.differences)
    finally:
        database.close()


def test_db_sync_of_an_empty_database_creates_the_schema_of_the_models(database_url: str) -> None:
    assert migrate.version(database_url) is None
    migrate.sync(database_url)
    assert migrate.version(database_url) == readiness.newest()
    assert _differences(database_url) == []


def test_second_db_sync_changes_nothing(database_url: str) -> None:
    migrate.sync(database_url)
    migrate.sync(database_url)
    assert _differences(database_url) == []


def test_schema_difference_is_reported(database_url: str) -> None:
    migrate.sync(database_url)
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.text("DROP INDEX ix_providers_root_uuid" if database.dialect != "mysql" else
                                   "DROP INDEX ix_providers_root_uuid ON providers"))
        connection.execute(sa.text("ALTER TABLE keypairs DROP COLUMN fingerprint"))
    database.close()
    kinds = {difference[0] for difference in _differences(database_url)}  # type: ignore[index]
    assert kinds == {"add_index", "add_column"}


def test_unknown_schema_revision_is_invalid_input(database_url: str) -> None:
    with pytest.raises(exception.InvalidInput, match="9999"):
        migrate.sync(database_url, "9999")
    migrate.sync(database_url)
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '7777'"))
    database.close()
    with pytest.raises(exception.InvalidInput, match="7777"):
        migrate.sync(database_url)


def test_interrupted_schema_upgrade_is_continued(database_url: str) -> None:
    """Databases without transactional DDL keep the tables of a migration that was killed."""
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        tables.services.create(connection)
        tables.instances.create(connection)
    database.close()
    migrate.sync(database_url)
    assert _differences(database_url) == []


def test_concurrent_schema_upgrades_run_once(database_url: str) -> None:
    errors: list[Exception] = []

    def sync() -> None:
        try:
            migrate.sync(database_url)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=sync) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert _differences(database_url) == []


def test_upgrade_from_the_oldest_supported_revision_creates_the_schema_of_the_models(tmp_path: pathlib.Path) -> None:
    """tests/data/schema_0025.sql is an SQLite database of that revision, as the first release made it."""
    path = tmp_path / "nova.sqlite"
    schema = pathlib.Path(__file__).parents[3] / "data" / "schema_0025.sql"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema.read_text())
    migrate.sync(f"sqlite:///{path}")
    assert migrate.version(f"sqlite:///{path}") == readiness.newest()
    assert _differences(f"sqlite:///{path}") == []


def test_nodes_that_were_written_without_metrics_have_none(database_url: str) -> None:
    """Conductors of earlier releases write nodes without the column."""
    conf.register()
    migrate.sync(database_url)
    table = tables.compute_nodes
    old = sa.table("compute_nodes", *(sa.column(column.name, column.type) for column in table.c
                                      if column.name not in ("id", "metrics")))
    made = {"host": "h", "hypervisor_type": "fake", "hypervisor_version": 1, "host_ip": "192.0.2.1", "cpu_info": {},
            "supported_instances": [], "service_id": 1, "num_instances": 0, "num_io_ops": 0, "failed_builds": 0,
            "fitted": False, "generation": 1, "created_at": utcnow(), "updated_at": utcnow()}
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.insert(old).values(uuid="one", hypervisor_hostname="one", **made))
    found = database.read(lambda connection: compute_nodes.states(connection, None, 10))
    database.close()
    assert {state.node: state.metrics for state in found} == {"one": {}}
