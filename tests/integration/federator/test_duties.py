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

import msgspec
import pytest
from aiohttp import web

from nova.federator.api.names import WANTED_BY
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.service import duties as duties_module
from nova.federator.service.duties import PLACEMENT, STATUSES, Duties
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import Federation, Process, policy

_TIMES = ("_DURATION", "_RENEW", "_CHECK", "_GIVE_UP", "_HEDGE")
NAMESPACE = "duties"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class FaultyApi(Api):
    """A client with faults. Requests wait while it is ``frozen``, as those of a suspended process or a blocked
    connection, and ``delay`` seconds longer. If ``lossy``, only every second one gets a response; if ``deaf``, every
    second write is executed without a response, and the client waits for it. The next ``lost``
    writes are executed without a response, the next ``refused`` ones fail, and the next ``malformed`` lists have an
    item without content."""

    frozen, delay, lossy, deaf, lost, refused, malformed = False, 0.0, False, False, 0, 0, 0
    _numbers = itertools.count(1)

    async def _request(self, method: str, *arguments: Any, **options: Any) -> Object:
        if self.lossy and next(self._numbers) % 2:
            await asyncio.Event().wait()
        while self.frozen:
            await asyncio.sleep(0.02)
        await asyncio.sleep(self.delay)
        if method == "GET" and self.malformed:
            self.malformed -= 1
            return {"metadata": {}, "items": [{}]}
        if method != "GET" and self.refused:
            self.refused -= 1
            raise ApiError("refused", 500)
        result = await super()._request(method, *arguments, **options)
        if method != "GET" and self.deaf and next(self._numbers) % 2:
            await asyncio.Event().wait()
        if method != "GET" and self.lost:
            self.lost -= 1
            raise ApiError("truncated", 502)
        return result


class Replica:
    """A replica whose duties record when they were performed: ``history`` has (duty, replica, start, end).
    ``stopping``: seconds that a duty needs to stop."""

    def __init__(self, api: FaultyApi, name: str, history: list[list[Any]], identity: str = "") -> None:
        self.api, self.history, self.name, self.stopping = api, history, name, 0.0
        self.duties = Duties(api, NAMESPACE, identity or name, {
            duty: self._duty(duty) for duty in (PLACEMENT, STATUSES)})
        self.task = asyncio.create_task(self._run())

    def _duty(self, name: str) -> Callable[[], Any]:
        async def perform() -> None:
            entry = [name, self.name, time.monotonic(), 0.0]
            self.history.append(entry)
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(self.stopping)
                entry[3] = time.monotonic()
        return perform

    async def _run(self) -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.duties.run(tasks))

    def performs(self) -> set[str]:
        return {entry[0] for entry in self.history if entry[1] == self.name and not entry[3]}

    async def die(self) -> None:
        """End without a release of the duties."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def end(self) -> None:
        await self.die()
        await self.duties.release()


@pytest.fixture
def namespace(control_plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return the control plane with a namespace without Leases. All times are a fifth of the real ones."""
    for name in _TIMES:
        monkeypatch.setattr(duties_module, name, getattr(duties_module, name) / 5)
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    control_plane.kubectl("delete", "leases", "--all", "-n", NAMESPACE)
    return control_plane


