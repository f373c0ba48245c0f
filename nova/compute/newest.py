"""The age of orders: validity without a confirmation by a conductor, and the newest order of each instance."""

import collections
import datetime
import math
import time
from collections.abc import Container

from nova.objects.servers.order import StepOrder

# The rank of an order, and the uuid of its action.
OrderKey = tuple[tuple[int, int], str]


def order_key(order: StepOrder) -> OrderKey:
    """Return the key that identifies an order and its age."""
    return order.rank, order.action.uuid


class NewestOrders:
    """The newest order of each instance, least recently stored first. Not thread-safe; the owner holds a lock. An order
    is current without a confirmation for half of its lease. An entry is kept for the whole lease: older orders that
    arrive later must be confirmed by a conductor. Orders without a time of issue, from a conductor of the previous
    release, cannot be confirmed: their entries stay until there are more than ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By instance, with the monotonic time until which the entry is needed.
        self._entries: collections.OrderedDict[str, tuple[OrderKey, float]] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uuid: str) -> OrderKey | None:
        """Return the newest order of an instance, or None if no order has come within its lease."""
        entry = self._entries.get(uuid)
        return entry[0] if entry else None

    def store(self, order: StepOrder) -> None:
        """Store an order as the newest one of its instance."""
        lease = math.inf if order.issued_at is None else order.lease
        self._entries[order.instance.uuid] = order_key(order), time.monotonic() + lease
        self._entries.move_to_end(order.instance.uuid)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def prune(self, busy: Container[str]) -> None:
        """Remove the entries that are no longer needed, except those of ``busy`` instances, which have an order."""
        now = time.monotonic()
        old = []
        for uuid, (_key, until) in self._entries.items():
            if until > now:
                break
            if uuid not in busy:
                old.append(uuid)
        for uuid in old:
            del self._entries[uuid]


class ConductorClock:
    """Estimates the conductors' time from the registration and a monotonic clock."""

    def __init__(self) -> None:
        self._reference: tuple[datetime.datetime, float] | None = None

    def learn(self, now: datetime.datetime | None, at: float | None = None) -> None:
        """Store the conductor's time ``now``, received ``at`` (monotonic; None: just now)."""
        if now is not None:
            self._reference = now, time.monotonic() if at is None else at

    def valid_for(self, order: StepOrder) -> float:
        """Return the seconds for which a new order is valid without a confirmation; 0 if it must be confirmed. An order
        issued before the registration was for the previous process, which may have been given up. An order without a
        time is from a conductor of the previous release, which supports no confirmation."""
        if order.issued_at is None:
            return math.inf
        if self._reference is None or order.issued_at < self._reference[0]:
            return 0.0
        reference, at = self._reference
        age = (reference - order.issued_at).total_seconds() + time.monotonic() - at
        # An order from the future: one of the clocks was changed.
        return max(0.0, order.lease / 2 - age) if age > -1.0 else 0.0
