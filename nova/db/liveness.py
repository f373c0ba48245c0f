"""Liveness of services: a heartbeat within service_down_time, of a row and as an SQL condition."""

import datetime
from typing import Any

import sqlalchemy as sa

from nova.conf import CONF
from nova.db import tables
from nova.db.sql import clock

SERVICES = tables.services


def is_alive(row: sa.Row[Any], now: datetime.datetime) -> bool:
    """Return True if the service sent a heartbeat within service_down_time. While the clock is in doubt, the previous
    state holds. A time in the future was written before the clock was set back and does not count."""
    if clock.in_grace_period():
        return bool(row.up)
    return row.last_seen is not None and abs((now - row.last_seen).total_seconds()) <= CONF.service_down_time


def alive() -> sa.ColumnElement[bool]:
    """Return the condition that a service sent heartbeats, forced down or not."""
    if clock.in_grace_period():
        return SERVICES.c.up == sa.true()
    return SERVICES.c.last_seen.between(clock.after(-CONF.service_down_time), clock.after(CONF.service_down_time))


def up() -> sa.ColumnElement[bool]:
    """Return the condition that services are alive and not forced down."""
    return sa.and_(alive(), SERVICES.c.forced_down == sa.false())


def host_up(host: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that the nova-compute of ``host`` is up."""
    return sa.exists().where(SERVICES.c.host == host, SERVICES.c.binary == "nova-compute", up())
