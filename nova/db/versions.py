"""Version counters that order the messages to hosts: of two messages the one with the greater version is newer.

A change increases the counter in its own transaction; the row of the counter is locked until the commit, so that the
order of versions is the order of the changes. A reader reads first the version and then the data, so the data are at
least as new as their version."""

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import clock, rows

TABLE = tables.versions

_UPDATE = sa.update(TABLE).where(TABLE.c.name == sa.bindparam("this")).values(version=sa.case(
    (TABLE.c.version < sa.bindparam("now"), sa.bindparam("now")), else_=TABLE.c.version + 1))


def rules(project_id: str) -> str:
    """Return the name of the counter of the security group rules for servers of a project."""
    return f"rules:{project_id}"


def rules_of(project_id: sa.Column[str]) -> sa.ColumnElement[str]:
    """Return the name that :func:`rules` returns as an SQL expression. ``project_id``: a column."""
    return sa.literal(rules("")) + project_id


def peers(network_uuid: str) -> str:
    """Return the name of the counter of the hosts of a network."""
    return f"peers:{network_uuid}"


def dns(domain: str) -> str:
    """Return the name of the counter of the names in a domain. The counter remains when the domain is deleted, since
    the deletion has a version, too."""
    return f"dns:{domain}"


def bump(connection: sa.Connection, name: str) -> None:
    """Increase the counter, usually to the current time in milliseconds. So, even after the database was restored from
    a backup, new versions are greater than all versions that hosts have received."""
    now = int(clock.now().timestamp() * 1000)
    if not connection.execute(_UPDATE, {"this": name, "now": now}).rowcount:
        with rows.on_duplicate():
            connection.execute(sa.insert(TABLE).values(name=name, version=now))


def get(connection: sa.Connection, name: str) -> int:
    """Return the current version; 0 before the first change."""
    return connection.scalar(sa.select(TABLE.c.version).where(TABLE.c.name == name)) or 0
