"""Usage of servers, from the rows of existing and deleted servers."""

import datetime

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import rows, scans
from nova.objects.accounts.usage import ServerUsage

TABLE = tables.instances

_SHOWN = sa.select(TABLE.c.uuid, TABLE.c.project_id, TABLE.c.display_name, TABLE.c.vm_state, TABLE.c.flavor,
                   TABLE.c.launched_at, TABLE.c.terminated_at)
# Columns of an index that has both times, so that servers of other periods are skipped without reading their rows.
_ORDER = [("project_id", "asc"), ("uuid", "asc")]


def index(connection: sa.Connection, begin: datetime.datetime, end: datetime.datetime, limit: int,
          project_id: str | None = None, marker: str | None = None) -> list[ServerUsage]:
    """Return a page of the servers that ran between ``begin`` and ``end``. Raises MarkerNotFound."""
    keys = sa.select(TABLE.c.id).where(
        TABLE.c.launched_at < end, sa.or_(TABLE.c.terminated_at.is_(None), TABLE.c.terminated_at > begin),
        *rows.equal(TABLE.c.project_id, project_id))
    after = rows.marker_row(connection, sa.select(TABLE.c.project_id, TABLE.c.uuid).where(
        TABLE.c.uuid == marker, *rows.equal(TABLE.c.project_id, project_id)), marker)
    # MariaDB would read the rows of all servers that it skips.
    few = rows.page(keys, TABLE, _ORDER, limit, after).subquery()
    return [ServerUsage(
        uuid=row.uuid, project_id=row.project_id, display_name=row.display_name, vm_state=row.vm_state,
        flavor=row.flavor.name, vcpus=row.flavor.vcpus, memory_mb=row.flavor.memory_mb,
        local_gb=row.flavor.root_gb + row.flavor.ephemeral_gb, launched_at=row.launched_at,
        terminated_at=row.terminated_at)
        for row in connection.execute(rows.page(_SHOWN.select_from(scans.rows_of(TABLE, few)), TABLE, _ORDER,
                                                None, None))]
