"""Options of the fuzz suite: how many requests, on which database, from which seed on."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.fuzz.world import World, start_world
from tests.integration.databases import start_postgresql

# On each database.
_ALL, _QUICK = 50_000, 1_000
# Seconds for 50,000 requests; a test's usual bound is for less.
_LONGEST = 5400


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "fuzz suite")
    with contextlib.suppress(ValueError):  # the crash suite's, when both run in one pytest
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
    """The requests of one test."""
    asked = request.config.getoption("--requests")
    return int(asked) if asked else _QUICK if request.config.getoption("--quick") else _ALL


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path, amount: int) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        url = ""
        if request.param == "postgresql":
            url = stack.enter_context(start_postgresql()).new_database()
        yield stack.enter_context(start_world(tmp_path, url, debug=amount <= 5000))
