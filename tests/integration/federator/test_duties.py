"""Duties of the scheduler: its replicas share them by Leases, each is performed once, also when a replica ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pathlib
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova.federator.api.names import WANTED_BY
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.service import duties as duties_module
from nova.federator.service.duties import PLACEMENT, STATUSES, Duties
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import Federation, Process, policy

NAMESPACE = "duties"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class FreezableApi(Api):
    """A client whose requests wait while it is frozen, as those of a suspended process or a blocked connection."""

    frozen = False

    async def _request(self, *arguments: Any, **options: Any) -> Object:
        while self.frozen:
            await asyncio.sleep(0.02)
        return await super()._request(*arguments, **options)


class Replica:
    """A replica whose duties record when they were performed: ``history`` has (duty, identity, start, end)."""

    def __init__(self, api: FreezableApi, identity: str, history: list[list[Any]]) -> None:
        self.api, self.history, self.identity = api, history, identity
        self.duties = Duties(api, NAMESPACE, identity, {name: self._duty(name) for name in (PLACEMENT, STATUSES)})
        self.task = asyncio.create_task(self._run())

    def _duty(self, name: str) -> Callable[[], Any]:
        async def perform() -> None:
            entry = [name, self.identity, time.monotonic(), 0.0]
            self.history.append(entry)
            try:
                await asyncio.sleep(3600)
            finally:
                entry[3] = time.monotonic()
        return perform

    async def _run(self) -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.duties.run(tasks))

    def performs(self) -> set[str]:
        return {entry[0] for entry in self.history if entry[1] == self.identity and not entry[3]}

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.duties.release()


@pytest.fixture
def namespace(control_plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return the control plane with a namespace without Leases. All times are a fifth of the real ones."""
    for name in ("_DURATION", "_RENEW", "_CHECK", "_GIVE_UP"):
        monkeypatch.setattr(duties_module, name, getattr(duties_module, name) / 5)
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    control_plane.kubectl("delete", "leases", "--all", "-n", NAMESPACE)
    return control_plane


def scenario(cluster: Cluster, act: Callable[[Callable[[str], Replica]], Any]) -> list[list[Any]]:
    """Run ``act`` with a function that starts a replica. Return the history, in which no duty was performed twice."""
    history: list[list[Any]] = []

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            apis = {name: await stack.enter_async_context(FreezableApi(cluster.config)) for name in "abc"}
            replicas: list[Replica] = []

            def start(name: str) -> Replica:
                replicas.append(Replica(apis[name], name, history))
                return replicas[-1]
            try:
                await act(start)
            finally:
                for replica in replicas:
                    replica.api.frozen = False
                    await replica.end()
    asyncio.run(run())
    for duty in (PLACEMENT, STATUSES):
        spans = sorted((start, end, name) for performed, name, start, end in history if performed == duty)
        for (_start, end, first), (start, _end, second) in itertools.pairwise(spans):
            assert end <= start, f"{first} and {second} performed {duty} at the same time"
    return history