def half_of_real_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use longer times, which requests do not exceed on a busy machine either."""
    for name in _TIMES:
        monkeypatch.setattr(duties_module, name, getattr(duties_module, name) * 2.5)


def scenario(cluster: Cluster, act: Callable[[Callable[..., Replica]], Any]) -> list[list[Any]]:
    """Run ``act`` with a function that starts a replica. Return the history, in which no duty was performed twice."""
    history: list[list[Any]] = []

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            apis = {name: await stack.enter_async_context(FaultyApi(cluster.config)) for name in "abc"}
            replicas: list[Replica] = []

            def start(name: str, identity: str = "") -> Replica:
                replicas.append(Replica(apis[name], name, history, identity))
                return replicas[-1]
            try:
                await act(start)
            finally:
                for replica in replicas:
                    replica.api.frozen, replica.api.delay = False, 0.0
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
    async def act(start: Callable[..., Replica]) -> None:
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
    async def act(start: Callable[..., Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        second = start("b")
        await settled(lambda: second.performs() == {STATUSES})
        first.api.frozen = True
        await settled(lambda: not first.duties.validity(PLACEMENT))
        await settled(lambda: second.performs() == {PLACEMENT, STATUSES})
        assert first.task.done()
    scenario(namespace, act)


def test_a_duty_given_to_a_replica_that_has_ended_is_taken_back(namespace: Cluster) -> None:
    async def act(start: Callable[..., Replica]) -> None:
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
    async def act(start: Callable[..., Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        await first.api.patch(f"{LEASES}/{PLACEMENT}", {"metadata": {"annotations": {WANTED_BY: "b"}}})
        await asyncio.sleep(3 * duties_module._RENEW)
        assert first.performs() == {PLACEMENT, STATUSES}
    scenario(namespace, act)


async def pair(start: Callable[..., Replica]) -> tuple[Replica, Replica]:
    """Return two replicas: the first one places, the second one merges statuses."""
    first = start("a")
    await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
    second = start("b")
    await settled(lambda: second.performs() == {STATUSES})
    return first, second


@pytest.mark.parametrize("change", [None, {"holderIdentity": ""}, {"holderIdentity": "b"}, {"holderIdentity": "other"},
                                    {"holderIdentity": None, "renewTime": None, "acquireTime": None,
                                     "leaseDurationSeconds": None, "leaseTransitions": None},
                                    {"renewTime": "1970-01-01T00:00:00.000000Z", "leaseTransitions": 2**31 - 1}])
def test_a_lease_changed_by_hand_is_not_taken_from_a_holder_that_has_not_noticed(
        namespace: Cluster, change: dict[str, Any] | None) -> None:
    """The holder is cut off for longer than its Lease when the Lease is deleted or edited."""
    async def act(start: Callable[..., Replica]) -> None:
        first, second = await pair(start)
        first.api.frozen = True
        await asyncio.sleep(0.1)
        if change is None:
            await second.api.delete(f"{LEASES}/{PLACEMENT}")
        else:
            await second.api.patch(f"{LEASES}/{PLACEMENT}", {"spec": change})
        changed = time.monotonic()
        await settled(lambda: second.performs() == {PLACEMENT, STATUSES})
        assert time.monotonic() - changed < duties_module._DURATION + 3 * duties_module._CHECK
        assert first.task.done()
    scenario(namespace, act)


def test_a_deleted_lease_is_created_again_by_its_holder(namespace: Cluster) -> None:
    async def act(start: Callable[..., Replica]) -> None:
        first, second = await pair(start)
        await second.api.delete(f"{LEASES}/{PLACEMENT}")
        await asyncio.sleep(1.5 * duties_module._DURATION)
        assert (first.performs(), second.performs()) == ({PLACEMENT}, {STATUSES})
    history = scenario(namespace, act)
    assert [entry[0] for entry in history].count(PLACEMENT) == 1


def test_annotations_do_not_keep_the_lease_of_an_ended_replica(namespace: Cluster) -> None:
    """Another client annotates the Lease all the time; the number of transitions is the largest possible."""
    async def act(start: Callable[..., Replica]) -> None:
        first, second = await pair(start)
        await first.die()
        died = time.monotonic()
        await second.api.patch(f"{LEASES}/{PLACEMENT}", {"spec": {"leaseTransitions": 2**31 - 1}})
        while PLACEMENT not in second.performs():
            assert time.monotonic() - died < duties_module._DURATION + 3 * duties_module._CHECK
            await second.api.patch(f"{LEASES}/{PLACEMENT}", {
                "metadata": {"annotations": {"at": str(time.monotonic())}}})
            await asyncio.sleep(1.2 * duties_module._CHECK)  # not more often, or no write would succeed
    scenario(namespace, act)


def test_two_replicas_with_the_same_identity_do_not_perform_a_duty_twice(namespace: Cluster) -> None:
    async def act(start: Callable[..., Replica]) -> None:
        first = start("a", "same")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        second = start("b", "same")
        await asyncio.sleep(1.5 * duties_module._DURATION)
        assert (first.performs(), second.performs()) == ({PLACEMENT, STATUSES}, set())
        first.api.frozen = True
        await settled(lambda: second.performs() == {PLACEMENT, STATUSES})
        first.api.frozen = False
        await asyncio.sleep(duties_module._DURATION)
        assert first.task.done()
    scenario(namespace, act)


def test_a_slow_api_server_does_not_end_the_holder_of_both_duties(
        namespace: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list and two writes, one of which began before, fit into the time for which a Lease is valid: 2.8 seconds per
    request with the real times."""
    half_of_real_times(monkeypatch)

    async def act(start: Callable[..., Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        first.api.delay = 0.28 * duties_module._GIVE_UP
        await asyncio.sleep(3 * duties_module._GIVE_UP)
        assert first.performs() == {PLACEMENT, STATUSES}
    scenario(namespace, act)


@pytest.mark.parametrize("fault", ["lossy", "deaf"])
def test_a_holder_keeps_its_duties_while_every_second_request_has_no_response(
        namespace: Cluster, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A frozen member of etcd has a similar effect. A write that is executed without a response conflicts with its own
    repetition, and has renewed the Lease."""
    half_of_real_times(monkeypatch)

    async def act(start: Callable[..., Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        setattr(first.api, fault, True)
        await asyncio.sleep(3 * duties_module._GIVE_UP)
        assert first.performs() == {PLACEMENT, STATUSES}
        setattr(first.api, fault, False)
    scenario(namespace, act)


def test_failed_requests_delay_a_duty_by_less_than_its_duration(namespace: Cluster) -> None:
    """Responses to the first writes do not arrive, although the server has executed them, and lists are malformed."""
    async def act(start: Callable[..., Replica]) -> None:
        first = start("a")
        first.api.lost, first.api.malformed = 2, 1
        began = time.monotonic()
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        assert time.monotonic() - began < duties_module._DURATION
    scenario(namespace, act)


def test_a_failed_handover_is_repeated(namespace: Cluster) -> None:
    """The holder needs longer to stop a duty than for a check, and cannot write the Lease at first."""
    async def act(start: Callable[..., Replica]) -> None:
        first = start("a")
        await settled(lambda: first.performs() == {PLACEMENT, STATUSES})
        first.stopping = 1.5 * duties_module._RENEW
        second = start("b")
        await settled(lambda: any(entry[0] == STATUSES and entry[3] for entry in first.history)
                      or bool(setattr(first.api, "refused", 0 if first.performs() == {PLACEMENT, STATUSES} else 2)))
        first.stopping = 0.0
        await settled(lambda: second.performs() == {STATUSES} and first.performs() == {PLACEMENT})
    scenario(namespace, act)


def test_repeated_handovers_perform_each_duty_once(namespace: Cluster) -> None:
    """An annotation requests the duty for the other replica again and again."""
    async def act(start: Callable[..., Replica]) -> None:
        first, second = await pair(start)
        for number in range(6):
            receiver = (first, second)[number % 2]
            await receiver.api.patch(f"{LEASES}/{STATUSES}", {"metadata": {"annotations": {WANTED_BY: receiver.name}}})
            await settled(lambda receiver=receiver: STATUSES in receiver.performs(), 1.2 * duties_module._DURATION)
        assert first.performs() == {PLACEMENT}
    scenario(namespace, act)


def test_writes_for_a_duty_end_with_it(namespace: Cluster) -> None:
    """A server asks a client to repeat a write later. When it may be repeated, the duty may have another holder."""
    requests: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        requests.append(request.method)
        return web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "1"})

    async def run() -> None:
        runner = web.AppRunner(application := web.Application())
        application.router.add_route("*", "/{path:.*}", refuse)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        end = time.monotonic() + 1.5
        config = msgspec.structs.replace(namespace.config, server=f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with Api(config) as api:
            limited = api.limited(lambda: end - time.monotonic())
            for _attempt in range(2):
                with pytest.raises(ApiError):
                    await limited.create("/api/v1/namespaces", {})
            assert requests == ["POST"] * 2
            with pytest.raises(ApiError) as raised:
                await limited.get("/api/v1/namespaces")
            assert raised.value.status == 429, "reads are not limited"
        await runner.cleanup()
    asyncio.run(run())


def test_watches_of_many_kinds_leave_connections_for_requests(namespace: Cluster) -> None:
    """Each custom resource of the control plane is watched. Leases must be renewed, however many there are."""
    async def watch(api: Api) -> None:
        async for _event in api.watch(LEASES, "0"):
            pass

    async def run() -> None:
        async with Api(namespace.config, connections=4, timeout=5.0) as api:
            watches = [asyncio.create_task(watch(api)) for _number in range(8)]
            await asyncio.sleep(0.5)
            await asyncio.gather(*(api.get(LEASES) for _number in range(20)))
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
    asyncio.run(run())


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
        pids = {item["metadata"]["name"]: item["spec"].get("holderIdentity", "").split("-")[-2:][0] for item in items}
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
