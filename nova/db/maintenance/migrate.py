"""Upgrade of a database to the schema of this release, and the state of its schema."""

import logging
import os
from typing import Any

import sqlalchemy as sa
from alembic import autogenerate, command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError

from nova import exception
from nova.db import migrations, tables
from nova.db.maintenance import online_indexes, readiness
from nova.db.sql.engine import Database

LOG = logging.getLogger(__name__)

# An arbitrary number that other programs on the same database server are unlikely to use.
_LOCK = 0x6E6F7661


def sync(url: str, revision: str | None = None) -> None:
    """Upgrade the database to ``revision`` (None: the newest). Does nothing if the database already has it.

    Concurrent upgrades wait for one another. Raises InvalidInput for a revision (requested, or found in the database)
    that this release does not know, DatabaseUnusable.
    """
    database = readiness.connected(url, new=True)
    try:
        with database.engine.connect() as connection, connection.begin():
            _wait_for_others(connection)
            before = MigrationContext.configure(connection).get_current_revision()
            try:
                command.upgrade(_config(connection), revision or "head")
            except CommandError as error:
                raise exception.InvalidInput(reason=f"the database is at {before or 'nothing'} and cannot be upgraded "
                                                    f"to {revision or readiness.newest()}: {error}") from error
            after = MigrationContext.configure(connection).get_current_revision()
        if after == readiness.newest():
            online_indexes.build(database.engine)
    finally:
        database.close()
    if before != after:
        LOG.info("Database upgraded from %s to %s", before or "nothing", after)


def version(url: str) -> str | None:
    """Return the revision of the database, or None if it has no schema yet. Raises DatabaseUnusable."""
    file = readiness.file_of(url)
    if file is not None and not os.path.exists(file):
        return None
    database = readiness.connected(url)
    try:
        return database.read(lambda connection: MigrationContext.configure(connection).get_current_revision())
    finally:
        database.close()


def differences(connection: sa.Connection) -> list[Any]:
    """Return the differences between the schema of a database and the models, as alembic does; [] if there are none."""
    return list(autogenerate.compare_metadata(
        MigrationContext.configure(connection, opts={"compare_type": True}), tables.metadata))


def write_revision(url: str, message: str) -> str:
    """Write a revision with the differences between the tables and a (newest) database; return its path."""
    database = Database(url)
    try:
        with database.engine.connect() as connection, connection.begin():
            script: Any = command.revision(_config(connection), message, autogenerate=True)
            return str(script.path)
    finally:
        database.close()


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", os.path.dirname(migrations.__file__).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _wait_for_others(connection: sa.Connection) -> None:
    """Serialize concurrent upgrades by a lock; on SQLite the transaction itself holds the write lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    elif connection.dialect.name in ("mysql", "mariadb"):
        # Held by the session (DDL ends transactions here); the connection is closed afterwards.
        connection.execute(sa.text("SELECT GET_LOCK('nova_db_sync', 300)"))
