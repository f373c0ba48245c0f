"""Fixtures of conductor tests: a migrated SQLite database for every test."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import pytest

from nova import conf
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.db.sql import clock
from tests.unit.conductor.books import Books, ctx
from tests.unit.databases import new_database


@pytest.fixture
def database_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite:///{tmp_path}/nova.sqlite"


@pytest.fixture(autouse=True)
def own_clock() -> Iterator[None]:
    """Reset the state of the database clock between tests."""
    clock.reset()
    yield
    clock.reset()


@pytest.fixture
def core(database_url: str) -> Iterator[Books]:
    new_database(pathlib.Path(database_url.removeprefix("sqlite:///")).parent)
    books = Books(database_url)
    yield books
    books.db.close()


@pytest.fixture
def host(core: Books) -> Books:
    """Return the core with a registered nova-compute on host h1."""
    Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1)
    core.sent.take()
    core.statements()
    return core


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """Yield ``settings(name, value, group=None)``, which overrides an option until the end of the test."""
    conf.register()
    changed: list[tuple[str, str | None]] = []

    def override(name: str, value: object, group: str | None = None) -> None:
        conf.CONF.set_override(name, value, group)
        changed.append((name, group))

    yield override
    for name, group in changed:
        conf.CONF.clear_override(name, group)
