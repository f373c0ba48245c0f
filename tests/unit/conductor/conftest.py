"""Fixtures of conductor tests: a migrated SQLite database for every test."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Iterator

import pytest

from nova import conf
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.db.maintenance import migrate
from nova.db.sql import clock
from tests.unit.conductor.books import Books, ctx


@pytest.fixture
def database_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite:///{tmp_path}/nova.sqlite"


@pytest.fixture(autouse=True)
def own_clock() -> Iterator[None]:
    """Reset the state of the database clock between tests."""
    clock.reset()
    yield
    clock.reset()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a database file with the schema; creating the schema in every test would be slow."""
    conf.register()
    path = tmp_path_factory.mktemp("schema") / "nova.sqlite"
    migrate.sync(f"sqlite:///{path}")
    return path


@pytest.fixture
def core(database_url: str, empty_database: pathlib.Path) -> Iterator[Books]:
    shutil.copy(empty_database, database_url.removeprefix("sqlite:///"))
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
