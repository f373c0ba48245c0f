"""Nodes for the kill tests of novad."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.crash.novad.world import World


@pytest.fixture(scope="session")
def place() -> Iterator[pathlib.Path]:
    """Return a directory in memory if possible, since journals wait for the disk."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="novad-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def world(place: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[World]:
    directory = place / "w"
    directory.mkdir()
    made = World(directory)
    try:
        yield made
    finally:
        made.kill()
        shutil.rmtree(directory)
