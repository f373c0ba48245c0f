"""Services of the federator: work that replicas share, its metrics, and the registration of an agent."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from typing import Any, cast

import pytest

from nova.common.errors import Refused
from nova.federator.api import objects
from nova.federator.api.names import PIN
from nova.federator.controllers.federation import Federation
from nova.federator.kube.client import ApiError
from nova.federator.kube.config import Kubeconfig
from nova.federator.service import agent
from nova.federator.service.duties import PLACEMENT, STATUSES, Duties
from nova.federator.service.metrics import scheduler_metrics
from nova.federator.store import schedules
from nova.federator.store.schedules import Entry, Observed, Report
from tests.unit.federator.test_federation import CLUSTER, WEB, Lists, lease

_LENGTH = "nova_federator_scheduler_queue_length"


class Server(Lists):
    """An API server with a Deployment of one replica in the cluster a, of which an agent reports that it is ready.
    ``patches``: the statuses that were written."""

    counts: dict[str, int] = {}

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[dict[str, Any]] = []
        self.deployment: dict[str, Any] = {
            "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1},
            "metadata": {"name": WEB.name, "namespace": WEB.namespace, "uid": "u", "generation": 1,
                         "resourceVersion": "1", "annotations": {PIN: "a"}}}

    async def patch(self, _path: str, body: dict[str, Any]) -> None:
        self.patches.append(body["status"])

    async def read(self, federation: Federation) -> None:
        """Let a federation read the present state."""
        kind = next(kind for kind in objects.KINDS if kind.kind == "Deployment")
        body = schedules.render("a", schedules.render_spec(WEB.key, [Entry(WEB, "u", "digest")], ""))
        body["metadata"] |= {"generation": 1, "resourceVersion": "2", "uid": "s"}
        report = Report(1, 1, (Observed(WEB, "Ready", "digest", status={"replicas": 1, "readyReplicas": 1}, uid="u"),))
        body["status"] = schedules.render_status(schedules.decode(body), report)["status"]
        informers, deployments = federation.clusters.informers, federation.catalog.informer(cast(Any, self), kind)
        self.items = {federation.clusters.objects.path: [CLUSTER], federation.stored.path: [body],
                      kind.path(): [copy.deepcopy(self.deployment)]}
        for number in (1, 2):  # a heartbeat counts once it has changed
            self.items[informers["heartbeats"].path] = [lease(number)]
            for informer in (*informers.values(), deployments, federation.stored):
                await informer.refresh()


async def perform(federation: Federation, seconds: float = 0.2) -> None:
    """Perform the duty of statuses for some time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await federation.statuses.run()


def test_a_scheduler_to_which_the_duty_of_statuses_returns_repairs_what_was_written_meanwhile() -> None:
    """Another scheduler, which performed the duty in between, has not seen the last report."""
    server = Server()

    async def run() -> None:
        federation = Federation(cast(Any, server))
        await server.read(federation)
        await perform(federation)
        assert [status["readyReplicas"] for status in server.patches] == [1]
        server.deployment["metadata"]["resourceVersion"] = "5"
        server.deployment["status"] = {"replicas": 1, "readyReplicas": 0}
        await server.read(federation)
        await perform(federation)
    asyncio.run(run())
    assert [status["readyReplicas"] for status in server.patches] == [1, 1]


class Held(Duties):
    """The duties of a replica that performs some of them."""

    held: tuple[str, ...] = ()

    def validity(self, duty: str) -> float:
        return 9.0 if duty in self.held else 0.0


def test_queues_of_duties_that_another_replica_performs_count_as_empty() -> None:
    """Every replica queues all changes, but only the holder of a duty works on them."""
    server = Server()
    federation = Federation(cast(Any, server))
    asyncio.run(server.read(federation))
    duties = Held(cast(Any, server), "nova", "replica", dict.fromkeys((PLACEMENT, STATUSES), cast(Any, None)))

    def lengths(*held: str) -> dict[str, float]:
        duties.held = held
        metrics: Iterator[Any] = scheduler_metrics(federation, duties, cast(Any, Idle), cast(Any, Idle))
        return {sample.labels["queue"]: sample.value for metric in metrics for sample in metric.samples
                if sample.name == _LENGTH}
    assert lengths(PLACEMENT, STATUSES) == {"placement": 1, "statuses": 1}
    assert lengths(PLACEMENT) == {"placement": 1, "statuses": 0}
    assert lengths(STATUSES) == {"placement": 0, "statuses": 1}
    assert lengths() == {"placement": 0, "statuses": 0}


class Idle:
    """Controllers of standby clusters and of recovery without work."""

    failing = 0
    failures: dict[str, Any] = {}

    class runs:
        objects: dict[str, Any] = {}


class Joining:
    """A control plane that refuses an agent some times, each time with the next error, then signs its certificate."""

    cluster = "a"

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors

    async def obtain(self, ignore_stored: bool = False) -> Kubeconfig:
        if self.errors:
            raise self.errors.pop(0)
        return Kubeconfig(server="https://nova")

    async def use(self, config: Kubeconfig) -> None:
        pass

    async def get(self, _path: str) -> dict[str, Any]:
        return {}


def test_an_agent_that_cannot_join_tries_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rights of a new cluster may arrive a moment after its objects; a control plane may be away for days."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    joining = Joining([ApiError("forbidden", 403), Refused("denied")] * 3)
    assert asyncio.run(agent._join(cast(Any, joining), cast(Any, joining))).server == "https://nova"
    assert pauses == [1, 2, 4, 8, 10, 10]
