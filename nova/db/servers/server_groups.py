"""Server groups. The row of a server names its group. Claims enforce the policies: a claim locks the row of the group
while it checks the hosts of other members."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.sql import clock, rows
from nova.objects.base import new_uuid
from nova.objects.hosts.scheduling import AFFINITY, ANTI_AFFINITY, SOFT_ANTI_AFFINITY, GroupSpec
from nova.objects.servers.server_group import ServerGroup

TABLE = tables.server_groups
INSTANCES = tables.instances
MIGRATIONS = tables.migrations

# Maximum number of hosts that schedulers select for a server because of a soft policy; the last of them is accepted.
MAX_SELECTIONS = 8


def index(connection: sa.Connection, project_id: str | None, limit: int | None = None,
          offset: int = 0) -> list[ServerGroup]:
    """Return the groups of a project (None: of all projects), oldest first, by two statements."""
    return _with_members(connection, connection.execute(
        sa.select(TABLE).where(*rows.equal(TABLE.c.project_id, project_id)).order_by(TABLE.c.id)
        .limit(limit).offset(offset or None)).all())


def get(connection: sa.Connection, uuid: str, project_id: str | None = None) -> ServerGroup:
    """Return a group. Raises ServerGroupNotFound."""
    row = connection.execute(sa.select(TABLE).where(
        TABLE.c.uuid == uuid, *rows.equal(TABLE.c.project_id, project_id))).first()
    if row is None:
        raise exception.ServerGroupNotFound(group_uuid=uuid)
    return _with_members(connection, [row])[0]


def _with_members(connection: sa.Connection, stored: Sequence[sa.Row[Any]]) -> list[ServerGroup]:
    members: dict[str, list[str]] = {row.uuid: [] for row in stored}
    if stored:
        for uuid, group in connection.execute(
                sa.select(INSTANCES.c.uuid, INSTANCES.c.server_group).where(
                    INSTANCES.c.server_group.in_(list(members)), INSTANCES.c.deleted == sa.false())
                .order_by(INSTANCES.c.id)):
            members[group].append(uuid)
    groups = [rows.to_object(ServerGroup, row) for row in stored]
    for group in groups:
        group.members = members[group.uuid]
    return groups


# --- enforcement of policies -----------------------------------------------------------------
def hold(connection: sa.Connection, uuid: str) -> bool:
    """Lock a group until the transaction ends: members cannot be added or get a host. Return False if the group does
    not exist. To avoid deadlocks, call this before nodes and quotas are locked."""
    return bool(connection.execute(_HOLD, {"group": uuid}).rowcount)


def members_by_host(connection: sa.Connection, uuid: str, without: Sequence[str] = ()) -> dict[str, int]:
    """Return possible host -> number of members of the group; members in ``without`` do not count."""
    return {row.host: row.members for row in connection.execute(_BY_HOST, {"group": uuid, "without": list(without)})}


def admit(connection: sa.Connection, group: GroupSpec, instance_uuid: str, host: str, only: bool = False) -> str:
    """Lock the group and return the reason why its policy forbids the server on the host, or "". A soft policy forbids
    a host only if members that were placed since the scheduler's selection probably make another host better; then
    ``group.stale`` is set. A soft policy allows every host after ``MAX_SELECTIONS`` selections, or if the request names
    the host (``only``). A deleted group allows every host."""
    group.stale = False
    soft = group.policy not in (AFFINITY, ANTI_AFFINITY)
    if (soft and (only or group.selections >= MAX_SELECTIONS)) or not hold(connection, group.uuid):
        return ""
    hosts = members_by_host(connection, group.uuid, [instance_uuid])
    here = hosts.get(host, 0)
    if group.policy == AFFINITY:
        return "" if here or not hosts else "the server group is on another host"
    if group.policy == ANTI_AFFINITY:
        full = here >= max(group.max_server_per_host, 1)
        return "it already has the maximum number of servers of the group" if full else ""
    more = {other for other, members in hosts.items() if members > group.hosts.get(other, 0)}
    group.stale = host in more if group.policy == SOFT_ANTI_AFFINITY else any(hosts[other] > here for other in more)
    return "servers of its group were placed since it was chosen" if group.stale else ""


def count_members(connection: sa.Connection, uuid: str) -> int:
    return connection.scalar(_COUNT_MEMBERS, {"group": uuid}) or 0


_HOLD = sa.update(TABLE).where(TABLE.c.uuid == sa.bindparam("group")).values(held=TABLE.c.held + 1)
_MEMBERS = sa.and_(INSTANCES.c.server_group == sa.bindparam("group"), INSTANCES.c.deleted == sa.false())
_COUNT_MEMBERS = sa.select(sa.func.count()).select_from(INSTANCES).where(_MEMBERS)
_OTHERS = sa.and_(_MEMBERS, INSTANCES.c.uuid.not_in(sa.bindparam("without", expanding=True)))
_MOVING = sa.and_(_OTHERS, MIGRATIONS.c.instance_uuid == INSTANCES.c.uuid, MIGRATIONS.c.open == sa.true())
# UNION counts a member once on a host, even if the host is also the source or destination of its migration.
_PLACES = sa.union(
    sa.select(INSTANCES.c.uuid, INSTANCES.c.host.label("host")).where(_OTHERS, INSTANCES.c.host.is_not(None)),
    sa.select(INSTANCES.c.uuid, MIGRATIONS.c.source_compute).where(_MOVING),
    sa.select(INSTANCES.c.uuid, MIGRATIONS.c.dest_compute).where(_MOVING, MIGRATIONS.c.dest_compute != "")).subquery()
_BY_HOST = sa.select(_PLACES.c.host, sa.func.count().label("members")).group_by(_PLACES.c.host)


# --- changes ---------------------------------------------------------------------------------
def create(connection: sa.Connection, group: ServerGroup) -> ServerGroup:
    """Insert a group. Raises QuotaLimit."""
    project, user = quotas.explicit(connection, group.project_id, group.user_id)
    of_project, of_user = project["server_groups"], user.get("server_groups", -1)
    if of_project >= 0 or of_user >= 0:
        quotas.lock(connection, group.project_id)
        if 0 <= of_project <= quotas.count_rows(connection, TABLE.name, group.project_id) or \
                0 <= of_user <= quotas.count_rows(connection, TABLE.name, group.project_id, group.user_id):
            raise exception.QuotaLimit("Quota exceeded, too many server groups.")
    uuid = group.uuid or new_uuid()
    connection.execute(sa.insert(TABLE).values(
        {**rows.values_of(TABLE, group), "uuid": uuid, "created_at": clock.now()}))
    return get(connection, uuid)


def delete(connection: sa.Connection, uuid: str, project_id: str | None = None) -> None:
    """Delete a group; its servers stay, without the policy. Raises ServerGroupNotFound."""
    if not connection.execute(sa.delete(TABLE).where(
            TABLE.c.uuid == uuid, *rows.equal(TABLE.c.project_id, project_id))).rowcount:
        raise exception.ServerGroupNotFound(group_uuid=uuid)
