"""The clock by which leases and signs of life are judged: the database's, which all conductors share.

The wall clock of one machine may be wrong, or jump; what one conductor writes the others judge. A conductor asks
the database at every heartbeat and counts on by its monotonic clock in between. A process that never asks
(nova-manage) goes by its own clock.

The database's clock may jump, too (it was set, or another server took over). Then what was written before and what
is written after cannot be compared, and whoever did would find every host silent and every lease ended. So each
process notices a jump by its monotonic clock, and says for a while that times are in doubt: :func:`doubted`,
:func:`steady`. Until then everything that lives has written its times anew. It is the same when the database was out
of reach: nobody could write that he lives, and who does first afterwards says nothing about the others.
"""

from __future__ import annotations

import collections
import datetime
import logging
import time
from typing import Any

import sqlalchemy as sa

from nova.conf import CONF
from nova.objects.base import utcnow

LOG = logging.getLogger(__name__)

_ASK = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "clock_timestamp() AT TIME ZONE 'UTC'",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
}
# An answer that took longer, in seconds, does not set the clock.
_PROMPT = 1.0
# Jumps that a process remembers.
_JUMPS = 100


class _Heard:
    """What this process knows of the database's clock, in seconds of its own monotonic clock."""

    def __init__(self) -> None:
        # What the database said, and the monotonic time then.
        self.said: tuple[datetime.datetime, float] | None = None
        # When the database answered last.
        self.answered: float | None = None
        self.jumped = self.doubted = float("-inf")
        # When the clock jumped, by the monotonic clock, and by how many seconds; the newest last.
        self.jumps: collections.deque[tuple[float, float]] = collections.deque(maxlen=_JUMPS)

    def cut_off(self) -> float:
        """For how many seconds the database has not answered, if that is so long that silence means nothing; or 0."""
        silent = 0.0 if self.answered is None else time.monotonic() - self.answered
        return silent if silent > max(CONF.service_down_time / 2, 2 * CONF.report_interval) else 0.0


_heard = _Heard()


def ask(connection: sa.Connection) -> None:
    """Hear from the database what time it is."""
    asked = time.monotonic()
    hear(connection.scalar(sa.select(column(connection))), asked)


def column(connection: sa.Connection) -> sa.ColumnElement[Any]:
    """The database's time as a column, so that a statement which judges times brings it along for :func:`hear`."""
    return sa.literal_column(_ASK[connection.dialect.name]).label("time_there")


def hear(said: Any, asked: float) -> None:
    """The database said a time (a value of :func:`column`) between ``asked``, by the monotonic clock, and now."""
    time_there = datetime.datetime.fromisoformat(said) if isinstance(said, str) else said
    time_there, heard = time_there.replace(tzinfo=datetime.UTC), time.monotonic()
    if cut_off := _heard.cut_off():
        LOG.warning("The database has not been asked for %.0f s: for %d s nobody is judged by silence", cut_off,
                    CONF.service_down_time)
        _heard.doubted = heard
    _heard.answered = heard
    if _heard.said is not None:
        before, then = _heard.said
        elapsed = (time_there - before).total_seconds()
        ahead = max(0.0, elapsed - (heard - then)) + min(0.0, elapsed - (asked - then))
        if abs(ahead) > _tolerance():
            LOG.warning("The database's clock jumped by %+.0f s: for %d s nobody is judged by it", ahead,
                        CONF.service_down_time)
            _heard.jumped = _heard.doubted = heard
            _heard.jumps.append((heard, ahead))
        elif heard - asked > _PROMPT:
            return  # nobody knows when exactly it was said: what we have is better
    _heard.said = time_there, heard


def _tolerance() -> float:
    """Differences up to here are no jump: servers of one cluster never agree to the second."""
    return float(CONF.service_down_time) / 10


def now() -> datetime.datetime:
    """What the database would say now: aware, in UTC."""
    heard = _heard.said
    if heard is None:
        return utcnow()
    return heard[0] + datetime.timedelta(seconds=time.monotonic() - heard[1])


def after(seconds: float) -> datetime.datetime:
    """The time in so many seconds (ago, if negative)."""
    return now() + datetime.timedelta(seconds=seconds)


def overdue(seconds: float) -> datetime.datetime:
    """Return the time before which a row was written that is at least ``seconds`` old.

    Rows that were written before the clock jumped forward look older than they are. They get the difference on top, as
    far as this process noticed the jump.
    """
    earliest = time.monotonic() - seconds
    jumped = most = 0.0
    for at, by in reversed(_heard.jumps):
        if at < earliest:
            break
        jumped += by
        most = max(most, jumped)
    return after(-seconds - most)


def doubt() -> None:
    """Silence means nothing for service_down_time from now on: we could not have heard anybody."""
    _heard.doubted = time.monotonic()


def doubted() -> bool:
    """Is silence in doubt: did the clock jump, or could we hear nobody, within service_down_time?"""
    return bool(time.monotonic() - _heard.doubted < CONF.service_down_time or _heard.cut_off())


def steady(seconds: float) -> bool:
    """Did the clock go on without a jump for so long, as far as this process knows?"""
    return time.monotonic() - _heard.jumped >= seconds


def forget() -> None:
    """As in a new process."""
    global _heard
    _heard = _Heard()
