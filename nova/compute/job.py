"""An order in the hands of a host, and whether it may go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from nova import context
from nova.objects.order import StepOrder
from nova.operations.base import Step


class Superseded(Exception):
    """The order is not current any more: nothing of it may happen from now on."""


class Job:
    """An order while it waits and runs.

    It is current as long as its lease is known to hold: ``valid`` seconds from now, and longer when a heartbeat renews
    it. After that the conductor is asked (``confirm``) before the next effect.

    ``late_after``: the rank and the action of an order that had come before this one, and seemed newer.
    """

    def __init__(self, ctx: context.RequestContext, order: StepOrder, valid: float,
                 confirm: Callable[[Job], None], late_after: tuple[tuple[int, int], str] | None = None) -> None:
        self.ctx = ctx
        self.order = order
        self.uuid = order.instance.uuid
        self.late_after = late_after
        # Set for a step that shall end early: by an interrupt, or since a newer order has come.
        self.cancelled = threading.Event()
        # Whether it has a thread.
        self.begun = False
        self._confirm = confirm
        self._valid_until = time.monotonic() + valid
        self._superseded_at: float | None = None
        self._abandoned = False
        self._deadline: float | None = None
        self._step: Step | None = None

    # --- whether it is current -------------------------------------------------------------------
    def check(self) -> None:
        """Raises Superseded if this host knows by itself that the order is not current."""
        if self._abandoned:
            raise Superseded("it took too long")
        if self._superseded_at is not None:
            raise Superseded("a newer order has come")

    def fence(self) -> None:
        """Before every effect: returns if the order is current, after asking a conductor if need be.

        Raises Superseded.
        """
        self.check()
        if time.monotonic() >= self._valid_until:
            self._confirm(self)
            self.check()

    def renew(self, at: float) -> None:
        """Its lease was renewed by a message that was sent ``at`` (monotonic)."""
        self._valid_until = max(self._valid_until, at + self.order.lease / 2)

    def expire(self) -> None:
        """A conductor says that the lease is not ours: ask before the next effect."""
        self._valid_until = 0.0

    @property
    def overtaken(self) -> bool:
        """Whether a newer order has the say, or this one was left alone."""
        return self._superseded_at is not None or self._abandoned

    def supersede(self) -> None:
        """A newer order has come: this one ends at its next effect."""
        if self._superseded_at is None:
            self._superseded_at = time.monotonic()
        self.cancelled.set()

    def superseded_for(self, now: float) -> float:
        """Seconds since a newer order came; 0 if none did."""
        return now - self._superseded_at if self._superseded_at is not None else 0.0

    def adopt(self, newer: Job) -> bool:
        """Go on under the newer attempt at the same work, as if it had been its order; False if it is other work."""
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
        """The step that runs, or the first one."""
        return self._step.name if self._step else self.order.step

    def enter(self, step: Step) -> None:
        """``step`` begins, and has its time to end."""
        self._step, self._deadline = step, time.monotonic() + step.deadline

    def leave(self) -> None:
        """No step runs."""
        self._deadline = None

    def hangs(self, now: float) -> str | None:
        """The step that is over its time; None if none is."""
        late = self._deadline is not None and now > self._deadline and not self._abandoned
        return self.step_name if late else None

    def abandon(self) -> None:
        """Whatever runs for it has no further effect, and tells nothing."""
        self._abandoned = True
        self.cancelled.set()


class Fenced:
    """``target``, of which every verb first makes sure that the order of ``job`` is current."""

    def __init__(self, target: Any, job: Job) -> None:
        self._target = target
        self._job = job

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def verb(*args: Any, **kwargs: Any) -> Any:
            self._job.fence()
            return found(*args, **kwargs)

        return verb
