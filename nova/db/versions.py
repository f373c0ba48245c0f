"""Counters that order what hosts are told: of two messages the one with the greater version is newer.

Whoever changes what is told bumps the counter in the same transaction; its row is held until the commit, so that the
order of versions is the order of the changes. Whoever tells it reads the version first, and what it tells after it:
what travels under a version is as new as that, or newer.
"""

from __future__ import annotations

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova.db import tables
from nova.db.sql import clock

TABLE = tables.versions

_UPDATE = sa.update(TABLE).where(TABLE.c.name == sa.bindparam("this")).values(version=sa.case(
    (TABLE.c.version < sa.bindparam("now"), sa.bindparam("now")), else_=TABLE.c.version + 1))


def rules(project_id: str) -> str:
    """The counter of what the servers of a project let in."""
    return f"rules:{project_id}"


def rules_of(project_id: sa.Column[str]) -> sa.ColumnElement[str]:
    """The same of the project that a row is of."""
    return sa.literal(rules("")) + project_id


def peers(network_uuid: str) -> str:
    """The counter of the hosts that have a network."""
    return f"peers:{network_uuid}"


def dns(domain: str) -> str:
    """The counter of the names in a domain. It outlives the domain: that it is gone is told under a version, too."""
    return f"dns:{domain}"


def bump(connection: sa.Connection, name: str) -> None:
    """A greater version than any before.

    The time in milliseconds is one as a rule: what a database gives out that was set back to yesterday must still be
    newer than what hosts have heard meanwhile.
    """
    now = int(clock.now().timestamp() * 1000)
    if connection.execute(_UPDATE, {"this": name, "now": now}).rowcount:
        return
    try:
        connection.execute(sa.insert(TABLE).values(name=name, version=now))
    except db_exception.DBDuplicateEntry as error:  # another transaction inserted it at the same moment
        raise db_exception.RetryRequest(error) from error


def get(connection: sa.Connection, name: str) -> int:
    """The version now; 0 before the first change."""
    return connection.scalar(sa.select(TABLE.c.version).where(TABLE.c.name == name)) or 0
