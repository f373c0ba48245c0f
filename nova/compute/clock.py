"""The conductors' clock, as a host knows it: its own may be wrong, and messages may be old."""

from __future__ import annotations

import datetime
import math
import time

from nova.objects.order import StepOrder


class ConductorClock:
    """Learns the time when the host registers, and counts from there by a clock that nobody sets."""

    def __init__(self) -> None:
        self._learned: tuple[datetime.datetime, float] | None = None

    def learn(self, now: datetime.datetime | None, at: float | None = None) -> None:
        """A conductor said so ``at`` (monotonic; None: just now)."""
        if now is not None:
            self._learned = now, time.monotonic() if at is None else at

    def valid_for(self, order: StepOrder) -> float:
        """For how many seconds an order that has just come is current without asking; 0: ask.

        One that was given before the host registered was for the process before this one, which may have been given
        up. One that says no time comes from a conductor of the last release, which cannot be asked.
        """
        if order.issued_at is None:
            return math.inf
        if self._learned is None or order.issued_at < self._learned[0]:
            return 0.0
        learned, at = self._learned
        age = (learned - order.issued_at).total_seconds() + time.monotonic() - at
        # An order from the future: one of the clocks was set.
        return max(0.0, order.lease / 2 - age) if age > -1.0 else 0.0
