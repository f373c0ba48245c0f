"""Instances: rows of one wide table, and lists of instances."""

import datetime
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock, hot, rows
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.guest import ExpectedGuest
from nova.objects.servers.instance import Instance

T = TypeVar("T")

TABLE = tables.instances
MIGRATIONS = tables.migrations

# Columns with long values that a list without details never shows.
_BRIEF = ("user_data", "network_info", "block_devices", "personality", "system_metadata", "scheduler_hints",
          "requested_networks", "shares", "numa_topology", "pci_devices", "device_addresses", "admin_pass",
          "encrypted_pass", "encrypted_tpm_secret", "text_block")

# Columns of the text index, and columns whose change removes a server from its block of the text index.
INDEXED_TEXTS = ("display_name", "hostname", "display_description", "addresses", "reservation_id", "key_name",
                 "availability_zone", "tags")
_LEAVES_INDEX = frozenset({*INDEXED_TEXTS, "deleted"})

_ADDRESSES: int = getattr(TABLE.c.addresses.type, "length", 0)  # maximum number of characters of searchable addresses


def addresses_of(network_info: Sequence[Any]) -> str:
    """Return the fixed addresses in the searchable form of the column ``addresses``, as many as fit into it."""
    listed = ""
    for address in (address for vif in network_info for address in vif.addresses()):
        if len(listed) + len(address) + 2 > _ADDRESSES:
            break
        listed += f",{address}"
    return f"{listed}," if listed else ""


def insert(connection: sa.Connection, instances: Sequence[Instance]) -> None:
    """Insert instances and set their ids (instance_name_template may use the id in the name of the guest)."""
    ids = connection.scalars(sa.insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True),
                             [values_of(instance) for instance in instances])
    for instance, number in zip(instances, ids, strict=True):
        instance.id = number


def values_of(instance: Instance) -> dict[str, Any]:
    """Return the values of a new instance by column."""
    values = rows.values_of(TABLE, instance)
    values["flavorid"] = instance.flavor.flavorid
    values["key_name"] = instance.key.name if instance.key else None
    values["addresses"] = addresses_of(instance.network_info)
    return values


@functools.cache
def _statement(of_project: bool = False, deleted: bool = False, lock: bool = False) -> sa.Select[Any]:
    """Return a SELECT of one server. Each statement is built once, since building costs more than executing."""
    statement = sa.select(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))
    if of_project:
        statement = statement.where(TABLE.c.project_id == sa.bindparam("project"))
    if not deleted:
        statement = statement.where(TABLE.c.deleted == sa.false())
    return statement.with_for_update() if lock else statement


_UPDATE = sa.update(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))


def get(connection: sa.Connection, uuid: str, project_id: str | None = None, deleted: bool = False) -> Instance:
    """Return an instance. Raises InstanceNotFound. ``deleted``: include deleted rows."""
    return _read(connection, _statement(project_id is not None, deleted), uuid, project_id)


def lock(connection: sa.Connection, uuid: str, project_id: str | None = None) -> Instance:
    """Return an instance, locked until the transaction ends."""
    return _read(connection, _statement(project_id is not None, lock=True), uuid, project_id)


def _read(connection: sa.Connection, statement: sa.Select[Any], uuid: str, project_id: str | None) -> Instance:
    wanted = {"this": uuid} if project_id is None else {"this": uuid, "project": project_id}
    return rows.first(connection, Instance, statement, exception.InstanceNotFound(instance_id=uuid), wanted)


def check_place(connection: sa.Connection, instance: Instance, host: str) -> Instance:
    """Return the instance if ``host`` is "" or one of its possible hosts. Raises InstanceNotFound otherwise. Executes
    no statement if the instance is on the host."""
    if host and instance.host != host and host not in places(connection, [instance.uuid]).get(instance.uuid, ()):
        raise exception.InstanceNotFound(instance_id=instance.uuid)
    return instance


def get_many(connection: sa.Connection, uuids: Sequence[str], host: str = "") -> list[Instance]:
    """Return the existing instances with these uuids, in no order. ``host``: only those that may exist on the host."""
    if not uuids:
        return []
    statement = sa.select(TABLE).where(TABLE.c.uuid.in_(uuids), TABLE.c.deleted == sa.false())
    if host:
        statement = statement.where(placed_on(host))
    return rows.to_objects(Instance, connection.execute(statement))


