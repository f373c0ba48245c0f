"""Members of etcd and API servers of the control plane are killed and frozen at each step of a move.

Chapter 11 of the facts, and the crash tests of the design: no object is lost, no fenced workload runs twice, and the
replicas are exact at the end.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.faults.ensemble import MEMBERS, SERVERS, Ensemble, Strike, StruckFederation
from tests.integration.federator.federation import STOPS, policy
from tests.integration.federator.partition import Witness

pytestmark = pytest.mark.timeout(1800)
NAMESPACE = "struck"
FENCE_AFTER = 20
CONFIGS = 10
_MOST = 60  # writes of a move
_CONVERGED = 300.0  # seconds: API servers and the scheduler start again, on a machine under load


@pytest.fixture(scope="module")
def federation(members: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[StruckFederation]:
    directory = tmp_path_factory.mktemp("struck")
    nova = clusters.install_definitions(clusters.start([Ensemble(directory / "nova")])[0])
    try:
        with StruckFederation(nova, members[:2], directory / "federation") as federation:
            nova.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *policies(0))
            labels = {"struck": "group", "app": "web"}
            nova.apply(deployment("web", 2, NAMESPACE, labels), *(
                {"apiVersion": "v1", "kind": "ConfigMap", "data": {"number": str(number)},
                 "metadata": {"name": f"conf-{number}", "namespace": NAMESPACE, "labels": labels}}
                for number in range(CONFIGS)), deployment("single", 2, NAMESPACE, {"struck": "fenced"}))
            until(lambda: converged(federation, 0), _CONVERGED)
            yield federation
            for member in members[:2]:
                member.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    finally:
        clusters.remove([nova])


def policies(number: int) -> list[dict[str, Any]]:
    """Return the policies that place a group and a fenced workload in a member, by turns."""
    places = [f"member-{number % 2 + 1}"]
    return [policy("group", {"struck": "group"}, places, groupBy={"labelKey": "app"}),
            policy("fenced", {"struck": "fenced"}, places, failover="Fenced", fenceAfterSeconds=FENCE_AFTER)]


def succeeds(action: Callable[[], object]) -> bool:
    """Return True if an action on API servers succeeds, which it need not do during a strike."""
    try:
        action()
    except AssertionError:
        return False
    return True


def copies(member: Cluster) -> dict[str, tuple[str, Any]]:
    """Return the copies of a member: kind and name -> uid, and ready replicas or data."""
    items = member.get("deployments,configmaps", "-n", NAMESPACE, "-l", "struck")["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": (
        item["metadata"]["uid"], item["data"]["number"] if item["kind"] == "ConfigMap" else item.get(
            "status", {}).get("readyReplicas")) for item in items}


def converged(federation: StruckFederation, number: int) -> bool:
    """Return True if all copies are in the member of the policies, complete, and nowhere else."""
    here, there = federation.members[number % 2], federation.members[1 - number % 2]
    expected = {"Deployment/web": 2, "Deployment/single": 2, **{
        f"ConfigMap/conf-{number}": str(number) for number in range(CONFIGS)}}
    with contextlib.suppress(AssertionError):
        schedules = federation.nova.get("schedules", "--all-namespaces")["items"]
        return {item["metadata"]["namespace"] for item in schedules} == {f"nova-cluster-{here.name}"} and len(
            schedules) == 2 and {key: value for key, (_uid, value) in copies(here).items()
                                 } == expected and not copies(there)
    return False


def fences(federation: StruckFederation) -> int:
    """Return how often agents have stopped workloads."""
    return sum(agent.output().count(STOPS) for agent in federation.agents.values())


def victims(federation: StruckFederation, name: str) -> tuple[str, ...]:
    """Return the parts that a fault hits."""
    if not name.startswith("etcd"):
        return {"servers": SERVERS, "server of agents": SERVERS[:1], "server of scheduler": SERVERS[1:]}[name]
    leader = until(federation.ensemble.leader)
    return (leader,) if name == "etcd leader" else tuple(member for member in MEMBERS if member != leader)[:1]


_FAULTS = [("etcd follower", signal.SIGKILL), ("etcd leader", signal.SIGKILL), ("etcd follower", signal.SIGSTOP),
           ("etcd leader", signal.SIGSTOP), ("servers", signal.SIGKILL), ("servers", signal.SIGSTOP),
           ("server of agents", signal.SIGKILL), ("server of agents", signal.SIGSTOP),
           ("server of scheduler", signal.SIGKILL), ("server of scheduler", signal.SIGSTOP)]


@pytest.mark.parametrize(("name", "number", "first", "step"), [("etcd leader", signal.SIGKILL, 1, 5), *(pytest.param(
    *fault, first, 4, marks=pytest.mark.slow) for first in (1, 2, 3, 4) for fault in _FAULTS)])
def test_parts_of_the_control_plane_may_fail_at_each_write_of_a_move(federation: StruckFederation, name: str,
                                                                     number: int, first: int, step: int) -> None:
    """A killed part starts again after a second, a frozen one goes on after five seconds. The faults happen at each
    ``step``-th write, from the write ``first`` on. API servers need half a minute to start on a machine under load."""
    seconds = 1.0 if number == signal.SIGKILL else 5.0
    moves = 0
    with Witness(federation.members, NAMESPACE) as witness:
        for writes in range(first, _MOST, step):
            moves += 1
            federation.trigger.arm(writes, Strike(victims(federation, name), number, seconds))
            until(lambda moves=moves: succeeds(lambda: federation.nova.apply(*policies(moves))))
            until(lambda moves=moves: converged(federation, moves), _CONVERGED)
            if federation.trigger.disarm():
                break
        until(lambda: not federation.trigger.recoveries)
        federation.nova.apply(*policies(0))
        until(lambda: converged(federation, 0), _CONVERGED)
        until(lambda: witness.running.get("single") == {federation.members[0].name: 2})
    print(f"{name}, signal {number}: {moves} moves, the last without fault; restarted: {federation.restarts}")
    assert moves > 2
    assert not [overlap for overlap in witness.overlaps if overlap.startswith("single")]


@pytest.mark.parametrize(("write", "number", "seconds"), [(3, signal.SIGKILL, 4), *(pytest.param(
    write, number, seconds, marks=pytest.mark.slow) for number in (signal.SIGKILL, signal.SIGSTOP)
    for seconds in (4, 40) for write in (0, 3, 9))])
def test_the_majority_of_etcd_is_lost(federation: StruckFederation, write: int, number: int, seconds: int) -> None:
    """Two members fail at a write of a move, or (0) at rest: agents fence after the fence time only, and let the
    workloads run again by themselves. Copies that do not move are neither changed nor created again."""
    first, _second = federation.members
    strike = Strike(victims(federation, "etcd leader") + victims(federation, "etcd follower"), number, seconds)
    before, stopped = copies(first), fences(federation)
    with Witness(federation.members, NAMESPACE) as witness:
        until(lambda: witness.running.get("single") == {first.name: 2})
        begin = time.monotonic()
        if write:
            federation.trigger.arm(write, strike)
            until(lambda: succeeds(lambda: federation.nova.apply(*policies(1))))
            until(lambda: federation.trigger.recoveries or begin + seconds < time.monotonic(), 60)
        else:
            federation.trigger.strike(strike)
            if seconds > FENCE_AFTER:
                until(lambda: not witness.running.get("single"), seconds)
                assert time.monotonic() - begin > FENCE_AFTER / 2, "stopped without need"
                assert witness.running.get("web") == {first.name: 2}
        until(lambda: not federation.trigger.recoveries, seconds + 30)
        federation.trigger.disarm()
        until(lambda: converged(federation, 1 if write else 0), _CONVERGED)
        if not write:
            assert copies(first) == before
        if seconds < FENCE_AFTER / 2:
            assert fences(federation) == stopped, "stopped without need"
        federation.nova.apply(*policies(0))
        until(lambda: converged(federation, 0), _CONVERGED)
    assert not [overlap for overlap in witness.overlaps if overlap.startswith("single")]


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_of_etcd_is_frozen_for_a_minute(federation: StruckFederation, member: str) -> None:
    """API servers notice a frozen member late: until then their watches may be silent, while writes succeed. Clusters
    whose heartbeats are stored must not lose their workloads."""
    first, _second = federation.members
    before, stopped = copies(first), fences(federation)
    with Witness(federation.members, NAMESPACE) as witness:
        federation.trigger.strike(Strike((member,), signal.SIGSTOP, 60))
        until(lambda: not federation.trigger.recoveries, 90)
        until(lambda: converged(federation, 0), _CONVERGED)
    assert copies(first) == before
    print(f"{member} was frozen: {fences(federation) - stopped} workloads were stopped")
    assert not [overlap for overlap in witness.overlaps if overlap.startswith("single")]
