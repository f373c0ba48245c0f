"""Nodes that a host shares with others: which of them the host manages."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection
from typing import Any

from nova.compute.reports import NodeReports


class Driver:
    def __init__(self) -> None:
        self.managed: Collection[str] = ()

    def shared_nodes(self) -> list[str]:
        return ["a", "b"]

    def manage(self, nodes: Collection[str]) -> None:
        self.managed = nodes


class SlowGuests:
    """A conductor whose first response arrives after the second one, if there is a second request meanwhile."""

    def __init__(self) -> None:
        self.first, self.second, self._number = threading.Event(), threading.Event(), itertools.count()

    def share_nodes(self, _ctx: Any, _host: str, _uuids: list[str]) -> list[str]:
        if next(self._number):
            self.second.set()
            return ["a", "b"]
        self.first.set()
        self.second.wait(0.5)
        return ["a"]


def test_newest_response_wins_if_two_threads_request_the_nodes() -> None:
    """A node that is left out of the next report would be removed from the database."""
    driver, guests = Driver(), SlowGuests()
    reports = NodeReports("h1", driver, guests)  # type: ignore[arg-type]
    other = threading.Thread(target=reports.assign)
    other.start()
    assert guests.first.wait(10)
    newest = threading.Thread(target=reports.assign)
    newest.start()
    for thread in (newest, other):
        thread.join(10)
    assert driver.managed == {"a", "b"}
