"""A scheduler with many objects and clusters: its event loop, which also renews Leases, must never be blocked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any, cast

from nova.federator.api.types import Ref
from nova.federator.controllers.statuses import Statuses
from nova.federator.store.schedules import Observed, Report, Schedule

OBJECTS, CLUSTERS = 3000, 200


class Groups(dict[str, dict[str, dict[int, Schedule]]]):
    """The schedules by group, counting how often all of them are read."""

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
        groups[ref.key] = {cluster: {0: Schedule(f"nova-cluster-{cluster}", "s", ref.key, (), Report(
            objects=(Observed(ref),)))}}
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
