"""Standby: idle clusters are really stopped, woken, deleted and created (facts chapter 9, issue 27 scheduling 10)."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nova.federator.api.names import STANDBY
from nova.federator.client import explain
from nova.federator.client.local import DIRECTORY, LocalFederation
from nova.federator.controllers.providers import HELPER
from nova.federator.controllers.signing import Authority
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.local.binaries import Binaries
from nova.federator.service.scheduler import Scheduler
from tests.integration.federator.clusters import RUNNING, Cluster, deployment, until
from tests.integration.federator.federation import Process, policy
from tests.integration.federator.test_kills import Deadline, MortalApi, run_until_killed

FIRST, SECOND, NEW = "kind-workload-1", "kind-workload-2", "kind-workload-9"
PIN = "nova.elotl.co/cluster"
# A program of an operator that stops clusters as the provider of local clusters does, and cannot start them.
HELPER_PROGRAM = """#!PYTHON
import asyncio, json, sys
verb, name = sys.argv[1:]
if verb == "resume":
    sys.exit("no machine is free")
from nova.federator.api.provider import Target
from nova.federator.client.local_provider import LocalProvider
provider = LocalProvider({"NOVA_LOCAL_DIRECTORY": "PATH"})
print(json.dumps(asyncio.run(getattr(provider, verb)(Target(name=name)))))
"""


class PhaseApi(MortalApi):
    """A client that is killed by a write of the phase of a cluster."""

    async def _request(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None,
                       content_type: str = "application/json", timeout: float = 0) -> Object:
        if self.deadline.killed.is_set():
            raise ApiError("killed")
        result = await Api._request(self, method, path, query, body, content_type, timeout)
        if STANDBY in ((body or {}).get("metadata", {}).get("annotations") or ()) and self.deadline.count():
            self.deadline.killed.set()
            raise ApiError("killed")
        return result


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
        self._scheduler: Process | None = None
        self.settings = {DIRECTORY: str(directory), "NOVA_IDLE_ENTER_STANDBY_ENABLE": "true",
                         "NOVA_IDLE_ENTER_STANDBY_SECS": "3"}

    def scheduler(self, **settings: str) -> None:
        """Start a scheduler instead of the present one. Its environment has the settings."""
        self.stop_scheduler()
        self.release()
        previous = dict(os.environ)
        os.environ.update({**self.settings, **settings})
        try:
            pki = self.nova.local.pki
            self._scheduler = Process(self.directory / "log/scheduler.log", "scheduler",
                                      f"--kubeconfig={self.nova.kubeconfig}", f"--ca-cert={pki / 'ca.crt'}",
                                      f"--ca-key={pki / 'ca.key'}")
        finally:
            os.environ.clear()
            os.environ.update(previous)

    def stop_scheduler(self) -> None:
        if self._scheduler:
            self._scheduler.stop()
            self._scheduler = None

    def crash(self) -> None:
        """Run a scheduler until it writes a phase: it executes the write, and then sends nothing any more."""
        async def run() -> bool:
            deadline, pki = Deadline(1), self.nova.local.pki
            authority = Authority((pki / "ca.crt").read_bytes(), (pki / "ca.key").read_bytes())
            async with PhaseApi(deadline, self.nova.config) as api:
                scheduler = Scheduler(api, lambda: authority, environment=self.settings)
                return await run_until_killed(deadline, scheduler.run(), 90.0)
        self.stop_scheduler()
        self.release()
        assert asyncio.run(run()), "no phase was stored in time"

    def settle(self, phases: dict[str, str]) -> None:
        """Run a scheduler until clusters have these phases."""
        self.scheduler()
        until(lambda: {cluster: self.phase(cluster) for cluster in phases} == phases, 120)

    def release(self) -> None:
        """Let the next scheduler lead at once."""
        self.nova.kubectl("patch", "lease", "nova-scheduler", "-n", "elotl", "--type=merge", "-p",
                          '{"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}')

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

    def exists(self, cluster: str) -> bool:
        return any(obj["metadata"]["name"] == cluster for obj in self.nova.get("clusters")["items"])

    def explanation(self, name: str) -> dict[str, str]:
        """Return how 'explain' describes each cluster for a Deployment."""
        async def run() -> explain.Explanation:
            async with Api(self.nova.config) as api:
                return await explain.explain(api, "deploy", name, "default")
        return {line.cluster: line.state if line.state == "rejected" else f"{line.state}: {line.text}"
                for line in asyncio.run(run()).lines}

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
    local.stop_scheduler()
    local.nova.kubectl("delete", "deployments,schedulepolicies", "--all")


def test_idle_clusters_are_stopped_and_a_workload_wakes_the_cluster_that_it_needs(local: Local) -> None:
    """Chapter 9: idle long enough, then Standby; scheduling to it: Idle False, Standby False, then Ready True."""
    local.scheduler()
    until(lambda: local.phase(FIRST) == local.phase(SECOND) == "Suspended", 90)
    until(lambda: local.condition(FIRST, "Standby").get("status") == "True")
    assert not local.runs(FIRST)
    assert not local.runs(SECOND)
    assert local.nova.get("cluster", FIRST)["status"]["nodeGroupsConfigs"]["nodes"]["desiredCapacity"] == 2
    local.nova.apply(policy("web", {"app": "web"}, [SECOND]), deployment("web"))
    waiting = "chosen: will run here once the cluster is woken from standby"
    assert local.explanation("web") == {FIRST: "rejected", SECOND: waiting}
    until(lambda: local.condition(SECOND, "Standby").get("status") == "False")
    assert local.condition(SECOND, "Idle")["status"] == "False"
    until(lambda: "WaitingForCluster" in local.reasons("web"))
    until(lambda: local.phase(SECOND) == "Active", 90)
    until(lambda: local.available(SECOND, "web") == 1)
    assert local.condition(SECOND, "Ready")["status"] == "True"
    assert local.phase(FIRST) == "Suspended"
    assert not local.runs(FIRST)


def test_a_scheduler_may_end_after_each_step(local: Local) -> None:
    """Crash safety: each phase is stored before the provider is called; the next scheduler goes on from there."""
    local.nova.apply(deployment("web", annotations={PIN: SECOND}))  # only the first cluster is idle
    local.settle({FIRST: "Suspended", SECOND: "Active"})
    local.nova.apply(deployment("late", annotations={PIN: FIRST}))
    local.crash()
    assert (local.phase(FIRST), local.runs(FIRST)) == ("Waking", False)
    local.crash()
    assert (local.phase(FIRST), local.runs(FIRST)) == ("Active", True)
    local.scheduler()
    until(lambda: local.available(FIRST, "late") == 1)
    local.nova.kubectl("delete", "deployment", "late")
    local.crash()
    assert (local.phase(FIRST), local.runs(FIRST)) == ("Suspending", True)
    local.crash()
    assert (local.phase(FIRST), local.runs(FIRST)) == ("Suspended", False)


def test_a_cluster_that_does_not_wake_is_excluded_and_the_workload_goes_elsewhere(
        local: Local, tmp_path: pathlib.Path) -> None:
    """The program of the operator fails: its message is shown, and after the time limit another cluster is chosen."""
    program = tmp_path / "helper"
    program.write_text(HELPER_PROGRAM.replace("PYTHON", sys.executable).replace("PATH", str(local.directory)))
    program.chmod(0o700)
    local.nova.apply(deployment("web", annotations={PIN: SECOND}))
    local.scheduler(**{HELPER: str(program), DIRECTORY: "", "NOVA_WAKE_TIMEOUT_SECS": "10"})
    until(lambda: local.phase(FIRST) == "Suspended", 90)
    local.nova.apply(policy("first", {"app": "picky"}, orderedClusterSelector={"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [FIRST, SECOND]}]}), deployment("picky"))
    until(lambda: "no machine is free" in local.condition(FIRST, "Standby").get("message", ""))
    until(lambda: local.phase(FIRST) == "Failed")
    until(lambda: local.available(SECOND, "picky") == 1)
    assert {"StandbyFailed", "WakeFailed"} <= local.reasons(FIRST)


def test_an_object_pinned_to_an_unknown_cluster_gets_a_copy_which_is_deleted_when_it_is_idle(local: Local) -> None:
    """Chapter 9, create and delete mode: the copy is named like the annotation; its deletion leaves the Cluster."""
    local.scheduler(NOVA_IDLE_ENTER_STANDBY_SECS="3", NOVA_DELETE_CLUSTER_IN_STANDBY="true",
                                NOVA_CREATE_CLUSTER_IF_NEEDED="true", NOVA_MAX_CREATED_CLUSTERS="1")
    local.nova.apply(deployment("stay", annotations={PIN: SECOND}), deployment("new", annotations={PIN: NEW}))
    until(lambda: local.phase(NEW) == "Active" if local.exists(NEW) else False, 120)
    local.members[NEW] = Cluster(next(member for member in LocalFederation(local.directory).members
                                      if member.name == NEW))
    until(lambda: local.available(NEW, "new") == 1)
    copy = local.nova.get("cluster", NEW)
    assert copy["spec"]["novacreated"] is True
    assert copy["metadata"]["labels"]["nova.elotl.co/cluster.novacreated"] == "true"
    local.nova.apply(deployment("more", annotations={PIN: "kind-workload-8"}))
    local.nova.kubectl("delete", "deployment", "new")
    until(lambda: local.phase(NEW) == "Suspended", 60)
    assert not (local.directory / NEW).exists()
    assert not local.exists("kind-workload-8"), "there are as many copies as allowed"
