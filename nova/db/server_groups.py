"""Server groups; their members are the servers that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import models, quotas, rows
from nova.objects.base import new_uuid, utcnow
from nova.objects.compute import ServerGroup

TABLE = models.server_groups
INSTANCES = models.instances


def index(connection: sa.Connection, project_id: str | None, limit: int | None = None,
          offset: int = 0) -> list[ServerGroup]:
    """Oldest first; ``project_id`` None: of every project. Two statements."""
    statement = sa.select(TABLE).order_by(TABLE.c.id).limit(limit).offset(offset or None)
    if project_id is not None:
        statement = statement.where(TABLE.c.project_id == project_id)
    return _with_members(connection, connection.execute(statement).all())


def get(connection: sa.Connection, uuid: str, project_id: str | None = None) -> ServerGroup:
    """Raises ServerGroupNotFound."""
    statement = sa.select(TABLE).where(TABLE.c.uuid == uuid)
    if project_id is not None:
        statement = statement.where(TABLE.c.project_id == project_id)
    row = connection.execute(statement).first()
    if row is None:
        raise exception.ServerGroupNotFound(group_uuid=uuid)
    return _with_members(connection, [row])[0]


def _with_members(connection: sa.Connection, found: Sequence[sa.Row[Any]]) -> list[ServerGroup]:
    members: dict[str, list[str]] = {row.uuid: [] for row in found}
    if found:
        for uuid, group in connection.execute(
                sa.select(INSTANCES.c.uuid, INSTANCES.c.server_group).where(
                    INSTANCES.c.server_group.in_(list(members)), INSTANCES.c.deleted == sa.false())
                .order_by(INSTANCES.c.id)):
            members[group].append(uuid)
    groups = [rows.to_object(ServerGroup, row) for row in found]
    for group in groups:
        group.members = members[group.uuid]
    return groups


def create(connection: sa.Connection, group: ServerGroup) -> ServerGroup:
    """Raises QuotaLimit."""
    project, user = quotas.explicit(connection, group.project_id, group.user_id)
    of_project, of_user = project["server_groups"], user.get("server_groups", -1)
    if of_project >= 0 or of_user >= 0:
        quotas.lock(connection, group.project_id)
        if 0 <= of_project <= quotas.count_server_groups(connection, group.project_id) or \
                0 <= of_user <= quotas.count_server_groups(connection, group.project_id, group.user_id):
            raise exception.QuotaLimit("Quota exceeded, too many server groups.")
    uuid = group.uuid or new_uuid()
    connection.execute(sa.insert(TABLE).values(
        {**rows.values_of(TABLE, group), "uuid": uuid, "created_at": utcnow()}))
    return get(connection, uuid)


def delete(connection: sa.Connection, uuid: str, project_id: str | None = None) -> None:
    """Its servers stay, unrestricted. Raises ServerGroupNotFound."""
    statement = sa.delete(TABLE).where(TABLE.c.uuid == uuid)
    if project_id is not None:
        statement = statement.where(TABLE.c.project_id == project_id)
    if connection.execute(statement).rowcount == 0:
        raise exception.ServerGroupNotFound(group_uuid=uuid)
