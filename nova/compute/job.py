"""Orders on a host: the check that an order is still current (fencing), and the newest order of each instance."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import datetime
import math
import threading
import time
from collections.abc import Callable, Container
from typing import Any

from nova import context
from nova.objects.servers.order import StepOrder
from nova.operations.framework.base import Step
from nova.operations.framework.guest_driver import GuestDriver


class Superseded(Exception):
    """The order is not current any more and must have no further effect."""


class Job:
    """An order that waits or runs. The order is current for ``valid`` seconds, prolonged by heartbeats that renew its
    lease. After that time a conductor must confirm it (``confirm``) before its next effect. ``late_after``: rank and
    action of an order that arrived before this order and has the same or a higher rank. ``repeats``: True for a
    compensation that this host repeats without an order from a conductor."""

    def __init__(self, ctx: context.RequestContext, order: StepOrder, valid: float, confirm: Callable[[Job], None],
                 late_after: tuple[tuple[int, int], str] | None = None, repeats: bool = False) -> None:
        self.ctx, self.order = ctx, order
        self.uuid = order.instance.uuid
        self.late_after, self.repeats = late_after, repeats
        # The first order that compensates this order after it was abandoned.
        self.compensation: StepOrder | None = None
        # Set when the step should end early: by an interrupt, or because a newer order arrived.
        self.cancelled = threading.Event()
        # True when the order runs in a thread, which executes the function of ``future``.
        self.begun = False
        self.future: concurrent.futures.Future[None] | None = None
        self._confirm = confirm
        self._valid_until = time.monotonic() + valid
        self._superseded_at: float | None = None
        self.abandoned = False
        self._deadline: float | None = None
        self._step: Step | None = None
        # Notes of the driver about the running step; ``continues``: the driver has raised InProgress in this step.
        self.notes: dict[str, int] = {}
        self.continues = False
        # While the hypervisor changes the guest and no thread waits: the function to call next, and when (monotonic).
        self.parked: tuple[Callable[[], None], float] | None = None

    def check(self) -> None:
        """Raise Superseded if the order was abandoned or this host has received a newer order."""
        if self.abandoned:
            raise Superseded("it was abandoned because it took too long")
        if self._superseded_at is not None:
            raise Superseded("the host received a newer request for the instance")

    def fence(self) -> None:
        """Check that the order is current, and confirm it if needed; called before every effect. Raises Superseded."""
        self.check()
        if time.monotonic() >= self._valid_until:
            self._confirm(self)
            self.check()

    def renew(self, at: float) -> None:
        """Prolong the lease after a renewal that was requested ``at`` (monotonic)."""
        self._valid_until = max(self._valid_until, at + self.order.lease / 2)

    def expire(self) -> None:
        """End the lease: confirm the order before its next effect."""
        self._valid_until = 0.0

    @property
    def overtaken(self) -> bool:
        """Return True if a newer order superseded this order, or this order was abandoned."""
        return self._superseded_at is not None or self.abandoned

    def supersede(self) -> None:
        """Note that a newer order arrived; this order ends before its next effect."""
        if self._superseded_at is None:
            self._superseded_at = time.monotonic()
        self.cancelled.set()

    def superseded_for(self, now: float) -> float:
        """Return the seconds since a newer order arrived, or 0."""
        return now - self._superseded_at if self._superseded_at is not None else 0.0

    def adopt(self, newer: Job) -> bool:
        """Continue under a newer attempt at the same step; return False if the order is for other work."""
        mine, other = self.order, newer.order
        if self.overtaken or self.repeats or mine.action.uuid != other.action.uuid or mine.undo != other.undo \
                or mine.action.operation != other.action.operation or other.step not in (mine.step, self.step_name):
            return False
        self.order = other
        self._valid_until = newer._valid_until
        return True

    def compensated_by(self, newer: Job) -> bool:
        """Return True, and store ``newer``, if it compensates this abandoned order; False if it is for other work."""
        order = newer.order
        if not order.undo or self.order.undo or order.action.operation != self.order.action.operation:
            return False
        self.compensation = self.compensation or order
        return True

    @property
    def step_name(self) -> str:
        """Return the name of the running step, or of the first step."""
        return self._step.name if self._step else self.order.step

    def enter(self, step: Step) -> None:
        """Start the deadline of ``step``, unless the step continues after a pause."""
        if self._step is not step:
            self._step, self._deadline = step, time.monotonic() + step.deadline
            self.notes, self.continues = {}, False

    def leave(self) -> None:
        """End the deadline: no step runs."""
        self._deadline = None

    def hangs(self, now: float) -> str | None:
        """Return the name of the step that exceeds its deadline, or None."""
        late = self._deadline is not None and now > self._deadline and not self.abandoned
        return self.step_name if late else None

    def abandon(self) -> None:
        """Give up the running step: it has no further effect and reports nothing."""
        self.abandoned = True
        self.cancelled.set()


class Fenced:
    """A proxy for a back end or for a role of the driver. Before every call it checks that the order is current."""

    def __init__(self, target: Any, job: Job) -> None:
        self._target, self._job = target, job

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def verb(*args: Any, **kwargs: Any) -> Any:
            self._job.fence()
            return attribute(*args, **kwargs)

        return verb


def fenced_roles(driver: GuestDriver, job: Job) -> GuestDriver:
    """Return the roles of a driver, each behind a :class:`Fenced` proxy."""
    roles: dict[str, Any] = {role.name: Fenced(getattr(driver, role.name), job)
                             for role in dataclasses.fields(GuestDriver)}
    return GuestDriver(**roles)


# The rank of an order, and the uuid of its action.
OrderKey = tuple[tuple[int, int], str]


def order_key(order: StepOrder) -> OrderKey:
    """Return the key that identifies an order and its age."""
    return order.rank, order.action.uuid


class NewestOrders:
    """The newest order of each instance, least recently stored first. Not thread-safe; the owner holds a lock. An order
    is current without a confirmation for half of its lease. An entry is kept for the whole lease: a conductor must
    confirm older orders that arrive meanwhile. Orders without a time of issue, from a conductor of the previous
    release, cannot be confirmed: their entries stay until there are more than ``limit`` entries."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Instance uuid -> its newest order, and the monotonic time until which the entry is needed.
        self._entries: collections.OrderedDict[str, tuple[OrderKey, float]] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uuid: str) -> OrderKey | None:
        """Return the key of the newest order of an instance, or None if no order is stored."""
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
        """Remove the entries that are no longer needed, except those of ``busy`` instances (an order waits or runs)."""
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
        issued before this process registered was sent to the previous process and may have been superseded since. An
        order without a time is from a conductor of the previous release, which supports no confirmation."""
        if order.issued_at is None:
            return math.inf
        if self._reference is None or order.issued_at < self._reference[0]:
            return 0.0
        reference, at = self._reference
        age = (reference - order.issued_at).total_seconds() + time.monotonic() - at
        # A negative age means that one of the clocks was changed.
        return max(0.0, order.lease / 2 - age) if age > -1.0 else 0.0
