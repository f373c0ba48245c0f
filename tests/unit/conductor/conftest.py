"""A migrated SQLite file for every test."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from nova import conf
from nova.db import migrate
from tests.unit.conductor.books import Books


@pytest.fixture
def database_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite:///{tmp_path}/nova.sqlite"


@pytest.fixture
def core(database_url: str) -> Iterator[Books]:
    conf.register()
    migrate.sync(database_url)
    books = Books(database_url)
    yield books
    books.db.close()


@pytest.fixture
def settings() -> Iterator[object]:
    """oslo.config's overrides, undone after the test."""
    from oslo_config import fixture

    conf.register()
    config = fixture.Config(conf.CONF)
    config.setUp()
    yield config
    config.cleanUp()
