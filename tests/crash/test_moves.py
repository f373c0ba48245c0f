"""Evacuation of a down host that returns during or after each step.

The host returns with all its guests still running, as after a network partition of its nova-compute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from nova.objects.servers import states
from nova.operations.evacuate import Evacuate
from tests.crash import invariants
from tests.crash.rounds import Operate
from tests.crash.steps import Case, Hold, Points, When, ordinary
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually

SOURCE, DESTINATION = "compute-1", "compute-2"
# Seconds for a boot.
_PREPARES = 40.0
_STEPS = [Case(Evacuate, step) for step in ordinary(Evacuate)]
_UNDONE = [Case(Evacuate, step, undo=True) for step in ordinary(Evacuate) if step.undo]


class Evacuation:
    """Servers on a source host that is then killed, with an evacuation per case, held at the step of the case."""

    def __init__(self, nova: Cluster, points: Points, operate: Operate, cases: list[tuple[Case, When]]) -> None:
        self.nova, self.points = nova, points
        self.names = {f"{when}-{case}-{time.monotonic_ns()}": (case, when) for case, when in cases}
        self.uuids = {name: self.boot(name) for name in self.names}
        for uuid in self.uuids.values():
            nova.api.wait(uuid, "ACTIVE", _PREPARES)
        nova.kill(SOURCE)
        assert self._force_down(True)
        self._holds: dict[str, Hold] = {
            name: case.hold(points, name, when) for name, (case, when) in self.names.items()}
        for uuid in self.uuids.values():
            operate(uuid, "evacuate")

    def boot(self, name: str) -> str:
        return self.nova.api.boot(name, host=SOURCE)

    def _force_down(self, down: bool) -> bool:
        """Return True if the host accepted to count as up: it must have removed its evacuated guests."""
        found = self.nova.api.get(f"/os-services?binary=nova-compute&host={SOURCE}")["services"][0]
        response = self.nova.api.request("PUT", f"/os-services/{found['id']}", {"forced_down": down})
        assert response.status_code in ((200,) if down else (200, 400)), response.text
        return response.status_code == 200

    def holders(self) -> set[str]:
        """Wait until all steps are held; return the processes that hold them."""
        return {hold.wait() for hold in self._holds.values()}

    def source_returns(self) -> None:
        """Wait until the source host runs, is up, and has compared its guests for the first time."""
        self.nova.start(SOURCE)
        eventually(lambda: self._force_down(False), invariants.BOUND, f"{SOURCE} is reported as up again", interval=0.3)
        self.nova.wait_ready()

    def release(self) -> None:
        self.points.release_all()

    def on(self, host: str) -> set[str]:
        """Return those servers that have a guest on this host."""
        return set(self.uuids.values()) & invariants.guests_of(self.nova)[host].keys()

    def ends(self, status: str = "ACTIVE") -> None:
        """Check all invariants, and that every server is on the destination or, if its evacuation failed, only on the
        source."""
        invariants.check(self.nova, self.uuids.values())
        servers = self.nova.api.servers()
        here = DESTINATION if status == "ACTIVE" else SOURCE
        found = {name: (servers[uuid]["status"], servers[uuid]["OS-EXT-SRV-ATTR:host"])
                 for name, uuid in self.uuids.items()}
        assert found == dict.fromkeys(self.uuids, (status, here))
        if status == "ACTIVE":
            assert self.on(DESTINATION) == set(self.uuids.values())
            assert self.on(SOURCE) == set()
            made = [entry for entry in invariants.journal(self.nova) if entry[2] in self.on(DESTINATION)]
            assert {entry[:2] for entry in made if entry[1] == SOURCE} == {("create", SOURCE), ("remove", SOURCE)}
        else:
            assert self.on(DESTINATION) == set()


@pytest.fixture
def evacuate(nova: Cluster, points: Points, operate: Operate) -> Iterator[Callable[..., Evacuation]]:
    yield lambda cases: Evacuation(nova, points, operate, cases)
    points.release_all()
    nova.restore(invariants.BOUND)


@pytest.mark.full
def test_evacuation_completes_when_the_source_returns_before_the_first_step(
        evacuate: Callable[..., Evacuation]) -> None:
    moved = evacuate([(_STEPS[0], "before")])
    moved.holders()
    moved.source_returns()
    assert moved.on(SOURCE) == set(moved.uuids.values()), "guests were removed before a destination was claimed"
    moved.release()
    moved.ends()


def test_evacuation_completes_when_the_source_returns_during_any_step(evacuate: Callable[..., Evacuation]) -> None:
    moved = evacuate([(case, when) for case in _STEPS for when in ("before", "after")])
    moved.holders()
    moved.source_returns()
    # The source must remove a guest as soon as the server has a destination: never two guests on one disk.
    placed = {uuid for name, uuid in moved.uuids.items() if moved.names[name][0] is not _STEPS[0]}
    eventually(lambda: not moved.on(SOURCE) & placed, invariants.BOUND,
               "the source has removed the guests of servers with a destination")
    assert moved.on(SOURCE) == set(moved.uuids.values()) - placed
    moved.release()
    moved.ends()


def test_evacuation_completes_when_its_worker_is_killed(nova: Cluster, evacuate: Callable[..., Evacuation]) -> None:
    moved = evacuate([(case, when) for case in _STEPS for when in ("before", "after")])
    killed = moved.holders()
    nova.kill(*killed)
    moved.release()
    moved.nova.start(*killed)
    moved.nova.api_returns()
    moved.source_returns()
    moved.ends()


def test_evacuation_completes_when_the_source_returns_after_the_end(nova: Cluster,
                                                                    evacuate: Callable[..., Evacuation]) -> None:
    moved = evacuate([(case, "after") for case in _STEPS])
    moved.release()
    nova.all_active(list(moved.uuids.values()), invariants.BOUND)
    moved.source_returns()
    moved.ends()


@pytest.mark.parametrize("returns", ["middle", pytest.param("end", marks=pytest.mark.full)])
def test_failed_evacuation_leaves_the_server_on_the_source_only(
        nova: Cluster, evacuate: Callable[..., Evacuation], returns: str) -> None:
    """Hold every compensation of an evacuation; the source keeps the guests and disks of the servers."""
    moved = evacuate([(case, when) for case in _UNDONE for when in ("before", "after")])
    moved.holders()
    if returns == "middle":
        moved.source_returns()
    moved.release()
    nova.wait_settled(list(moved.uuids.values()), invariants.BOUND)
    if returns == "end":
        moved.source_returns()
    moved.ends("ERROR")
    assert {server["OS-EXT-STS:vm_state"] for server in nova.api.servers().values()} == {states.ERROR}
