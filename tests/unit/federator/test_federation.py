"""Tests of the state that the scheduler derives from lists and watches, whatever their order is."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from nova.federator.api import objects
from nova.federator.api.names import HEARTBEAT, PIN, STANDBY
from nova.federator.api.types import Ref
from nova.federator.controllers.federation import Federation
from nova.federator.controllers.providers import HELPER, Providers
from nova.federator.controllers.standby import Standby
from nova.federator.kube.informer import Informer
from nova.federator.scheduling.standby import Settings
from nova.federator.store import reports, schedules
from nova.federator.store.reports import ClusterReport, NodeReport
from nova.federator.store.schedules import Entry

WEB = Ref("apps", "v1", "Deployment", "shop", "web")
CLUSTER = {"metadata": {"name": "a", "resourceVersion": "1", "uid": "c"}, "spec": {"name": "a"}}


class Lists:
    """An API server that lists given objects by path, and accepts new objects without storing them."""

    def __init__(self) -> None:
        self.items: dict[str, list[Any]] = {}
        self.version = "9"
        self.created: list[tuple[str, Any]] = []
        self.lists: collections.Counter[str] = collections.Counter()

    async def list_pages(self, path: str, **_query: str) -> AsyncIterator[Any]:
        self.lists[path] += 1
        yield {"items": self.items.get(path, []), "metadata": {"resourceVersion": self.version}}

    async def list(self, path: str, **query: str) -> Any:
        return await anext(self.list_pages(path, **query))

    async def ensure(self, path: str, body: Any) -> bool:
        self.created.append((path, body))
        return True

    async def get(self, path: str) -> Any:
        return next(body for parent, body in self.created if path == f"{parent}/{body['metadata']['name']}")


def schedule() -> Any:
    body = schedules.render("a", schedules.render_spec(WEB.key, [Entry(WEB, "u", "digest", 2)], ""))
    body["metadata"] |= {"generation": 1, "resourceVersion": "2", "uid": "s"}
    return body


def lease(number: int) -> Any:
    return {"metadata": {"name": HEARTBEAT, "namespace": "nova-cluster-a", "resourceVersion": str(number)},
            "spec": {"renewTime": f"2026-01-01T00:00:0{number}.000000Z", "leaseTransitions": 1}}


@pytest.mark.parametrize("order", itertools.permutations(["clusters", "schedules"]))
def test_a_schedule_counts_whether_it_is_listed_before_or_after_its_cluster(order: tuple[str, str]) -> None:
    """The first lists run side by side. Promise P2: a share that is not counted would be started a second time."""
    api = Lists()
    federation = Federation(cast(Any, api))
    informers: dict[str, Informer[Any]] = {"clusters": federation.clusters.objects, "schedules": federation.stored}
    api.items = {informers["clusters"].path: [CLUSTER], informers["schedules"].path: [schedule()]}
    for name in order:
        asyncio.run(informers[name].refresh())
    assert list(federation.placer.schedules[WEB.key]) == ["a"]
    assert federation.clusters.busy("a")
    api.items[informers["schedules"].path] = []
    asyncio.run(informers["schedules"].refresh())
    assert not federation.placer.schedules
    assert not federation.clusters.busy("a")


@pytest.mark.parametrize(("former", "late"), [([], False), ([schedule()], False), ([], True)])
def test_a_schedule_that_was_lost_before_the_watch_reported_it_is_written_again(former: list[Any], late: bool) -> None:
    """A watch may be interrupted between a write and its event. If the schedule is deleted meanwhile, or restored from
    a backup, the next list has to correct the scheduler: otherwise its group never runs. ``late``: the response of the
    write arrives after that list."""
    class Writes(Lists):
        async def create(self, path: str, body: Any) -> Any:
            self.created.append((path, body))
            if late:
                self.version = "30"
                await federation.stored.refresh()
            return {**body, "metadata": {**body["metadata"], "resourceVersion": f"{20 + len(self.created)}",
                                         "generation": 2, "uid": "new"}}

        async def patch(self, path: str, body: Any) -> Any:
            if not path.startswith(schedules.path_of("nova-cluster-a")):
                return {}
            return await self.create(path, {**schedule(), "spec": body["spec"]})

        async def find(self, _path: str) -> None:
            return None

        async def remove(self, _path: str, **_conditions: str) -> None:
            pass

    api = Writes()
    federation = Federation(cast(Any, api))
    informers = federation.clusters.informers
    report = reports.render("nova-cluster-a", ClusterReport(epoch=1, nodes=[
        NodeReport("n", {"pods": "9", "cpu": "4"}, {"pods": "9", "cpu": "4"})]))
    report["metadata"]["resourceVersion"] = "1"
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1, "template": {"spec": {
        "containers": []}}}, "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "3",
                                          "annotations": {PIN: "a"}}}
    apps = federation.catalog.informer(cast(Any, api), next(kind for kind in objects.KINDS
                                                            if kind.kind == "Deployment"))
    api.items = {informers["clusters"].path: [CLUSTER], reports.REPORTS: [report], apps.path: [web],
                 informers["heartbeats"].path: [lease(1)], federation.stored.path: former}

    async def written(number: int) -> None:
        async with asyncio.timeout(5):
            while len(api.created) < number:
                await asyncio.sleep(0.01)

    async def run() -> None:
        for informer in (*informers.values(), apps, federation.stored):
            await informer.refresh()
        placing = asyncio.create_task(federation.placer.run())
        federation.placer.enqueue(WEB.key)
        await written(1)
        await asyncio.sleep(0.1)
        await federation.stored.refresh()
        federation.placer.enqueue(WEB.key)
        await written(2)
        placing.cancel()
    asyncio.run(run())


@pytest.mark.parametrize(("phase", "unsettled"), [("Active", {"a"}), ("Waking", set())])
def test_groups_may_move_at_once_to_a_cluster_that_was_woken_for_them(phase: str, unsettled: set[str]) -> None:
    """A group that waits, as for a lost cluster, leaves the cluster idle: it could be stopped meanwhile."""
    api = Lists()
    clusters = Federation(cast(Any, api)).clusters
    record = json.dumps({"phase": phase, "since": "2026-01-01T00:00:00Z"})
    api.items = {clusters.objects.path: [{**CLUSTER, "metadata": {**CLUSTER["metadata"], "annotations": {
        STANDBY: record}}}]}
    for number in (1, 2):
        api.items[clusters.informers["heartbeats"].path] = [lease(number)]
        for informer in clusters.informers.values():
            asyncio.run(informer.refresh())
        assert clusters.reachable("a")
        if number == 1:
            clusters.assume_silent("a")
    assert clusters.unsettled() == unsettled


def test_an_agent_does_not_choose_the_sizes_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise P8: what an agent reports as node groups would be paid by the operator."""
    monkeypatch.setattr("nova.federator.controllers.standby.SETTLE", 0.0)
    api = Lists()
    federation = Federation(cast(Any, api))
    informers = federation.clusters.informers
    report = reports.render("nova-cluster-a", ClusterReport(
        epoch=1, nodes=[NodeReport("n", {"pods": "9", "cpu": "4"}, {"pods": "9", "cpu": "4"})],
        nodeGroups={"pool": {"desiredCapacity": 1000}}))
    report["metadata"]["resourceVersion"] = "1"
    pinned = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, "metadata": {
        "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "3", "annotations": {PIN: "new"}}}
    pods = federation.catalog.informer(cast(Any, api), next(kind for kind in objects.KINDS if kind.kind == "Pod"))
    api.items = {informers["clusters"].path: [CLUSTER], reports.REPORTS: [report],
                 informers["heartbeats"].path: [lease(1)], pods.path: [pinned]}

    async def run() -> None:
        for informer in (*informers.values(), pods):
            await informer.refresh()
        federation.placer.simulate("Pod/shop/web")
        settings = Settings(enabled=True, delete=True, create=True)
        standby = Standby(cast(Any, api), federation.clusters, federation.placer, federation.recorder,
                          Providers({HELPER: "/bin/true"}), settings, cast(Any, None))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await standby.run()
    asyncio.run(run())
    created = {body["kind"]: body for _path, body in api.created}
    assert created["Cluster"]["metadata"]["name"] == "new"
    assert not created["ClusterReport"]["report"].get("nodeGroups")


def test_a_cluster_that_turns_out_to_be_used_is_not_checked_again_at_once() -> None:
    """An agent may change the group of a schedule, which then is not counted, but not ignored either."""
    api = Lists()
    federation = Federation(cast(Any, api))
    informers = federation.clusters.informers
    idle = {"type": "Idle", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    report = {**reports.render("nova-cluster-a", ClusterReport(epoch=1))}
    report["metadata"]["resourceVersion"] = "1"
    forged = schedule()
    forged["spec"]["group"] = "Deployment.apps/shop/other"
    stored = schedules.path_of("nova-cluster-a")
    api.items = {informers["clusters"].path: [{**CLUSTER, "status": {"conditions": [idle]}}],
                 reports.REPORTS: [report], federation.stored.path: [forged], stored: [forged]}

    async def run() -> None:
        for number in (1, 2):
            api.items[informers["heartbeats"].path] = [lease(number)]
            for informer in (*informers.values(), federation.stored):
                await informer.refresh()
        standby = Standby(cast(Any, api), federation.clusters, federation.placer, federation.recorder,
                          Providers({HELPER: "/bin/true"}), Settings(enabled=True, idle_seconds=60), cast(Any, None))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.5):
                await standby.run()
    asyncio.run(run())
    assert api.lists[stored] == 1
    assert not federation.clusters.records
