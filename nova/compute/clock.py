"""The conductors' clock as estimated by a host, whose own clock may be wrong."""

from __future__ import annotations

import datetime
import math
import time

from nova.objects.servers.order import StepOrder


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
