"""Allocations of consumers as the Placement API shows and changes them.

Consumers without a row in ``consumers`` are servers and their migrations: their claims change only with the server.
Allocations of other consumers use the locks and the conditional updates of claims."""

import collections
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import tables
from nova.db.hosts import allocations, compute_nodes
from nova.db.placement import names, providers
from nova.db.sql import clock, rows
from nova.objects.hosts.placement import (
    INSTANCE,
    MIGRATION,
    RESOURCE_CLASS,
    UNKNOWN,
    ConsumerChange,
    ConsumerView,
    Resources,
    TypeUsage,
)

ALLOCATIONS = tables.allocations
CONSUMERS = tables.consumers
INSTANCES = tables.instances
MIGRATIONS = tables.migrations
PROVIDERS = tables.providers

_SELECT = (sa.select(ALLOCATIONS, CONSUMERS.c.generation, CONSUMERS.c.type, MIGRATIONS.c.id.label("migration"))
           .outerjoin(CONSUMERS, CONSUMERS.c.uuid == ALLOCATIONS.c.consumer_uuid)
           .outerjoin(MIGRATIONS, MIGRATIONS.c.uuid == ALLOCATIONS.c.consumer_uuid))


# --- reads -----------------------------------------------------------------------------------
def get(connection: sa.Connection, uuid: str) -> ConsumerView | None:
    """Return the allocations of a consumer, or None if it has none. Two statements."""
    consumers = _views(connection.execute(_SELECT.where(ALLOCATIONS.c.consumer_uuid == uuid)).all())
    for consumer in consumers:
        consumer.providers = {row.uuid: providers.generation_of(row) for row in connection.execute(
            providers.SELECT.where(PROVIDERS.c.uuid.in_(list(consumer.allocations))))}
    return consumers[0] if consumers else None


def of_provider(connection: sa.Connection, uuid: str) -> list[ConsumerView]:
    """Return the consumers of a provider with their allocations from it, by one statement."""
    return _views(connection.execute(_SELECT.where(ALLOCATIONS.c.provider_uuid == uuid)
                                     .order_by(ALLOCATIONS.c.consumer_uuid)).all())


def usages(connection: sa.Connection, project_id: str, user_id: str | None = None) -> dict[str, TypeUsage]:
    """Return the usage of a project (and user) by type of consumer, by one statement."""
    usage: dict[str, TypeUsage] = {}
    resources: dict[str, collections.Counter[str]] = {}
    consumers: dict[str, set[str]] = {}
    for row in connection.execute(_SELECT.where(
            ALLOCATIONS.c.project_id == project_id, *rows.equal(ALLOCATIONS.c.user_id, user_id))):
        resources.setdefault(_type(row), collections.Counter()).update(row.resources)
        consumers.setdefault(_type(row), set()).add(row.consumer_uuid)
    for name, amounts in resources.items():
        usage[name] = TypeUsage(consumers=len(consumers[name]), resources=dict(amounts))
    return usage


def _type(row: Any) -> str:
    return str(row.type) if row.type is not None else INSTANCE if row.migration is None else MIGRATION


def _views(allocation_rows: Sequence[Any]) -> list[ConsumerView]:
    """Return the consumers of these rows. Rows without resources are left out: a claim always has a row of the root."""
    consumers: dict[str, ConsumerView] = {}
    for row in allocation_rows:
        consumer = consumers.setdefault(row.consumer_uuid, ConsumerView(
            uuid=row.consumer_uuid, generation=row.generation or 1, type=_type(row), project_id=row.project_id,
            user_id=row.user_id, allocations={}))
        if row.resources:
            consumer.allocations[row.provider_uuid] = row.resources
    return [consumer for consumer in consumers.values() if consumer.allocations]


# --- changes -----------------------------------------------------------------------------------
def replace(connection: sa.Connection, changes: Sequence[ConsumerChange]) -> list[Any]:
    """Replace the allocations of consumers; return the states of the affected compute nodes for schedulers.

    Raises OwnedByNova (claims of servers), UnknownProvider, ConsumerConflict, Invalid (an unknown resource class) and
    PlacementConflict (no room)."""
    uuids = [change.uuid for change in changes]
    _check_owner(connection, uuids)
    wanted = {provider for change in changes for provider in change.allocations}
    names.check(connection, RESOURCE_CLASS, {
        name for change in changes for amounts in change.allocations.values() for name in amounts})
    roots = set(connection.scalars(sa.select(ALLOCATIONS.c.root_uuid).where(ALLOCATIONS.c.consumer_uuid.in_(uuids))))
    roots.update(connection.scalars(sa.select(PROVIDERS.c.root_uuid).where(PROVIDERS.c.uuid.in_(wanted))))
    providers.hold(connection, roots)
    # Lock the consumers before reading their allocations: another transaction may add allocations in another tree.
    ordered = sorted(changes, key=lambda change: change.uuid)
    for change in ordered:
        _write_consumer(connection, change)
    held = connection.execute(sa.select(ALLOCATIONS.c.consumer_uuid, ALLOCATIONS.c.provider_uuid,
                                        ALLOCATIONS.c.resources).where(ALLOCATIONS.c.consumer_uuid.in_(uuids))
                              .order_by(ALLOCATIONS.c.provider_uuid)).all()
    involved = {row.uuid: row for row in connection.execute(providers.SELECT.where(
        PROVIDERS.c.uuid.in_(wanted | {row.provider_uuid for row in held})))}
    for uuid in sorted(wanted - involved.keys()):
        raise exception.UnknownProvider(uuid=uuid)
    if not roots >= {row.root_uuid for row in involved.values()}:
        raise db_exception.RetryRequest(exception.ServiceUnavailable("The allocations have changed meanwhile."))
    for row in held:
        allocations.give_back(connection, row.provider_uuid, row.resources)
    connection.execute(sa.delete(ALLOCATIONS).where(ALLOCATIONS.c.consumer_uuid.in_(uuids)))
    for change in ordered:
        for provider, amounts in sorted(change.allocations.items()):
            _take(connection, involved[provider], amounts)
    _insert(connection, changes, involved)
    for row in sorted(involved.values(), key=lambda row: (row.root_uuid, row.uuid)):
        providers.changed(connection, row)
    return compute_nodes.states_of(connection, sorted(
        {row.root_uuid for row in involved.values() if row.node_generation is not None}))


