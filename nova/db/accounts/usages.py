"""Usage of servers, from the rows of existing and deleted servers. The progress of the notifications about the servers
of an audit period is one row, which all conductors share."""

import datetime

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import rows, scans
from nova.objects.accounts.usage import ServerUsage
from nova.objects.servers.instance import Instance

TABLE = tables.instances
AUDITS = tables.usage_audits

_SHOWN = sa.select(TABLE.c.uuid, TABLE.c.project_id, TABLE.c.display_name, TABLE.c.vm_state, TABLE.c.flavor,
                   TABLE.c.launched_at, TABLE.c.terminated_at)
# An index contains these sort columns together with launched_at and terminated_at. So the database skips servers
# outside of the period by the index alone, without reading their rows.
_ORDER = [("project_id", "asc"), ("uuid", "asc")]


def index(connection: sa.Connection, begin: datetime.datetime, end: datetime.datetime, limit: int,
          project_id: str | None = None, marker: str | None = None) -> list[ServerUsage]:
    """Return a page of the servers that ran between ``begin`` and ``end``. Raises MarkerNotFound."""
    keys = sa.select(TABLE.c.id).where(
        TABLE.c.launched_at < end, sa.or_(TABLE.c.terminated_at.is_(None), TABLE.c.terminated_at > begin),
        *rows.equal(TABLE.c.project_id, project_id))
    after = rows.marker_row(connection, sa.select(TABLE.c.project_id, TABLE.c.uuid).where(
        TABLE.c.uuid == marker, *rows.equal(TABLE.c.project_id, project_id)), marker)
    # Select the ids first: otherwise MariaDB would also read the rows of all servers that it skips.
    few = rows.page(keys, TABLE, _ORDER, limit, after).subquery()
    return [ServerUsage(
        uuid=row.uuid, project_id=row.project_id, display_name=row.display_name, vm_state=row.vm_state,
        flavor=row.flavor.name, vcpus=row.flavor.vcpus, memory_mb=row.flavor.memory_mb,
        local_gb=row.flavor.root_gb + row.flavor.ephemeral_gb, launched_at=row.launched_at,
        terminated_at=row.terminated_at)
        for row in connection.execute(rows.page(_SHOWN.select_from(scans.rows_of(TABLE, few)), TABLE, _ORDER,
                                                None, None))]


# --- audit periods -----------------------------------------------------------------------------
def begin_audit(connection: sa.Connection, ending: datetime.datetime) -> int | None:
    """Start the notifications of the period that ends at ``ending``. Return the greatest id of a server whose
    notification is sent (0: none yet), or None if the notifications of all servers are sent."""
    row = connection.execute(sa.select(AUDITS).where(AUDITS.c.period_ending == ending)).first()
    if row is not None:
        return None if row.finished else int(row.marker)
    connection.execute(sa.delete(AUDITS).where(AUDITS.c.period_ending < ending))
    with rows.on_duplicate():
        connection.execute(sa.insert(AUDITS).values(period_ending=ending, marker=0, finished=False))
    return 0


def is_audit_finished(connection: sa.Connection, ending: datetime.datetime) -> bool:
    """Return True if the notifications of all servers are sent for the period that ends at ``ending``."""
    return bool(connection.scalar(sa.select(AUDITS.c.finished).where(AUDITS.c.period_ending == ending)))


def advance_audit(connection: sa.Connection, ending: datetime.datetime, marker: int, reported: int,
                  finished: bool) -> bool:
    """Record that the notifications of servers with ids above ``marker`` up to ``reported`` are sent. Return False if
    another conductor has already recorded that."""
    return connection.execute(sa.update(AUDITS).where(
        AUDITS.c.period_ending == ending, AUDITS.c.marker == marker, AUDITS.c.finished == sa.false())
        .values(marker=reported, finished=finished)).rowcount == 1


def audit_page(connection: sa.Connection, begin: datetime.datetime, ending: datetime.datetime, marker: int,
               limit: int) -> list[Instance]:
    """Return servers, including deleted ones, that were on a host in the period and have ids above ``marker``."""
    return rows.to_objects(Instance, connection.execute(sa.select(TABLE).where(
        TABLE.c.id > marker, TABLE.c.host.is_not(None), TABLE.c.launched_at < ending,
        sa.or_(TABLE.c.terminated_at.is_(None), TABLE.c.terminated_at > begin))
        .order_by(TABLE.c.id).limit(limit)))
