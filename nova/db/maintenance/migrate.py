"""Upgrade of a database to the schema of this release, and the state of its schema."""

import contextlib
import logging
import os
import time
from typing import Any

import sqlalchemy as sa
from alembic import autogenerate, command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy.schema import CreateIndex

from nova import exception
from nova.db import migrations, tables
from nova.db.maintenance import readiness
from nova.db.sql.engine import Database

LOG = logging.getLogger(__name__)

# Keys of advisory locks of PostgreSQL: arbitrary numbers that other programs in the database are unlikely to use.
_LOCK, _INDEX_LOCK = 0x6E6F7661, 0x6E6F7662
_PAUSE = 0.5  # seconds between two attempts to become the only process that creates indexes
_FORMER = ("ix_instances_updated",)  # indexes that were replaced by later ones
# Names of the indexes of a table, and False for each index that an interrupted run left unfinished.
_STATES = sa.text(
    "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_class t ON t.oid = i.indrelid WHERE t.relname = :table AND pg_table_is_visible(t.oid)")


def sync(url: str, revision: str | None = None) -> None:
    """Upgrade the database to ``revision`` (None: the newest). Does nothing if the database already has it. Concurrent
    upgrades wait for one another. Raises InvalidInput if this release does not know ``revision`` or the revision of the
    database, DatabaseUnusable."""
    with contextlib.closing(readiness.connected(url, new=True)) as database:
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
            _create_indexes(database.engine)
    if before != after:
        LOG.info("Database upgraded from %s to %s", before or "nothing", after)


def version(url: str) -> str | None:
    """Return the revision of the database, or None if it has no schema yet. Raises DatabaseUnusable."""
    file = readiness.file_of(url)
    if file is not None and not os.path.exists(file):
        return None
    with contextlib.closing(readiness.connected(url)) as database:
        return database.read(lambda connection: MigrationContext.configure(connection).get_current_revision())


def differences(connection: sa.Connection) -> list[Any]:
    """Return the differences between the schema of a database and the models, as alembic does; [] if there are none."""
    return list(autogenerate.compare_metadata(
        MigrationContext.configure(connection, opts={"compare_type": True}), tables.metadata))


def write_revision(url: str, message: str) -> str:
    """Write a migration from the schema of a database to the models; return the path of the file."""
    with contextlib.closing(Database(url)) as database, database.engine.begin() as connection:
        script: Any = command.revision(_config(connection), message, autogenerate=True)
        return str(script.path)


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
        # A lock of the session, since DDL ends transactions here. Closing the connection releases the lock.
        connection.execute(sa.text("SELECT GET_LOCK('nova_db_sync', 300)"))


def _create_indexes(engine: sa.Engine) -> None:
    """Create the indexes that the upgrade leaves out on PostgreSQL, without locks, so that services can run meanwhile.
    An index left unfinished by an interrupted run is created again. One process creates indexes, others wait."""
    if engine.dialect.name != "postgresql":
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # Disable the time limit of statements: an index of gigabytes takes minutes.
        connection.execute(sa.text("SET statement_timeout = 0"))
        # Poll, since CREATE INDEX CONCURRENTLY of the lock holder would wait for a statement that blocks on the lock.
        while not connection.scalar(sa.text("SELECT pg_try_advisory_lock(:key)"), {"key": _INDEX_LOCK}):
            time.sleep(_PAUSE)
        try:
            for table in (tables.instances, tables.migrations):
                valid: dict[str, bool] = dict(connection.execute(_STATES, {"table": table.name}).tuples().all())
                for index in sorted(table.indexes, key=lambda candidate: str(candidate.name)):
                    if valid.get(str(index.name)):
                        continue
                    if index.name in valid:
                        connection.execute(sa.text(f"DROP INDEX CONCURRENTLY {index.name}"))
                    LOG.info("Creating index %s of table %s; services can work meanwhile", index.name, table.name)
                    statement = str(CreateIndex(index).compile(connection))
                    connection.execute(sa.text(statement.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1)))
            for name in _FORMER:
                connection.execute(sa.text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
        finally:
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _INDEX_LOCK})
