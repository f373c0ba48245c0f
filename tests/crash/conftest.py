"""Options and servers of the crash suite.

``--quick`` runs a representative part within minutes. ``--seed N`` and ``--seeds N`` choose the runs of the seeded
storms. ``--database`` selects the database of the conductors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.crash.rounds import cluster, nova, operate, points  # noqa: F401 (fixtures)
from tests.integration.conftest import pytest_runtest_makereport, pytest_sessionstart, rabbitmq  # noqa: F401
from tests.integration.databases import Server, mariadb, postgresql, start_mariadb, start_postgresql  # noqa: F401

_SEEDS, _QUICK_SEEDS = 30, 1
# Seconds: storms have separate bounds for the operations that they wait for.
_LONGEST = 1800


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash", "crash suite")
    group.addoption("--quick", action="store_true", help="a representative part of the suite, in a few minutes")
    group.addoption("--seed", type=int, default=1, help="the first seed of the storms (default: 1)")
    group.addoption("--seeds", type=int, help=f"how many seeds (default: {_SEEDS}, with --quick {_QUICK_SEEDS})")
    group.addoption("--database", choices=("sqlite", "postgresql", "mariadb"), default="sqlite")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: left out with --quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        item.add_marker(pytest.mark.timeout(_LONGEST))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument ``seed`` once per seed."""
    if "seed" in metafunc.fixturenames:
        config = metafunc.config
        count = config.getoption("--seeds") or (_QUICK_SEEDS if config.getoption("--quick") else _SEEDS)
        first = config.getoption("--seed")
        metafunc.parametrize("seed", range(first, first + count))


@pytest.fixture(scope="session")
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """Return the database server of ``--database``, or None for SQLite."""
    start = {"sqlite": contextlib.nullcontext, "postgresql": start_postgresql, "mariadb": start_mariadb}
    with start[request.config.getoption("--database")]() as server:
        yield server


@pytest.fixture(scope="session")
def new_database(database: Server | None) -> Callable[[], str | None]:
    """Return a function that creates an empty database and returns its URL, or None for a Cluster's own SQLite file."""
    return database.new_database if database else lambda: None
