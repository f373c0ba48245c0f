"""Instances: rows of the one wide table, and lists of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import models, rows
from nova.objects.base import utcnow
from nova.objects.compute import ExpectedGuest
from nova.objects.instance import Instance

TABLE = models.instances

# Wide columns that a list without detail never shows.
_BRIEF = ("user_data", "network_info", "block_devices", "personality", "system_metadata", "scheduler_hints",
          "requested_networks")


def addresses_of(network_info: Sequence[Any]) -> str:
    """The searchable form of the fixed addresses."""
    return "," + "".join(f"{vif.address}," for vif in network_info) if network_info else ""


def insert(connection: sa.Connection, instances: Sequence[Instance]) -> None:
    """Write new rows; the instances get their ids (the names of their guests come from them)."""
    ids = connection.scalars(sa.insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True),
                             [_values(instance) for instance in instances])
    for instance, number in zip(instances, ids, strict=True):
        instance.id = number


def _values(instance: Instance) -> dict[str, Any]:
    values = rows.values_of(TABLE, instance)
    values["flavorid"] = instance.flavor.flavorid
    values["key_name"] = instance.key.name if instance.key else None
    values["addresses"] = addresses_of(instance.network_info)
    return values


@functools.cache
def _one(of_project: bool = False, deleted: bool = False, lock: bool = False) -> sa.Select[Any]:
    """Built once: building a statement anew costs several times what running it does."""
    statement = sa.select(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))
    if of_project:
        statement = statement.where(TABLE.c.project_id == sa.bindparam("project"))
    if not deleted:
        statement = statement.where(TABLE.c.deleted == sa.false())
    return statement.with_for_update() if lock else statement


_UPDATE = sa.update(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))


def get(connection: sa.Connection, uuid: str, project_id: str | None = None, deleted: bool = False) -> Instance:
    """Raises InstanceNotFound; ``deleted`` finds deleted rows too."""
    return _found(connection, _one(project_id is not None, deleted), uuid, project_id)


def lock(connection: sa.Connection, uuid: str, project_id: str | None = None) -> Instance:
    """The instance, held until the transaction ends (a read that is followed by a write of it)."""
    return _found(connection, _one(project_id is not None, lock=True), uuid, project_id)


def _found(connection: sa.Connection, statement: sa.Select[Any], uuid: str, project_id: str | None) -> Instance:
    wanted = {"this": uuid} if project_id is None else {"this": uuid, "project": project_id}
    row = connection.execute(statement, wanted).first()
    if row is None:
        raise exception.InstanceNotFound(instance_id=uuid)
    return rows.to_object(Instance, row)


def get_many(connection: sa.Connection, uuids: Sequence[str]) -> list[Instance]:
    """Those of these instances that exist, in no order."""
    if not uuids:
        return []
    statement = sa.select(TABLE).where(TABLE.c.uuid.in_(uuids), TABLE.c.deleted == sa.false())
    return rows.to_objects(Instance, connection.execute(statement))


def update(connection: sa.Connection, uuid: str, changes: dict[str, Any]) -> None:
    """Write columns; ``updated_at`` and the derived columns follow."""
    values = {"updated_at": utcnow(), **changes}
    if "network_info" in changes:
        values["addresses"] = addresses_of(changes["network_info"])
    if "key" in changes:
        values["key_name"] = changes["key"].name if changes["key"] else None
    if "flavor" in changes:
        values["flavorid"] = changes["flavor"].flavorid
    connection.execute(_UPDATE, {**values, "this": uuid})


def on_host(connection: sa.Connection, host: str, limit: int, marker: str | None) -> list[Instance]:
    """The instances that belong on a host, by uuid after ``marker``."""
    statement = (sa.select(TABLE).where(TABLE.c.host == host, TABLE.c.deleted == sa.false())
                 .order_by(TABLE.c.uuid).limit(limit))
    if marker:
        statement = statement.where(TABLE.c.uuid > marker)
    return rows.to_objects(Instance, connection.execute(statement))


def expected(connection: sa.Connection, host: str, limit: int, marker: str | None) -> list[ExpectedGuest]:
    """The guests of a host by uuid after ``marker``, with what is compared only."""
    statement = (sa.select(TABLE.c.uuid, TABLE.c.power_state, TABLE.c.launched_at, TABLE.c.task_state)
                 .where(TABLE.c.host == host, TABLE.c.deleted == sa.false(), TABLE.c.uuid > (marker or ""))
                 .order_by(TABLE.c.uuid).limit(limit))
    return [ExpectedGuest(uuid=row.uuid, power_state=row.power_state,
                          settled=row.launched_at is not None and row.task_state is None)
            for row in connection.execute(statement)]


def on_hosts_brief(connection: sa.Connection, hosts: Sequence[str], limit: int) -> list[Instance]:
    """The (brief) instances on any of these hosts."""
    statement = (sa.select(*brief_columns()).where(TABLE.c.host.in_(hosts), TABLE.c.deleted == sa.false())
                 .order_by(TABLE.c.uuid).limit(limit))
    return rows.to_objects(Instance, connection.execute(statement))


def known(connection: sa.Connection, uuids: Sequence[str]) -> dict[str, str | None]:
    """uuid -> host of those that exist."""
    statement = sa.select(TABLE.c.uuid, TABLE.c.host).where(
        TABLE.c.uuid.in_(uuids), TABLE.c.deleted == sa.false())
    return dict(connection.execute(statement).all())


def ever(connection: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Those of them that exist or did."""
    return set(connection.scalars(sa.select(TABLE.c.uuid).where(TABLE.c.uuid.in_(uuids))))


def hosts_of(connection: sa.Connection, uuids: Sequence[str]) -> dict[str, str]:
    """uuid -> host of those that have one."""
    return {uuid: host for uuid, host in known(connection, uuids).items() if host}


def group_hosts(connection: sa.Connection, group_uuid: str) -> dict[str, int]:
    """host -> how many members of the server group are there."""
    statement = (sa.select(TABLE.c.host, sa.func.count()).where(
        TABLE.c.server_group == group_uuid, TABLE.c.deleted == sa.false(), TABLE.c.host.is_not(None))
        .group_by(TABLE.c.host))
    return dict(connection.execute(statement).all())


def brief_columns() -> list[sa.Column[Any]]:
    """Every column that a plain list may show."""
    return [column for column in TABLE.c if column.name not in _BRIEF]