def remove(connection: sa.Connection, uuid: str) -> list[Any]:
    """Remove the allocations of a consumer; return the states of the affected compute nodes. Raises NotFound,
    OwnedByNova."""
    if connection.scalar(sa.select(ALLOCATIONS.c.provider_uuid).where(ALLOCATIONS.c.consumer_uuid == uuid)
                         .limit(1)) is None:
        raise exception.NotFound(f"No allocations for consumer '{uuid}'")
    return replace(connection, [ConsumerChange(uuid=uuid)])


def _check_owner(connection: sa.Connection, uuids: Sequence[str]) -> None:
    """Raise OwnedByNova if a consumer is a server or a migration, even if it has no claim."""
    for statement, what, command in (
            (sa.select(INSTANCES.c.uuid).where(INSTANCES.c.uuid.in_(uuids), INSTANCES.c.deleted == sa.false()),
             "a server", "openstack server resize, migrate, shelve or delete"),
            (sa.select(MIGRATIONS.c.uuid).where(MIGRATIONS.c.uuid.in_(uuids)),
             "a migration of a server", "openstack server resize confirm or revert, or server migration abort"),
            (sa.select(ALLOCATIONS.c.consumer_uuid).where(
                ALLOCATIONS.c.consumer_uuid.in_(uuids), allocations.OF_SERVERS),
             "a deleted server", "nova-manage audit --repair")):
        uuid = connection.scalar(statement.limit(1))
        if uuid is not None:
            raise exception.OwnedByNova(what=f"Consumer {uuid} is {what}, whose claim Nova manages", command=command)


def _write_consumer(connection: sa.Connection, change: ConsumerChange) -> None:
    """Insert, update or delete the row of a consumer. Raises ConsumerConflict."""
    this = CONSUMERS.c.uuid == change.uuid
    row = connection.execute(sa.select(CONSUMERS).where(this).with_for_update()).first()
    actual = row.generation if row is not None else None
    conflict = exception.ConsumerConflict(
        uuid=change.uuid, actual="null" if actual is None else actual,
        expected="null" if change.generation is None else change.generation)
    if change.checked and change.generation != actual:
        raise conflict
    if row is None and change.allocations:
        with rows.on_duplicate(conflict if change.checked else None):
            connection.execute(sa.insert(CONSUMERS).values(
                uuid=change.uuid, generation=1, type=change.type or UNKNOWN, created_at=clock.now()))
    elif row is not None:
        connection.execute(sa.update(CONSUMERS).where(this).values(
            generation=CONSUMERS.c.generation + 1, type=change.type or CONSUMERS.c.type) if change.allocations
            else sa.delete(CONSUMERS).where(this))


def _take(connection: sa.Connection, provider: Any, amounts: Resources) -> None:
    if allocations.take(connection, provider.uuid, amounts):
        return
    inventories = providers.views(connection, [provider])[0].inventories
    missing = sorted(amounts.keys() - inventories.keys())
    if missing:
        raise exception.PlacementConflict(f"Unable to allocate inventory: Inventory for {', '.join(missing)} on "
                                          f"resource provider {provider.uuid} does not exist.")
    shown = ", ".join(f"{name}: {amount} requested of {inventories[name].capacity}, {inventories[name].used} used, "
                      f"units {inventories[name].min_unit} to {inventories[name].max_unit} in steps of "
                      f"{inventories[name].step_size}" for name, amount in sorted(amounts.items()))
    raise exception.PlacementConflict(f"Unable to allocate inventory on resource provider {provider.uuid}: {shown}.")


def _insert(connection: sa.Connection, changes: Sequence[ConsumerChange], involved: dict[str, Any]) -> None:
    now = clock.now()
    inserted = [{"consumer_uuid": change.uuid, "provider_uuid": provider, "root_uuid": involved[provider].root_uuid,
                 "resources": amounts, "project_id": change.project_id, "user_id": change.user_id, "created_at": now}
                for change in changes for provider, amounts in change.allocations.items()]
    if inserted:
        connection.execute(sa.insert(ALLOCATIONS), inserted)
