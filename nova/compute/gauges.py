"""Metrics of nova-compute that are measured by polling."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from nova.compute.runner import Runner
from nova.conf import CONF
from nova.objects.servers import states
from nova.service.periodic import Periodic
from nova.telemetry import metrics
from nova.virt.driver import Driver
from nova.virt.images.image_room import CacheSpace


def watch(hosts: Sequence[tuple[Runner, Driver]]) -> list[Periodic]:
    """Register metrics of orders and guests of these hosts; return the periodic tasks that update them (none if metrics
    are off)."""
    if not metrics.on:
        return []
    metrics.ORDERS.watch(lambda: sum(len(runner.running()) for runner, _driver in hosts))

    def count_guests() -> None:
        counts = collections.Counter(guest.power_state for _runner, driver in hosts for guest in driver.guests.all())
        metrics.GUESTS.replace({(states.POWER_STATES.get(state, "unknown"),): number
                                for state, number in counts.items()})

    return [Periodic("metrics", CONF.prometheus.interval, count_guests)]


def watch_cache(space: CacheSpace) -> None:
    """Register metrics of the size of the image cache."""
    metrics.IMAGE_CACHE.watch(space.used)
    metrics.IMAGE_CACHE_LIMIT.watch(space.limit)
