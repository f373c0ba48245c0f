"""Claims: a burst of Deployments fills clusters exactly. Facts promise P3: what is chosen counts as used at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nova.federator.api import quantity
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import PLACES, Federation, policy

NAMESPACE = "burst"
REQUEST = "900m"


@pytest.fixture(scope="module")
def federation(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory,
               ) -> Iterator[Federation]:
    with Federation(control_plane, members[:2], tmp_path_factory.mktemp("burst")) as federation:
        federation.nova.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield federation
        federation.nova.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        federation.nova.kubectl("delete", "schedulepolicies", "--all")
        until(lambda: not copies(federation), 120)


def room(federation: Federation) -> int:
    """Return how many pods of the burst fit on the nodes, as the agents report them."""
    total = 0
    for member in federation.members:
        report = federation.nova.get("clusterreport", "report", "-n", f"nova-cluster-{member.name}")["report"]
        total += sum(quantity.parse(node["available"]["cpu"]) // quantity.parse(REQUEST) for node in report["nodes"])
    return total


def copies(federation: Federation) -> list[dict[str, Any]]:
    """Return the Deployments of the burst in all members. A namespace that was never needed has none."""
    return [item for member in federation.members for item in member.get("deployments", "-n", NAMESPACE)["items"]]


@pytest.mark.parametrize("surplus", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_a_burst_fills_the_clusters_exactly(federation: Federation, surplus: int) -> None:
    """Promise P3: as many Deployments are placed as fit, no node is overcommitted; promise P5: the others are placed as
    soon as there is room, also after a restart of the scheduler."""
    fitting = room(federation)
    assert fitting >= 20
    federation.nova.apply(policy("burst", {"burst": "yes"}, [member.name for member in federation.members]))
    federation.nova.apply(*(deployment(f"burst-{number}", 1, NAMESPACE, {"burst": "yes"}, cpu=REQUEST)
                            for number in range(fitting + surplus)))

    def available() -> int:
        return sum(1 for item in copies(federation) if item.get("status", {}).get("availableReplicas"))
    until(lambda: len(copies(federation)) >= fitting, 120)
    until(lambda: available() == fitting, 60)
    time.sleep(12)  # the next reports include the pods, which must not count twice, nor be forgotten
    assert (len(copies(federation)), available()) == (fitting, fitting)
    leads = federation.scheduler.output().count(PLACES)
    federation.scheduler.stop(9)
    federation.scheduler.start()
    until(lambda: federation.scheduler.output().count(PLACES) > leads, 60)
    member = federation.members[1]
    node = member.get("node", "fake-1")
    before = node["status"]["capacity"]["cpu"]

    def resize(cpu: str) -> None:
        node["status"]["capacity"]["cpu"] = node["status"]["allocatable"]["cpu"] = cpu
        del node["metadata"]["resourceVersion"]
        member.kubectl("replace", "--raw", "/api/v1/nodes/fake-1/status", "-f", "-", stdin=json.dumps(node))
    resize("1000")
    until(lambda: available() >= fitting + min(surplus, 80), 120)
    federation.nova.kubectl("delete", "deployments", "--all", "-n", NAMESPACE)
    until(lambda: not copies(federation), 120)
    node = member.get("node", "fake-1")
    resize(before)
    until(lambda: room(federation) == fitting)  # the next variant counts with this report
