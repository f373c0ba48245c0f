"""Options of the fuzz suite: number of requests, database, first seed."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.fuzz.world import World, start_world
from tests.integration.databases import start_postgresql

# Number of requests on each database.
_ALL, _QUICK = 50_000, 500
# Seconds for 50,000 requests, more than the usual timeout of a test.
_LONGEST = 5400


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "fuzz suite")
    with contextlib.suppress(ValueError):  # defined by the crash suite if both run in the same pytest
        group.addoption("--quick", action="store_true", help="a bounded part")
    group.addoption("--requests", type=int, help=f"how many (default: {_ALL}, with --quick {_QUICK})")
    group.addoption("--fuzz-seed", type=int, default=1, help="the first seed (default: 1)")
    group.addoption("--fuzz-database", choices=("sqlite", "postgresql", "both"), default="both")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--fuzz-database")
        metafunc.parametrize("world", ["sqlite", "postgresql"] if chosen == "both" else [chosen], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(_LONGEST))


@pytest.fixture
def amount(request: pytest.FixtureRequest) -> int:
    """Return the number of requests of a test."""
    asked = request.config.getoption("--requests")
    return int(asked) if asked else _QUICK if request.config.getoption("--quick") else _ALL


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path, amount: int) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        url = ""
        if request.param == "postgresql":
            url = stack.enter_context(start_postgresql()).new_database()
        yield stack.enter_context(start_world(tmp_path, url, debug=amount <= 5000))
