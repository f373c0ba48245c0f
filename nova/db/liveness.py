"""Liveness of services (a heartbeat within service_down_time), computed from a row or as an SQL condition."""

import datetime
from typing import Any

import sqlalchemy as sa

from nova.conf import CONF
from nova.db import tables
from nova.db.sql import clock

SERVICES = tables.services


def is_alive(row: sa.Row[Any], now: datetime.datetime) -> bool:
    """Return True if the service sent a heartbeat within service_down_time. In the grace period after a jump of the
    clock, return the stored state ``up``. A time further in the future than service_down_time does not count: it was
    written before the clock was set back."""
    if clock.in_grace_period():
        return bool(row.up)
    return row.last_seen is not None and abs((now - row.last_seen).total_seconds()) <= CONF.service_down_time


def alive() -> sa.ColumnElement[bool]:
    """Return the condition that a service is alive (see :func:`is_alive`), even if it is forced down."""
    if clock.in_grace_period():
        return SERVICES.c.up == sa.true()
    return SERVICES.c.last_seen.between(clock.after(-CONF.service_down_time), clock.after(CONF.service_down_time))


def up() -> sa.ColumnElement[bool]:
    """Return the condition that a service is alive and not forced down."""
    return sa.and_(alive(), SERVICES.c.forced_down == sa.false())


def host_up(host: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that the nova-compute of ``host`` is up."""
    return sa.exists().where(SERVICES.c.host == host, SERVICES.c.binary == "nova-compute", up())
