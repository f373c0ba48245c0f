"""SQLite databases with the schema, since creating the schema takes a third of a second, and queries of tests.

Databases of tests share their compiled statements: compiling took a quarter of the CPU time of tests with a new one.
"""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
from typing import Any

import sqlalchemy as sa

from nova import conf
from nova.db import tables
from nova.db.maintenance import migrate
from nova.db.sql.engine import Database


def new_database(directory: str | os.PathLike[str]) -> str:
    """Write a database without rows into the directory and return its URL."""
    path = pathlib.Path(directory, "nova.sqlite")
    path.write_bytes(_file_with_schema())
    return f"sqlite:///{path}"


class _Statements(dict[Any, Any]):
    """Compiled statements by their key in the cache of SQLAlchemy, which begins with the dialect object of an engine.
    The dialects of all SQLite engines compile a statement in the same way."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), compiled)


_statements = _Statements()


def open_database(url: str) -> Database:
    """Open a database; on SQLite with the statements that earlier tests have compiled."""
    database = Database(url)
    if database.dialect == "sqlite":
        database.engine.update_execution_options(compiled_cache=_statements)
    return database


@functools.cache
def _file_with_schema() -> bytes:
    conf.register()
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "nova.sqlite")
        migrate.sync(f"sqlite:///{path}")
        return path.read_bytes()


def unfinished(connection: sa.Connection) -> list[str]:
    """Return descriptions of the operations that are still running."""
    return [f"{row.action} of {row.instance_uuid} at step {row.step} ({row.owner})" for row in connection.execute(
        sa.select(tables.actions).where(tables.actions.c.outcome.is_(None)))]


def open_events(connection: sa.Connection) -> list[str]:
    """Return descriptions of events without a result that belong to finished actions."""
    return [f"{event.event} of {row.action} of {row.instance_uuid}" for row in connection.execute(
        sa.select(tables.actions).where(tables.actions.c.outcome.is_not(None)))
        for event in row.events if event.finish_time is None]
