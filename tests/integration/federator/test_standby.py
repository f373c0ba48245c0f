"""Standby: idle clusters are really stopped, woken, deleted and created (facts chapter 9, issue 27 scheduling 10)."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova.federator.api.names import STANDBY
from nova.federator.client.local import DIRECTORY, LocalFederation
from nova.federator.local.binaries import Binaries
from tests.integration.federator.clusters import RUNNING, Cluster, deployment, until
from tests.integration.federator.federation import Process, policy

FIRST, SECOND = "kind-workload-1", "kind-workload-2"


class Local:
    """A federation on this machine, whose scheduler tests start with settings of their own."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.federation = LocalFederation(directory, members=2)
        asyncio.run(self.federation.start())
        asyncio.run(self.federation.processes.stop(["nova-scheduler"]))
        self.nova = Cluster(self.federation.nova)
        self.members = {member.name: Cluster(member) for member in self.federation.members}
        RUNNING.append(self.nova)
        self.settings = {DIRECTORY: str(directory), "NOVA_IDLE_ENTER_STANDBY_ENABLE": "true",
                         "NOVA_IDLE_ENTER_STANDBY_SECS": "3"}

    def scheduler(self, **settings: str) -> Process:
        """Start a scheduler. Its environment has the settings."""
        self.release()
        previous = dict(os.environ)
        os.environ.update({**self.settings, **settings})
        try:
            pki = self.nova.local.pki
            return Process(self.directory / "log/scheduler.log", "scheduler", f"--kubeconfig={self.nova.kubeconfig}",
                           f"--ca-cert={pki / 'ca.crt'}", f"--ca-key={pki / 'ca.key'}")
        finally:
            os.environ.clear()
            os.environ.update(previous)

    def release(self) -> None:
        """Let the next scheduler lead at once."""
        self.nova.kubectl("patch", "lease", "nova-scheduler", "-n", "elotl", "--type=merge", "-p",
                          '{"spec": {"holderIdentity": ""}}')

    def condition(self, cluster: str, kind: str) -> dict[str, Any]:
        obj = self.nova.get("cluster", cluster)
        return next((entry for entry in obj.get("status", {}).get("conditions", ()) if entry["type"] == kind), {})

    def phase(self, cluster: str) -> str:
        text = self.nova.get("cluster", cluster)["metadata"].get("annotations", {}).get(STANDBY)
        return json.loads(text)["phase"] if text else "Active"

    def runs(self, cluster: str) -> bool:
        """Return True if a process of a cluster, or its agent, runs."""
        local = next((member for member in LocalFederation(self.directory).members if member.name == cluster), None)
        return local is not None and (any(local.processes.record(name) for name in local.processes.names())
                                      or self.federation.processes.record(f"nova-agent-{cluster}") is not None)

    def available(self, cluster: str, name: str) -> int:
        items = self.members[cluster].get("deployment", f"--field-selector=metadata.name={name}")["items"]
        return items[0].get("status", {}).get("availableReplicas", 0) if items else 0

    def reasons(self, name: str) -> set[str]:
        """Return the reasons of an object's events."""
        return {event["reason"] for event in self.nova.get("events", "--field-selector", f"involvedObject.name={name}")[
            "items"]}


@pytest.fixture(scope="module")
def local(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[Local]:
    local = Local(cluster_directory / "standby")
    yield local
    RUNNING.remove(local.nova)
    asyncio.run(LocalFederation(local.directory).remove())


@pytest.fixture(autouse=True)
def _clean(local: Local) -> Iterator[None]:
    yield
    local.nova.kubectl("delete", "deployments,schedulepolicies", "--all")


def test_idle_clusters_are_stopped_and_a_workload_wakes_the_cluster_that_it_needs(local: Local) -> None:
    """Chapter 9: idle long enough, then Standby; scheduling to it: Idle False, Standby False, then Ready True."""
    scheduler = local.scheduler()
    until(lambda: local.phase(FIRST) == local.phase(SECOND) == "Suspended", 90)
    until(lambda: local.condition(FIRST, "Standby").get("status") == "True")
    assert not local.runs(FIRST)
    assert not local.runs(SECOND)
    assert local.nova.get("cluster", FIRST)["status"]["nodeGroupsConfigs"]["nodes"]["desiredCapacity"] == 2
    local.nova.apply(policy("web", {"app": "web"}, [SECOND]), deployment("web"))
    until(lambda: local.condition(SECOND, "Standby").get("status") == "False")
    assert local.condition(SECOND, "Idle")["status"] == "False"
    until(lambda: "WaitingForCluster" in local.reasons("web"))
    until(lambda: local.phase(SECOND) == "Active", 90)
    until(lambda: local.available(SECOND, "web") == 1)
    assert local.condition(SECOND, "Ready")["status"] == "True"
    assert local.phase(FIRST) == "Suspended"
    assert not local.runs(FIRST)
    scheduler.stop()
