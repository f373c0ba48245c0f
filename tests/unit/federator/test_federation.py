"""Tests of the state that the scheduler derives from lists and watches, whatever their order is."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest

from nova.federator.api.types import Ref
from nova.federator.controllers.federation import Federation
from nova.federator.kube.informer import Informer
from nova.federator.store import schedules
from nova.federator.store.schedules import Entry

WEB = Ref("apps", "v1", "Deployment", "shop", "web")
CLUSTER = {"metadata": {"name": "a", "resourceVersion": "1", "uid": "c"}, "spec": {"name": "a"}}


class Lists:
    """An API server that lists given objects by path."""

    def __init__(self) -> None:
        self.items: dict[str, list[Any]] = {}

    async def list(self, path: str, **_query: str) -> Any:
        return {"items": self.items.get(path, []), "metadata": {"resourceVersion": "9"}}


def schedule() -> Any:
    body = schedules.render("a", schedules.render_spec(WEB.key, [Entry(WEB, "u", "digest", 2)], ""))
    body["metadata"] |= {"generation": 1, "resourceVersion": "2", "uid": "s"}
    return body


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
