"""The database's clock, by which all conductors judge leases and heartbeats.

The wall clock of a machine may be wrong or jump, and other conductors compare the times that one conductor writes. So a
conductor queries the database's time at every heartbeat and extrapolates it by its monotonic clock. A process that
never queries the time of the database (nova-manage) uses its own wall clock.

The database's clock may jump as well, because it was set or because another server took over. Times written before the
jump cannot be compared with later ones: every host would look silent and every lease expired. A process detects the
jump by its monotonic clock and starts a grace period of service_down_time (:func:`in_grace_period`, :func:`steady`), in
which every running service writes new times. An outage of the database starts a grace period too, because no service
could store a heartbeat during the outage."""

import collections
import datetime
import logging
import time
from typing import Any

import sqlalchemy as sa

from nova.conf import CONF
from nova.objects.base import utcnow

LOG = logging.getLogger(__name__)

_TIME = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "clock_timestamp() AT TIME ZONE 'UTC'",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
}
# Longest round trip of a query, in seconds, whose result is recorded as the time of the database.
_MAX_ROUND_TRIP = 1.0
_JUMPS = 100  # number of jumps that a process stores; older jumps are dropped


class _State:
    """The newest time read from the database, and the jumps of its clock. Other times are of the monotonic clock."""

    def __init__(self) -> None:
        # Time of the database, and the monotonic time at which it was received.
        self.sample: tuple[datetime.datetime, float] | None = None
        # Monotonic time of the latest response of the database.
        self.answered: float | None = None
        self.jumped = self.grace_started = float("-inf")
        # Monotonic time and size in seconds of each jump; the newest last.
        self.jumps: collections.deque[tuple[float, float]] = collections.deque(maxlen=_JUMPS)

    def outage(self) -> float:
        """Return the seconds since the newest response of the database, or 0 if heartbeats could still be stored."""
        silent = 0.0 if self.answered is None else time.monotonic() - self.answered
        return silent if silent > max(CONF.service_down_time / 2, 2 * CONF.report_interval) else 0.0


_state = _State()


def synchronize(connection: sa.Connection) -> None:
    """Query the database's time and record it."""
    started = time.monotonic()
    record(connection.scalar(sa.select(column(connection))), started)


def column(connection: sa.Connection) -> sa.ColumnElement[Any]:
    """Return the column ``database_time`` for a statement that compares times; pass its value to :func:`record`."""
    return sa.literal_column(_TIME[connection.dialect.name]).label("database_time")


def record(value: Any, started: float) -> None:
    """Record a value of :func:`column`, received by a statement that was sent at the monotonic time ``started``."""
    database_time = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    database_time, received = database_time.replace(tzinfo=datetime.UTC), time.monotonic()
    if outage := _state.outage():
        LOG.warning("The database has not answered for %.0f s: no service is considered down for the next %d s", outage,
                    CONF.service_down_time)
        _state.grace_started = received
    _state.answered = received
    if _state.sample is not None:
        previous, at = _state.sample
        elapsed = (database_time - previous).total_seconds()
        ahead = max(0.0, elapsed - (received - at)) + min(0.0, elapsed - (started - at))
        if abs(ahead) > CONF.service_down_time / 10:  # clocks of a database cluster differ by up to seconds
            LOG.warning("The database's clock jumped by %+.0f s: no service is considered down for the next %d s",
                        ahead, CONF.service_down_time)
            _state.jumped = _state.grace_started = received
            _state.jumps.append((received, ahead))
        elif received - started > _MAX_ROUND_TRIP:
            return  # The result is too inexact: keep the previous sample.
    _state.sample = database_time, received


def now() -> datetime.datetime:
    """Return the present time of the database: aware, in UTC."""
    if _state.sample is None:
        return utcnow()
    database_time, received = _state.sample
    return database_time + datetime.timedelta(seconds=time.monotonic() - received)


def after(seconds: float) -> datetime.datetime:
    """Return the time in ``seconds`` from now; a negative number is in the past."""
    return now() + datetime.timedelta(seconds=seconds)


def overdue(seconds: float) -> datetime.datetime:
    """Return a time: rows written before it are at least ``seconds`` old. Rows written before a forward jump of the
    clock look older than they are, so the size of jumps that this process has detected is added to ``seconds``."""
    earliest = time.monotonic() - seconds
    jumped = most = 0.0
    for at, by in reversed(_state.jumps):
        if at < earliest:
            break
        jumped += by
        most = max(most, jumped)
    return after(-seconds - most)


def start_grace_period() -> None:
    """Consider no service down during the next service_down_time, since heartbeats could not be stored."""
    _state.grace_started = time.monotonic()


def in_grace_period() -> bool:
    """Return True if, within the past service_down_time, the clock jumped or heartbeats could not be stored."""
    return bool(time.monotonic() - _state.grace_started < CONF.service_down_time or _state.outage())


def steady(seconds: float) -> bool:
    """Return True if this process has detected no jump of the clock within the past ``seconds``."""
    return time.monotonic() - _state.jumped >= seconds


def reset() -> None:
    """Forget all samples and jumps (for tests)."""
    global _state
    _state = _State()
