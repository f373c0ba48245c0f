"""SQLite databases with the schema. Creating the schema takes a third of a second, and many tests need one."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile

from nova import conf
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
