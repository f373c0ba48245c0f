"""The migrations make exactly the tables of the models."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db import migrate, models
from nova.db.engine import Database


def _differences(url: str) -> list[object]:
    database = Database(url)
    try:
        return database.read(migrate.differences)
    finally:
        database.close()


def test_an_empty_database_becomes_what_the_models_say(database_url: str) -> None:
    assert migrate.version(database_url) is None
    migrate.sync(database_url)
    assert migrate.version(database_url) == migrate.newest()
    assert _differences(database_url) == []


def test_a_second_sync_changes_nothing(database_url: str) -> None:
    migrate.sync(database_url)
    migrate.sync(database_url)
    assert _differences(database_url) == []


def test_a_difference_is_found(database_url: str) -> None:
    migrate.sync(database_url)
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.text("DROP INDEX ix_providers_root_uuid" if database.dialect != "mysql" else
                                   "DROP INDEX ix_providers_root_uuid ON providers"))
        connection.execute(sa.text("ALTER TABLE keypairs DROP COLUMN fingerprint"))
    database.close()
    kinds = {difference[0] for difference in _differences(database_url)}  # type: ignore[index]
    assert kinds == {"add_index", "add_column"}


def test_unknown_revisions_are_the_operators_mistake(database_url: str) -> None:
    with pytest.raises(exception.InvalidInput, match="9999"):
        migrate.sync(database_url, "9999")
    migrate.sync(database_url)
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '7777'"))
    database.close()
    with pytest.raises(exception.InvalidInput, match="7777"):
        migrate.sync(database_url)


def test_an_upgrade_that_was_cut_short_is_continued(database_url: str) -> None:
    """Databases without transactional DDL keep the tables of a migration that was killed."""
    database = Database(database_url)
    with database.engine.connect() as connection, connection.begin():
        models.services.create(connection)
        models.instances.create(connection)
    database.close()
    migrate.sync(database_url)
    assert _differences(database_url) == []


def test_two_upgrades_at_the_same_time_are_one(database_url: str) -> None:
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
