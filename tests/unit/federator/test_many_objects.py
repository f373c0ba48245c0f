"""A scheduler with many objects and clusters: its event loop, which also renews Leases, must never be blocked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any, cast

from nova.federator.api.types import Ref
from nova.federator.controllers.schedule_writer import Stored
from nova.federator.controllers.statuses import Statuses
from nova.federator.store.schedules import Observed, Report, Schedule

OBJECTS, CLUSTERS = 3000, 200


class Groups(Stored):
    """Stored schedules, counting how often those of all groups are read."""

    scans = 0

    def items(self) -> Any:
        self.scans += 1
        return super().items()


def test_statuses_begin_with_one_pass_over_all_objects_and_leave_others_their_turn() -> None:
    """A pass for each of 500 clusters over 100,000 objects took longer than the Lease lasts."""
    groups, turns = Groups(), 0
    for number in range(OBJECTS):
        ref = Ref("apps", "v1", "Deployment", "shop", f"web-{number}")
        cluster = f"c{number % CLUSTERS}"
        groups.put(cluster, Schedule(f"nova-cluster-{cluster}", "s", ref.key, (), Report(objects=(Observed(ref),))))
    seen: list[str] = []

    def checked(ref: Ref, _group: str) -> bool:
        time.sleep(0.0002)
        seen.append(ref.name)
        return False

    async def run() -> None:
        nonlocal turns
        catalog = SimpleNamespace(templates=dict.fromkeys(groups, "template"), belongs=checked)
        clusters = SimpleNamespace(names=lambda: [f"c{number}" for number in range(CLUSTERS)])
        work = asyncio.create_task(Statuses(cast(Any, None), cast(Any, catalog), cast(Any, clusters), groups).run())
        while len(seen) < OBJECTS:
            await asyncio.sleep(0)
            turns += 1
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    asyncio.run(run())
    assert groups.scans == 1
    assert turns > 4


def test_a_changed_cluster_costs_no_pass_over_the_groups_of_other_clusters() -> None:
    """A pass over all groups for each changed cluster took minutes when 500 clusters of 100,000 objects returned."""
    groups = Groups()
    for number in range(100):
        ref = Ref("apps", "v1", "Deployment", "shop", f"web-{number}")
        for cluster in (f"c{number % 10}", "all"):
            groups.put(cluster, Schedule(f"nova-cluster-{cluster}", "s", ref.key, (), Report(
                objects=(Observed(ref),))))
    statuses = Statuses(cast(Any, None), cast(Any, None), cast(Any, None), groups)
    statuses.cluster_changed("c3")
    assert statuses.queue_length == 10
    for parts in list(groups.clusters["c3"].values()):
        groups.discard("c3", parts[0])
    assert "c3" not in groups.clusters
    statuses.cluster_changed("c3")
    assert statuses.queue_length == 10
    assert all(list(placed) == ["all"] for number, placed in enumerate(groups.values()) if number % 10 == 3)
    assert groups.scans == 0
