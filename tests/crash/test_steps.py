"""Kill the process that runs a step, or freeze it for longer than its lease, during the step.

The tests cover every step and every compensation of every operation, with a server each. "before": the step started
without any effect; "after": the work is done but not reported. Afterwards the operation must complete, and no server
may be built twice.
"""

from __future__ import annotations

import pytest
import requests

from tests.crash import invariants
from tests.crash.rounds import Operate, Round
from tests.crash.steps import Case, Points, When, cases
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually

_WHENS = ("before", "after")


def at(place: str) -> list[Case]:
    return [case for case in cases() if case.place == place]


def answers(nova: Cluster) -> bool:
    """Return True if users receive responses."""
    try:
        return nova.api.request("GET", "/servers?limit=1").status_code == 200
    except requests.RequestException:  # no API listens yet
        return False


def kill(nova: Cluster, points: Points, *names: str) -> None:
    """Kill these processes, release all points, start the processes, and wait until the API responds."""
    nova.kill(*names)
    points.release_all()
    nova.start(*names)
    eventually(lambda: answers(nova), 60, "the API answers")


def taken_over(nova: Cluster) -> int:
    """Return how often a conductor continued the work of another process."""
    return sum(process.log.read_bytes().count(b"Took over ") for process in nova.processes.values())


@pytest.mark.parametrize(("place", "when"), [
    pytest.param("compute", "before", marks=pytest.mark.full), ("compute", "after"), ("conductor", "before"),
    pytest.param("conductor", "after", marks=pytest.mark.full)])
def test_operations_complete_after_kills_during_every_step(nova: Cluster, points: Points, operate: Operate, place: str,
                                                           when: When) -> None:
    everything = Round(nova, points, at(place), when, operate)
    kill(nova, points, *everything.holders())
    everything.ends()


@pytest.mark.parametrize(("place", "when"), [
    ("compute", "before"), pytest.param("compute", "after", marks=pytest.mark.full),
    pytest.param("conductor", "before", marks=pytest.mark.full), ("conductor", "after")])
def test_worker_frozen_for_longer_than_its_lease_is_fenced_off(
        nova: Cluster, points: Points, operate: Operate, place: str, when: When) -> None:
    everything = Round(nova, points, at(place), when, operate)
    # Freeze them one after the other: a running conductor must detect the expired lease.
    for name in everything.holders():
        before = taken_over(nova)
        nova.freeze(name)
        eventually(lambda before=before: taken_over(nova) > before, 60,
                   "another process has taken over the operation", interval=0.5)
        everything.release(name)
        nova.thaw(name)
    everything.ends()


@pytest.mark.full
@pytest.mark.parametrize("when", _WHENS)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_operation_completes_after_a_kill_during_this_step(nova: Cluster, points: Points, operate: Operate, case: Case,
                                                           when: When) -> None:
    one = Round(nova, points, [case], when, operate)
    kill(nova, points, *one.holders())
    one.ends()


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.full), "after"])
def test_returning_host_whose_builds_were_rescheduled_is_fenced_off(nova: Cluster, points: Points, operate: Operate,
                                                                    when: When) -> None:
    """Freeze a host until it counts as down and its builds are rescheduled; then let it continue its steps."""
    chosen = [case for case in at("compute") if not case.undo]
    everything = Round(nova, points, chosen, when, operate)
    holders = everything.holders()
    host = max(holders, key=[hold.holder() for hold in everything.holds.values()].count)
    mine = {uuid for uuid, server in nova.api.servers().items()
            if server["OS-EXT-SRV-ATTR:host"] == host and uuid in everything.ids}
    for other in set(holders) - {host}:
        everything.release(other)
    nova.freeze(host)

    def given_up() -> bool:
        servers = nova.api.servers()
        return not any(servers[uuid]["OS-EXT-STS:task_state"] for uuid in mine & servers.keys())

    eventually(given_up, 60, f"the operations on {host} have ended", interval=0.5)
    points.release_all()
    nova.thaw(host)
    everything.settle()
    builds = [name for name, case in everything.names.items() if case.operation.name == "build"]
    servers = nova.api.servers()
    assert {servers[everything.uuids[name]]["status"] for name in builds} == {"ACTIVE"}


@pytest.mark.parametrize("end", ["kill", pytest.param("release", marks=pytest.mark.full)])
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.full), "after"])
def test_delete_during_every_step_leaves_no_leftovers(nova: Cluster, points: Points, operate: Operate, when: When,
                                                      end: str) -> None:
    """Delete servers during every step; the delete preempts the operation, whose step ends or dies without effect."""
    chosen = [case for case in cases() if not case.operation.rules.preempts]
    everything = Round(nova, points, chosen, when, operate)
    holders = everything.holders()
    for uuid in everything.ids:
        nova.api.delete(f"/servers/{uuid}")
    if end == "kill":
        kill(nova, points, *holders)
    else:
        points.release_all()
    invariants.check(nova, everything.ids, deleted=everything.ids)
