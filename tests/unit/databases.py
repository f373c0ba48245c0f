"""SQLite databases with the schema, since creating the schema takes a third of a second, and queries of tests."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile

import sqlalchemy as sa

from nova import conf
from nova.db import tables
from nova.db.maintenance import migrate


def new_database(directory: str | os.PathLike[str]) -> str:
    """Write a database without rows into the directory and return its URL."""
    path = pathlib.Path(directory, "nova.sqlite")
    path.write_bytes(_file_with_schema())
    return f"sqlite:///{path}"


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
