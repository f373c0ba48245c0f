"""Indexes of PostgreSQL that are created while services run, after the upgrade that leaves them out."""

import logging
import time

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from nova.db import tables

LOG = logging.getLogger(__name__)

# An arbitrary number that other programs on the same database server are unlikely to use.
_LOCK = 0x6E6F7662
# Seconds between two attempts to become the only process that creates indexes.
_PAUSE = 0.5
# Indexes that were replaced by later ones.
_FORMER = ("ix_instances_updated",)
# Indexes of the tables that the database lacks or has in an unfinished state.
_STATES = sa.text(
    "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_class t ON t.oid = i.indrelid WHERE t.relname = :table AND pg_table_is_visible(t.oid)")


def build(engine: sa.Engine) -> list[str]:
    """Create the missing indexes of PostgreSQL without locks; return their names. An index left unfinished by an
    interrupted run is created again. Of several processes one works, the others wait."""
    if engine.dialect.name != "postgresql":
        return []
    made = []
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # Disable the time limit of statements: an index of gigabytes takes minutes.
        connection.execute(sa.text("SET statement_timeout = 0"))
        # A wait within a statement would block CREATE INDEX CONCURRENTLY: a deadlock.
        while not connection.scalar(sa.text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}):
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
                    made.append(str(index.name))
            for name in _FORMER:
                connection.execute(sa.text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
        finally:
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
    return made
