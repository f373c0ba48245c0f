"""Fixtures of the integration tests, and logs of the running clusters in reports of failed tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import cluster
from tests.integration.databases import mariadb, postgresql  # noqa: F401 (fixtures)
from tests.integration.libvirt.driver_pair import lab_hosts_fixture  # noqa: F401 (fixture)
from tests.integration.libvirt_fixtures import (  # noqa: F401 (fixtures)
    driver_fixture,
    events_fixture,
    guest_image_fixture,
    libvirt_daemon_fixture,
    state_fixture,
)
from tests.integration.network.linuxnet_lab import lab_fixture  # noqa: F401 (fixture)
from tests.integration.rabbit import Rabbit, start_rabbitmq

# Fixtures of real guests, of clusters and of the benchmark.
_LONG = {"guest_image", "cloud", "nova", "results", "list_url"}


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Rabbit]:
    with start_rabbitmq() as rabbit:
        yield rabbit


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with long tests first, so that no pytest-xdist worker is left with a long test at the end."""
    long = {item.path for item in items if _LONG & set(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: item.path not in long)


def pytest_sessionstart() -> None:
    """Handle SIGTERM like Ctrl-C, so that fixtures stop their servers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    if report.failed and hasattr(report.longrepr, "addsection"):
        for running in cluster.RUNNING:
            for title, text in running.logs():
                report.longrepr.addsection(title, text)
    return report