def update(connection: sa.Connection, uuid: str, changes: dict[str, Any]) -> None:
    """Write columns, ``updated_at`` and derived columns. An instance whose indexed texts change leaves its block."""
    values = {"updated_at": clock.now(), **changes}
    if "network_info" in changes:
        values["addresses"] = addresses_of(changes["network_info"])
    if "key" in changes:
        values["key_name"] = changes["key"].name if changes["key"] else None
    if "flavor" in changes:
        values["flavorid"] = changes["flavor"].flavorid
    if not _LEAVES_INDEX.isdisjoint(values):
        values["text_block"] = None
    hot.execute(connection, _UPDATE, {**values, "this": uuid})


def change(connection: sa.Connection, instance: Instance, column: str, changed: Callable[[list[T]], list[T]]) -> None:
    """Replace a list in a column by ``changed(list)``. The list is read again while the row is locked, since concurrent
    requests may change it. The row stays locked until the transaction ends. Does nothing if the instance is deleted."""
    try:
        now = lock(connection, instance.uuid)
    except exception.InstanceNotFound:
        return
    setattr(instance, column, changed(getattr(now, column)))
    update(connection, now.uuid, {column: getattr(instance, column)})


def placed_on(host: str) -> sa.ColumnElement[bool]:
    """Return the condition that ``host`` is a possible host of an instance: the instance is there, or has an open
    migration from or to it. The source of an evacuation is not a possible host."""
    source = sa.and_(MIGRATIONS.c.source_compute == host, MIGRATIONS.c.migration_type != migration_states.EVACUATION)
    moving = sa.select(MIGRATIONS.c.instance_uuid).where(
        MIGRATIONS.c.open == sa.true(), sa.or_(source, MIGRATIONS.c.dest_compute == host))
    return sa.and_(sa.or_(TABLE.c.host == host, TABLE.c.uuid.in_(moving)), TABLE.c.deleted == sa.false())


def on_host(connection: sa.Connection, host: str, limit: int, marker: str | None) -> list[Instance]:
    """Return the instances that may exist on a host, ordered by uuid, from the first uuid after ``marker``."""
    statement = sa.select(TABLE).where(placed_on(host)).order_by(TABLE.c.uuid).limit(limit)
    if marker:
        statement = statement.where(TABLE.c.uuid > marker)
    return rows.to_objects(Instance, connection.execute(statement))


def expected(connection: sa.Connection, host: str, limit: int = 1000, marker: str | None = None) -> list[ExpectedGuest]:
    """Return the same guests as :func:`on_host`, with only the fields for a comparison with the host's guests."""
    moving = sa.exists().where(MIGRATIONS.c.instance_uuid == TABLE.c.uuid, MIGRATIONS.c.open == sa.true())
    statement = (sa.select(TABLE.c.uuid, TABLE.c.power_state, TABLE.c.launched_at, TABLE.c.task_state, TABLE.c.host,
                           moving.label("moving"))
                 .where(placed_on(host), TABLE.c.uuid > (marker or "")).order_by(TABLE.c.uuid).limit(limit))
    return [ExpectedGuest(uuid=row.uuid, power_state=row.power_state,
                          settled=row.launched_at is not None and row.task_state is None and row.host == host,
                          moving=bool(row.moving))
            for row in connection.execute(statement)]


def places(connection: sa.Connection, uuids: Sequence[str]) -> dict[str, set[str]]:
    """Return {uuid: possible hosts} of the existing instances: their hosts, and the hosts of their open migrations."""
    hosts = {row.uuid: {row.host} if row.host else set() for row in connection.execute(
        sa.select(TABLE.c.uuid, TABLE.c.host).where(TABLE.c.uuid.in_(uuids), TABLE.c.deleted == sa.false()))}
    for row in connection.execute(sa.select(
            MIGRATIONS.c.instance_uuid, MIGRATIONS.c.migration_type, MIGRATIONS.c.source_compute,
            MIGRATIONS.c.dest_compute).where(
            MIGRATIONS.c.instance_uuid.in_(list(hosts)), MIGRATIONS.c.open == sa.true())):
        source = "" if row.migration_type == migration_states.EVACUATION else row.source_compute
        hosts[row.instance_uuid] |= {host for host in (source, row.dest_compute) if host}
    return hosts


def soft_deleted(connection: sa.Connection, before: datetime.datetime, limit: int) -> list[str]:
    """Return the uuids of instances soft-deleted before ``before`` and without a running task, oldest first."""
    return list(connection.scalars(sa.select(TABLE.c.uuid).where(
        TABLE.c.soft_deleted_at < before, TABLE.c.vm_state == states.SOFT_DELETED,
        TABLE.c.task_state.is_(None)).order_by(TABLE.c.soft_deleted_at).limit(limit)))