async def settled(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def test_one_replica_performs_all_duties_and_shares_them_with_a_second(namespace: Cluster) -> None:
    async def act(start: Callable[[str], Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        second = start("b")
        await settled(lambda: second.performs() == {STATUSES} and first.performs() == {PLACEMENT})
        third = start("c")
        await asyncio.sleep(3 * duties_module._RENEW)
        assert (first.performs(), second.performs(), third.performs()) == ({PLACEMENT}, {STATUSES}, set())
        await first.end()
        await settled(lambda: third.performs() == {PLACEMENT} or second.performs() == {PLACEMENT, STATUSES})
        await settled(lambda: len(second.performs()) == len(third.performs()) == 1)
    scenario(namespace, act)


def test_a_replica_without_connection_ends_before_another_takes_its_duties(namespace: Cluster) -> None:
    """Requests of the holder wait for ever. It stops its duties before their Leases expire for others."""
    async def act(start: Callable[[str], Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        second = start("b")
        await settled(lambda: second.performs() == {STATUSES})
        first.api.frozen = True
        await settled(lambda: not first.duties.valid(PLACEMENT))
        await settled(lambda: second.performs() == {PLACEMENT, STATUSES})
        assert first.task.done()
    scenario(namespace, act)


def test_a_duty_given_to_a_replica_that_has_ended_is_taken_back(namespace: Cluster) -> None:
    async def act(start: Callable[[str], Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})

        async def ask() -> bool:
            with contextlib.suppress(ApiError):  # renewed meanwhile
                lease = await first.api.get(f"{LEASES}/{STATUSES}")
                await first.api.patch(f"{LEASES}/{STATUSES}", {"metadata": {
                    "resourceVersion": lease["metadata"]["resourceVersion"], "annotations": {WANTED_BY: "ended"}}})
                return True
            return False
        while not await ask():
            pass
        await settled(lambda: first.performs() == {PLACEMENT})
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
    history = scenario(namespace, act)
    assert [entry[0] for entry in history].count(STATUSES) == 2
    assert [entry[0] for entry in history].count(PLACEMENT) == 1


def test_placement_is_never_handed_over(namespace: Cluster) -> None:
    async def act(start: Callable[[str], Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        await first.api.patch(f"{LEASES}/{PLACEMENT}", {"metadata": {"annotations": {WANTED_BY: "b"}}})
        await asyncio.sleep(3 * duties_module._RENEW)
        assert first.performs() == {PLACEMENT, STATUSES}
    scenario(namespace, act)


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def federation(control_plane: Cluster, members: list[Cluster], tmp_path: pathlib.Path, address: str,
               ) -> Iterator[Federation]:
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    with Federation(control_plane, members[:1], tmp_path, f"--metrics-address={address}") as federation:
        federation.options = ()
        yield federation
        federation.nova.kubectl("delete", "deployments", "--all", "-n", NAMESPACE)
        federation.nova.kubectl("delete", "schedulepolicies", "--all")


def test_schedulers_share_work_and_survive_each_other(federation: Federation, address: str) -> None:
    """Two processes: one places, the other one merges statuses. Each is killed once; the other one performs both. The
    metrics of the first one show its duties and work."""
    nova, processes = federation.nova, {"scheduler": federation.scheduler}
    federation.nova.apply(policy("duties", {"duties": "yes"}, [federation.members[0].name]))

    def holders() -> dict[str, str]:
        items = nova.get("leases", "-n", "elotl")["items"]
        pids = {item["metadata"]["name"]: item["spec"].get("holderIdentity", "").rpartition("-")[2] for item in items}
        names = {str(process.pid): name for name, process in processes.items()}
        return {duty: names.get(pids.get(duty, ""), "") for duty in (PLACEMENT, STATUSES)}

    def works(name: str) -> bool:
        status = nova.get("deployment", name, "-n", NAMESPACE).get("status", {})
        return bool(status.get("readyReplicas") == 1)

    def start(name: str) -> Process:
        processes[name] = federation.start_scheduler(name)
        return processes[name]
    def metrics() -> list[str]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            return [line for line in response.read().decode().splitlines() if line.startswith("nova_federator_")]
    try:
        start("second")
        until(lambda: sorted(holders().values()) == ["scheduler", "second"], 60)
        until(lambda: 'nova_federator_scheduler_duty{duty="nova-scheduler"} 1.0' in metrics())
        assert 'nova_federator_scheduler_duty{duty="nova-scheduler-statuses"} 0.0' in metrics()
        assert 'nova_federator_scheduler_clusters{state="Ready"} 1.0' in metrics()
        nova.apply(deployment("shared", 1, NAMESPACE, {"duties": "yes"}))
        until(lambda: works("shared"), 60)
        assert {"nova_federator_scheduler_objects 1.0", "nova_federator_scheduler_schedules 1.0",
                "nova_federator_scheduler_failures_total 0.0"} <= set(metrics())
        for number, duty in enumerate((STATUSES, PLACEMENT)):
            victim = holders()[duty]
            processes.pop(victim).stop(signal.SIGKILL)
            nova.apply(deployment(f"after-{number}", 1, NAMESPACE, {"duties": "yes"}))
            until(lambda number=number: works(f"after-{number}"), 60)
            survivor = next(iter(processes))
            until(lambda survivor=survivor: set(holders().values()) == {survivor}, 60)
            start(f"third-{number}")
            until(lambda: len(set(holders().values()) - {""}) == 2, 60)
        assert json.dumps(nova.get("deployment", "-n", NAMESPACE)).count('"readyReplicas": 1') == 3
    finally:
        for process in processes.values():
            process.stop(signal.SIGKILL)
        federation.scheduler = federation.start_scheduler("last")
