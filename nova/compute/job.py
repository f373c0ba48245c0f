"""An order on a host, and the check that it is still current (fencing)."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from nova import context
from nova.objects.servers.order import StepOrder
from nova.operations.framework.base import Step
from nova.operations.framework.guest_driver import GuestDriver


class Superseded(Exception):
    """The order is not current any more and must have no further effect."""


class Job:
    """An order that waits or runs. The order is current for ``valid`` seconds, prolonged by heartbeats that renew its
    lease. After that it must be confirmed by a conductor (``confirm``) before its next effect. ``late_after``: rank and
    action of an order that arrived before this one although it seemed newer."""

    def __init__(self, ctx: context.RequestContext, order: StepOrder, valid: float,
                 confirm: Callable[[Job], None], late_after: tuple[tuple[int, int], str] | None = None) -> None:
        self.ctx = ctx
        self.order = order
        self.uuid = order.instance.uuid
        self.late_after = late_after
        # Set when the step should end early: by an interrupt, or because a newer order arrived.
        self.cancelled = threading.Event()
        # True when the order runs in a thread.
        self.begun = False
        self._confirm = confirm
        self._valid_until = time.monotonic() + valid
        self._superseded_at: float | None = None
        self._abandoned = False
        self._deadline: float | None = None
        self._step: Step | None = None

    # --- fencing -------------------------------------------------------------------
    def check(self) -> None:
        """Raise Superseded if this host has received a newer order or an interrupt."""
        if self._abandoned:
            raise Superseded("the order took too long")
        if self._superseded_at is not None:
            raise Superseded("a newer order was received")

    def fence(self) -> None:
        """Check before every effect that the order is current; confirm it with a conductor if needed. Raises
        Superseded."""
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
        """Return True if a newer order has taken over or this one was abandoned."""
        return self._superseded_at is not None or self._abandoned

    def supersede(self) -> None:
        """Note that a newer order arrived; this one ends at its next effect."""
        if self._superseded_at is None:
            self._superseded_at = time.monotonic()
        self.cancelled.set()

    def superseded_for(self, now: float) -> float:
        """Return the seconds since a newer order arrived, or 0."""
        return now - self._superseded_at if self._superseded_at is not None else 0.0

    def adopt(self, newer: Job) -> bool:
        """Continue under a newer attempt at the same step; return False if the order is for other work."""
        mine, other = self.order, newer.order
        if self.overtaken or mine.action.uuid != other.action.uuid or mine.undo != other.undo \
                or mine.action.operation != other.action.operation or other.step not in (mine.step, self.step_name):
            return False
        self.order = other
        self._valid_until = newer._valid_until
        return True

    # --- deadlines -------------------------------------------------------------------------------
    @property
    def step_name(self) -> str:
        """The name of the running step, or of the first one."""
        return self._step.name if self._step else self.order.step

    def enter(self, step: Step) -> None:
        """Start the deadline of ``step``."""
        self._step, self._deadline = step, time.monotonic() + step.deadline

    def leave(self) -> None:
        """Note that no step runs."""
        self._deadline = None

    def hangs(self, now: float) -> str | None:
        """Return the name of the step that exceeds its deadline, or None."""
        late = self._deadline is not None and now > self._deadline and not self._abandoned
        return self.step_name if late else None

    def abandon(self) -> None:
        """Give up the running step: it has no further effect and reports nothing."""
        self._abandoned = True
        self.cancelled.set()


class Fenced:
    """A proxy for a back end, or a role of the driver, that checks before every call that the order is current."""

    def __init__(self, target: Any, job: Job) -> None:
        self._target = target
        self._job = job

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def verb(*args: Any, **kwargs: Any) -> Any:
            self._job.fence()
            return attribute(*args, **kwargs)

        return verb


def fenced_roles(driver: GuestDriver, job: Job) -> GuestDriver:
    """Return the roles of a driver, each of them fenced."""
    roles: dict[str, Any] = {role.name: Fenced(getattr(driver, role.name), job)
                             for role in dataclasses.fields(GuestDriver)}
    return GuestDriver(**roles)