def on_hosts_brief(connection: sa.Connection, hosts: Sequence[str], limit: int) -> list[Instance]:
    """Return the instances on these hosts, with brief_columns() only."""
    statement = (sa.select(*brief_columns()).where(TABLE.c.host.in_(hosts), TABLE.c.deleted == sa.false())
                 .order_by(TABLE.c.uuid).limit(limit))
    return rows.to_objects(Instance, connection.execute(statement))


def runnable(connection: sa.Connection, host: str, uuids: Sequence[str]) -> dict[str, bool]:
    """Return {uuid: True if an operation is running} of those of these servers that are ACTIVE on the host."""
    return {row.uuid: row.action_uuid is not None or row.task_state is not None for row in connection.execute(
        sa.select(TABLE.c.uuid, TABLE.c.action_uuid, TABLE.c.task_state).where(
            TABLE.c.uuid.in_(uuids), TABLE.c.host == host, TABLE.c.deleted == sa.false(),
            TABLE.c.vm_state == states.ACTIVE))}


def with_interfaces(connection: sa.Connection, after: str, limit: int) -> list[Any]:
    """Return rows with uuid, project_id, host, network_info, action_uuid and task_state of servers after ``after``."""
    columns = (TABLE.c.uuid, TABLE.c.project_id, TABLE.c.host, TABLE.c.network_info, TABLE.c.action_uuid,
               TABLE.c.task_state)
    return list(connection.execute(sa.select(*columns).where(
        TABLE.c.deleted == sa.false(), TABLE.c.uuid > after).order_by(TABLE.c.uuid).limit(limit)))


def ever(connection: sa.Connection, uuids: Collection[str]) -> set[str]:
    """Return the uuids of instances that exist or existed."""
    return set(connection.scalars(sa.select(TABLE.c.uuid).where(TABLE.c.uuid.in_(uuids))))


def hosts_of(connection: sa.Connection, project_id: str, uuids: Sequence[str]) -> dict[str, str]:
    """Return {uuid: host} of these instances of the project, without instances that have no host."""
    return dict(connection.execute(sa.select(TABLE.c.uuid, TABLE.c.host).where(
        TABLE.c.uuid.in_(uuids), TABLE.c.project_id == project_id, TABLE.c.deleted == sa.false(),
        TABLE.c.host.is_not(None))).all())


def sharing_image_properties(connection: sa.Connection, properties: dict[str, str]) -> dict[str, dict[str, int]]:
    """Return {property: {host: number of its servers whose image has the same value}}. Reads every server once."""
    names = sorted(properties)
    # The text of a property in the JSON of the column. Quotes within values are escaped, so only a property matches.
    pairs = [msgspec.json.encode({name: properties[name]}).decode()[1:-1] for name in names]
    image = sa.type_coerce(TABLE.c.image, sa.Text)
    counts = [sa.func.sum(sa.case((image.contains(pair, autoescape=True), 1), else_=0)) for pair in pairs]
    by_name: dict[str, dict[str, int]] = {name: {} for name in names}
    for host, *numbers in connection.execute(
            sa.select(TABLE.c.host, *counts).where(TABLE.c.host.is_not(None), TABLE.c.deleted == sa.false())
            .group_by(TABLE.c.host)):
        for name, number in zip(names, numbers, strict=True):
            if number:
                by_name[name][host] = int(number)
    return {name: hosts for name, hosts in by_name.items() if hosts}


def at_rest(connection: sa.Connection, vm_state: str, after: int, window: int) -> tuple[list[Instance], int | None]:
    """Return servers in this state without a running operation, and the id after which to continue (None: the end).
    Only the next ``window`` rows with ids above ``after`` are searched, which bounds the duration of the statement."""
    last = connection.scalar(
        sa.select(TABLE.c.id).where(TABLE.c.id > after).order_by(TABLE.c.id).offset(window - 1).limit(1))
    statement = sa.select(TABLE).where(
        TABLE.c.id > after, TABLE.c.deleted == sa.false(), TABLE.c.vm_state == vm_state,
        TABLE.c.action_uuid.is_(None)).order_by(TABLE.c.id)
    if last is not None:
        statement = statement.where(TABLE.c.id <= last)
    return rows.to_objects(Instance, connection.execute(statement)), last


def placed(connection: sa.Connection, uuids: Collection[str]) -> dict[str, str | None]:
    """Return {uuid: host, or None without a host} of the existing instances."""
    return dict(connection.execute(sa.select(TABLE.c.uuid, TABLE.c.host).where(
        TABLE.c.uuid.in_(uuids), TABLE.c.deleted == sa.false())).all())


def brief_columns() -> list[sa.Column[Any]]:
    """Return every column that a list without details may show."""
    return [column for column in TABLE.c if column.name not in _BRIEF]
