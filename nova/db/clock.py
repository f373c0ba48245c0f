"""The clock by which leases and signs of life are judged: the database's, which all conductors share.

The wall clock of one machine may be wrong, or jump; what one conductor writes the others judge. A conductor asks
the database at every heartbeat and counts on by its monotonic clock in between. A process that never asks
(nova-manage) goes by its own clock.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import sqlalchemy as sa

from nova.objects.base import utcnow

_ASK = {
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "SELECT clock_timestamp() AT TIME ZONE 'UTC'",
    "mysql": "SELECT UTC_TIMESTAMP(6)",
    "mariadb": "SELECT UTC_TIMESTAMP(6)",
}
# What the database said, and the monotonic time then; one of each per process.
_heard: tuple[datetime.datetime, float] | None = None


def ask(connection: sa.Connection) -> None:
    """Hear from the database what time it is."""
    global _heard
    said: Any = connection.scalar(sa.text(_ASK[connection.dialect.name]))
    time_there = datetime.datetime.fromisoformat(said) if isinstance(said, str) else said
    _heard = time_there.replace(tzinfo=datetime.UTC), time.monotonic()


def now() -> datetime.datetime:
    """What the database would say now: aware, in UTC."""
    heard = _heard
    if heard is None:
        return utcnow()
    return heard[0] + datetime.timedelta(seconds=time.monotonic() - heard[1])


def after(seconds: float) -> datetime.datetime:
    """The time in so many seconds (ago, if negative)."""
    return now() + datetime.timedelta(seconds=seconds)
