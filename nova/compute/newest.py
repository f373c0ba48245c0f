"""The newest order of each instance, for as long as an older or doubled one could be run without a conductor's word."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Container

from nova.objects.order import StepOrder

# The rank of an order, and its action.
Known = tuple[tuple[int, int], str]


def known(order: StepOrder) -> Known:
    """Return what is remembered of an order."""
    return order.rank, order.action.uuid


class NewestOrders:
    """The newest order of each instance, the least recently stored first. Not thread-safe: the owner has a lock.

    An order is current without a confirmation for half of its lease. An entry is kept for the whole lease: whatever
    was issued before it and arrives later is confirmed by a conductor first. Orders without a time of issue, from a
    conductor of the previous release, cannot be confirmed: their entries stay until there are more than ``limit``.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By instance, with the monotonic time until which the entry is needed.
        self._entries: collections.OrderedDict[str, tuple[Known, float]] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uuid: str) -> Known | None:
        """Return the newest order of an instance, or None if no order has come within its lease."""
        entry = self._entries.get(uuid)
        return entry[0] if entry else None

    def store(self, order: StepOrder) -> None:
        """Store an order as the newest one of its instance."""
        lease = math.inf if order.issued_at is None else order.lease
        self._entries[order.instance.uuid] = known(order), time.monotonic() + lease
        self._entries.move_to_end(order.instance.uuid)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def prune(self, busy: Container[str]) -> None:
        """Remove the entries that are no longer needed, except those of ``busy`` instances, which have an order."""
        now = time.monotonic()
        old = []
        for uuid, (_known, until) in self._entries.items():
            if until > now:
                break
            if uuid not in busy:
                old.append(uuid)
        for uuid in old:
            del self._entries[uuid]
