"""What of this process's hosts is counted by looking."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from nova.compute.runner import Runner
from nova.conf import CONF
from nova.objects import states
from nova.service.periodic import Periodic
from nova.telemetry import metrics
from nova.virt.driver import Driver
from nova.virt.image_room import Room


def watch(hosts: Sequence[tuple[Runner, Driver]]) -> list[Periodic]:
    """Count orders and guests of these hosts together; returns what has to run for it (nothing while it is off)."""
    if not metrics.on:
        return []
    metrics.ORDERS.watch(lambda: sum(len(runner.running()) for runner, _driver in hosts))

    def count_guests() -> None:
        found = collections.Counter(guest.power_state for _runner, driver in hosts for guest in driver.guests())
        metrics.GUESTS.replace({(states.POWER_STATES.get(state, "unknown"),): number
                                for state, number in found.items()})

    return [Periodic("metrics", CONF.prometheus.interval, count_guests)]


def watch_cache(room: Room) -> None:
    """Tell what the images of this host take."""
    metrics.IMAGE_CACHE.watch(room.used)
    metrics.IMAGE_CACHE_LIMIT.watch(room.limit)
