"""No double run: fenced workloads in a federation whose agents are cut off from the control plane. Facts promise P2.

Fenced workloads stop after 10 s of silence; they are placed elsewhere after 41 s, when their pods have certainly ended.
The clocks of the agents are seven minutes slow and fast.
"""

from __future__ import annotations

import datetime
import json
import random
import signal
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova.federator.controllers.clusters import SETTLED_AFTER
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import STOPS, policy
from tests.integration.federator.partition import CuttableFederation, Witness

PIN = "nova.elotl.co/cluster"
FENCE_AFTER = 10
RELEASED = 90.0  # seconds within which a fenced workload runs elsewhere, on a machine under load


@pytest.fixture(scope="module")
def federation(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory,
               ) -> Iterator[CuttableFederation]:
    federation = CuttableFederation(control_plane, members[:2], tmp_path_factory.mktemp("partition"), "cut")
    try:
        with federation:
            yield federation
    finally:
        for cluster in federation.clusters():
            federation.nova.kubectl("annotate", "cluster", cluster, "nova.elotl.co/orphan=true")
            federation.nova.kubectl("delete", "cluster", cluster, "--wait=false")


@pytest.fixture
def namespace(federation: CuttableFederation, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a namespace of the control plane that only this test uses; partitions are healed afterwards."""
    name = f"p{zlib.crc32(request.node.name.encode())}"
    federation.nova.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    for relay in federation.relays.values():
        relay.heal()
    federation.nova.kubectl("delete", "namespace", name, "--wait=false")
    federation.nova.kubectl("delete", "schedulepolicies", "--all")


def workload(name: str, namespace: str, replicas: int = 2, **pod_annotations: str) -> dict[str, Any]:
    return deployment(name, replicas, namespace, {"app": name}, pod_annotations=pod_annotations)


def fenced(federation: CuttableFederation, name: str, *clusters: str, failover: str = "Fenced") -> dict[str, Any]:
    return policy(name, {"app": name}, clusters or federation.clusters(), failover=failover,
                  fenceAfterSeconds=FENCE_AFTER)


def replicas(federation: CuttableFederation, namespace: str, name: str) -> dict[str, int]:
    """Return the replicas of a Deployment per member that has it."""
    result = {}
    for member in federation.members:
        for obj in member.get("deployment", "-n", namespace, f"--field-selector=metadata.name={name}")["items"]:
            result[member.name] = obj["spec"]["replicas"]
    return result


def schedules(federation: CuttableFederation, namespace: str, name: str) -> list[str]:
    """Return the clusters that have a schedule of a Deployment."""
    group = f"Deployment.apps/{namespace}/{name}"
    return [item["metadata"]["namespace"].removeprefix("nova-cluster-") for item in federation.nova.get(
        "schedules", "--all-namespaces")["items"] if item["spec"]["group"] == group]


def pin(federation: CuttableFederation, namespace: str, name: str, cluster: str) -> None:
    federation.nova.kubectl("annotate", "--overwrite", "deployment", name, "-n", namespace, f"{PIN}={cluster}")


def test_fenced_workloads_never_run_twice(federation: CuttableFederation, namespace: str) -> None:
    """Promise P2: a cluster is cut off before a move, during a move, and during an edit of the policy; it returns after
    its workloads were placed elsewhere, also while they are not ready there."""
    first, second = federation.members
    near, far = federation.clusters()
    federation.nova.apply(*(fenced(federation, name, near) for name in ("steady", "broken", "moved", "edited")),
                          workload("steady", namespace), workload("moved", namespace), workload("edited", namespace),
                          workload("broken", namespace, **{"lab/start-delay": "0.1"}))
    federation.nova.apply(fenced(federation, "edited", near, failover="Never"))
    with Witness(federation.members, namespace) as witness:
        until(lambda: all(witness.running.get(name) == {first.name: 2} for name in (
            "steady", "broken", "moved", "edited")))
        until(lambda: all(item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"]
                          for item in federation.nova.get("schedules", "-n", f"nova-cluster-{near}")["items"]))
        for name in ("steady", "broken"):
            federation.nova.apply(fenced(federation, name))
        time.sleep(2)
        federation.relays[first.name].cut()
        federation.nova.apply(fenced(federation, "moved", far), fenced(federation, "edited"))
        never = {"spec": {"template": {"metadata": {"annotations": {"lab/never-ready": "true"}}}}}
        federation.nova.kubectl("patch", "deployment", "broken", "-n", namespace, "-p", json.dumps(never))
        for name in ("steady", "moved", "broken"):
            until(lambda name=name: witness.running.get(name) == {second.name: 2}, RELEASED)
        assert replicas(federation, namespace, "edited") == {first.name: 2}, "its agent has not confirmed the fence"
        assert replicas(federation, namespace, "steady")[first.name] == 0
        federation.relays[first.name].heal()
        for name in ("steady", "moved", "broken"):
            until(lambda name=name: replicas(federation, namespace, name) == {second.name: 2})
            until(lambda name=name: schedules(federation, namespace, name) == [far])
        until(lambda: witness.running.get("edited") == {first.name: 2})
        assert witness.samples > 50
        assert STOPS in federation.agents[first.name].output()
    assert not witness.overlaps


def test_a_return_before_the_fence_time_changes_nothing(federation: CuttableFederation, namespace: str) -> None:
    """Promise P2: workloads that the fence stopped run again in the same cluster if they were not placed elsewhere."""
    first = federation.members[0]
    near = federation.clusters()[0]
    federation.nova.apply(fenced(federation, "short", near), workload("short", namespace))
    with Witness(federation.members, namespace) as witness:
        until(lambda: witness.running.get("short") == {first.name: 2})
        federation.nova.apply(fenced(federation, "short"))
        time.sleep(2)
        federation.relays[first.name].cut()
        until(lambda: not witness.running.get("short"), 30)
        federation.relays[first.name].heal()
        until(lambda: witness.running.get("short") == {first.name: 2}, 30)
        assert schedules(federation, namespace, "short") == [near]
    assert not witness.overlaps


def test_an_agent_that_ends_again_and_again_fences_in_time(federation: CuttableFederation, namespace: str) -> None:
    """Each start of an agent has a grace time in which the control plane must answer. Starts do not extend it."""
    first, second = federation.members
    near, _far = federation.clusters()
    agent = federation.agents[first.name]
    federation.nova.apply(fenced(federation, "looping", near), workload("looping", namespace))
    with Witness(federation.members, namespace) as witness:
        until(lambda: witness.running.get("looping") == {first.name: 2})
        federation.nova.apply(fenced(federation, "looping"))
        time.sleep(2)
        federation.relays[first.name].cut()
        while not witness.running.get("looping", {}).get(second.name):
            agent.stop(signal.SIGKILL)
            agent.start()
            time.sleep(6)
        assert replicas(federation, namespace, "looping") == {first.name: 0, second.name: 2}
        federation.relays[first.name].heal()
        until(lambda: replicas(federation, namespace, "looping") == {second.name: 2})
        assert not witness.overlaps
        until(lambda: "silent-since" not in first.kubectl("get", "secret", "-n", federation.prefix, "-o", "yaml"))


def test_pinned_workloads_never_run_twice(federation: CuttableFederation, namespace: str) -> None:
    """Annotations choose the cluster of a workload; that it must not run twice is still what its policy says."""
    first, second = federation.members
    near, far = federation.clusters()
    federation.nova.apply(fenced(federation, "pinned", near), workload("pinned", namespace))
    with Witness(federation.members, namespace) as witness:
        for number, member in enumerate((first, second, first)):
            pin(federation, namespace, "pinned", (near, far)[number % 2])
            until(lambda member=member: witness.running.get("pinned") == {member.name: 2})
    assert not witness.overlaps


@pytest.mark.slow
def test_a_deleted_cluster_is_not_given_up_before_its_agent_has_confirmed_the_fence(
        federation: CuttableFederation, namespace: str) -> None:
    """Clusters are drained before they are removed. If a cluster is unreachable, that ends without its agent, but not
    while pods of a workload run there that was not fenced before the partition."""
    first, second = federation.members
    near, far = "cut-drained", federation.clusters()[1]
    agent = federation.agent(first, near, "", "--namespace=drained")
    try:
        until(lambda: federation.ready(near) == "True", RELEASED)
        federation.nova.apply(fenced(federation, "drained", near, failover="Never"), workload("drained", namespace))
        with Witness(federation.members, namespace) as witness:
            until(lambda: witness.running.get("drained") == {first.name: 2})
            until(lambda: all(item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"]
                              for item in federation.nova.get("schedules", "-n", f"nova-cluster-{near}")["items"]))
            federation.relays[first.name].cut()
            federation.nova.apply(fenced(federation, "drained", near, far))
            federation.nova.kubectl("delete", "cluster", near, "--wait=false")
            until(lambda: federation.ready(near) == "Unknown", RELEASED)
            time.sleep(FENCE_AFTER + 10)
            assert witness.running.get("drained") == {first.name: 2}
            federation.relays[first.name].heal()
            until(lambda: witness.running.get("drained") == {second.name: 2}, RELEASED)
            until(lambda: not federation.ready(near), RELEASED)
        assert not witness.overlaps
    finally:
        agent.stop(signal.SIGKILL)


def renewal(federation: CuttableFederation, cluster: str) -> datetime.datetime:
    """Return when an agent renewed its lease last, by its own clock."""
    lease = federation.nova.get("lease", "heartbeat", "-n", f"nova-cluster-{cluster}")
    return datetime.datetime.fromisoformat(lease["spec"]["renewTime"])


def next_renewal(federation: CuttableFederation, cluster: str) -> datetime.datetime:
    before = renewal(federation, cluster)
    until(lambda: renewal(federation, cluster) > before)
    return renewal(federation, cluster)


def test_a_lost_renewal_is_repeated_before_the_fence_time(federation: CuttableFederation, namespace: str) -> None:
    """A pause of the network of less than the shortest fence time does not stop workloads."""
    first, cluster = federation.members[0], federation.clusters()[0]
    federation.nova.apply(fenced(federation, "blink", cluster), workload("blink", namespace))
    agent = federation.agents[first.name]
    with Witness(federation.members, namespace) as witness:
        until(lambda: witness.running.get("blink") == {first.name: 2})
        time.sleep(4)  # the agent renews its lease at the shorter interval of this fence time by now
        reported, before = len(agent.output()), next_renewal(federation, cluster)
        federation.relays[first.name].cut()
        until(lambda: "the Lease was not renewed" in agent.output()[reported:], interval=0.02)
        federation.relays[first.name].heal()
        assert (next_renewal(federation, cluster) - before).total_seconds() < 0.9 * FENCE_AFTER
        assert STOPS not in agent.output()[reported:]
        assert witness.running.get("blink") == {first.name: 2}


def test_a_new_fenced_workload_is_not_stopped_between_two_renewals(federation: CuttableFederation,
                                                                   namespace: str) -> None:
    """A lease is renewed each ten seconds, which is the shortest fence time, until the first fenced copy exists."""
    first, cluster = federation.members[0], federation.clusters()[0]
    copies = f"nova.elotl.co/target-cluster={cluster}"  # other tests may have left copies of their agents
    until(lambda: not first.get("deployments", "--all-namespaces", "-l", copies)["items"])
    agent = federation.agents[first.name]
    federation.nova.apply(fenced(federation, "young", cluster))
    next_renewal(federation, cluster)
    before, reported = time.monotonic(), len(agent.output())
    agent.send(signal.SIGSTOP)  # it receives the schedule only shortly before the next renewal
    federation.nova.apply(workload("young", namespace))
    until(lambda: schedules(federation, namespace, "young"))
    time.sleep(max(0.0, before + FENCE_AFTER - 0.7 - time.monotonic()))
    agent.send(signal.SIGCONT)
    with Witness(federation.members, namespace) as witness:
        until(lambda: witness.running.get("young") == {first.name: 2})
    time.sleep(2)
    assert STOPS not in agent.output()[reported:]


@pytest.mark.slow
def test_groups_return_to_their_preferred_cluster_once_it_has_settled(federation: CuttableFederation,
                                                                      namespace: str) -> None:
    """Promise P1: groups move when their cluster is lost, and return by themselves, one after the other."""
    first, second = federation.members
    ordered = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In",
                                     "values": federation.clusters()}]}
    names = [f"back-{number}" for number in range(3)]
    federation.nova.apply(policy("back", {"tier": "back"}, failover="AvailabilityFirst",
                                 orderedClusterSelector=ordered),
                          *(deployment(name, 1, namespace, {"app": name, "tier": "back"}) for name in names))
    with Witness(federation.members, namespace) as witness:
        until(lambda: all(witness.running.get(name) == {first.name: 1} for name in names))
        federation.relays[first.name].cut()
        until(lambda: all(second.name in witness.running.get(name, {}) for name in names), RELEASED)
        federation.relays[first.name].heal()
        healed = time.monotonic()
        until(lambda: all(witness.running.get(name) == {second.name: 1} for name in names), 60)
        until(lambda: any(witness.running.get(name) == {first.name: 1} for name in names), 120)
        assert time.monotonic() - healed > SETTLED_AFTER - 10, "the cluster might fail again"
        until(lambda: all(witness.running.get(name) == {first.name: 1} for name in names), 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_partitions_never_run_a_workload_twice(federation: CuttableFederation, namespace: str,
                                                      seed: int) -> None:
    """Promise P2: cuts, returns, moves, and restarts of scheduler and agents at random times."""
    chance = random.Random(seed)
    names = [f"seed-{number}" for number in range(4)]
    federation.nova.apply(*(fenced(federation, name) for name in names), *(workload(name, namespace) for name in names))
    with Witness(federation.members, namespace) as witness:
        until(lambda: all(sum(witness.running.get(name, {}).values()) == 2 for name in names))
        for _step in range(chance.randint(3, 8)):
            member = chance.choice(federation.members)
            match chance.randrange(6):
                case 0 | 1:
                    federation.relays[member.name].cut()
                case 2:
                    federation.relays[member.name].heal()
                case 3:
                    pin(federation, namespace, chance.choice(names), chance.choice(federation.clusters()))
                case 4:
                    federation.agents[member.name].stop(9)
                    federation.agents[member.name].start()
                case 5:
                    federation.scheduler.stop(9)
                    federation.scheduler.start()
            time.sleep(chance.choice((0.2, 3.0, 12.0, 45.0)))
        for relay in federation.relays.values():
            relay.heal()
        until(lambda: all(list(witness.running.get(name, {}).values()) == [2] and len(
            schedules(federation, namespace, name)) == 1 for name in names), 180)
    assert not witness.overlaps
