"""Resource providers as the Placement API shows and changes them.

Providers of compute nodes belong to nova-compute, which reports them: clients may add custom traits and aggregates to
them. Changes lock the row of the compute node or, in trees without one, the row of the root, as claims do."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import tables
from nova.db.hosts import aggregates, allocations
from nova.db.placement import names
from nova.db.sql import rows
from nova.objects.base import new_uuid
from nova.objects.hosts import node as node_types
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import CUSTOM, PROVIDER, RESOURCE_CLASS, TRAIT, ProviderFilter, ProviderView

PROVIDERS = tables.providers
INVENTORIES = tables.inventories
ALLOCATIONS = tables.allocations
NODES = tables.compute_nodes
AGGREGATES = tables.aggregates
MEMBERSHIPS = tables.provider_aggregates
NAMES = tables.placement_names

SELECT = sa.select(PROVIDERS, NODES.c.generation.label("node_generation"), NODES.c.host).outerjoin(
    NODES, NODES.c.uuid == PROVIDERS.c.root_uuid)
# The SELECT for lists, without traits, which would be most of the data.
_BRIEF = SELECT.with_only_columns(*(column for column in SELECT.selected_columns if "traits" not in column.name),
                                  maintain_column_froms=True)
_PAGE = 1000
_MOST_INVENTORIES, _MOST_TRAIT_BYTES = 5000, 1 << 20  # limits per tree: each message about its node has all of them
_MOST_TRAITS, _MOST_CLASSES, _MOST_AGGREGATES = 1000, 200, 1000
_SETTINGS = ("total", "reserved", "ratio", "min_unit", "max_unit", "step_size")


# --- reads -----------------------------------------------------------------------------------
def get(connection: sa.Connection, uuid: str) -> ProviderView:
    """Return a provider with inventories and aggregates, by four statements. Raises ProviderNotFound."""
    return views(connection, [_row(connection, uuid)])[0]


def index(connection: sa.Connection, wanted: ProviderFilter) -> list[ProviderView]:
    """Return the providers that fulfil all conditions, by a statement per 1000 providers."""
    statement = _BRIEF.where(*_conditions(connection, wanted)).order_by(PROVIDERS.c.uuid).limit(_PAGE)
    result: list[Any] = []
    page = connection.execute(statement).all()
    while page:
        result += page
        page = connection.execute(statement.where(PROVIDERS.c.uuid > page[-1].uuid)).all() if len(page) == _PAGE else []
    return [_view(row, []) for row in result]


def generation_of(row: Any) -> int:
    return int(row.generation if row.external else row.node_generation or 0)


def _view(row: Any, traits: Sequence[str]) -> ProviderView:
    return ProviderView(uuid=row.uuid, name=row.name, generation=generation_of(row), root_uuid=row.root_uuid,
                        parent_uuid=row.parent_uuid, traits=sorted(traits))


def views(connection: sa.Connection, provider_rows: Sequence[Any]) -> list[ProviderView]:
    """Return the providers of these rows with inventories and aggregates, by three statements for any number."""
    providers = {row.uuid: _view(row, row.traits) for row in provider_rows}
    for row in connection.execute(sa.select(INVENTORIES).where(INVENTORIES.c.provider_uuid.in_(list(providers)))):
        provider = providers[row.provider_uuid]
        provider.inventories = {**provider.inventories, row.resource_class: rows.to_object(Inventory, row)}
    member_of: dict[str, set[str]] = {}
    for row in connection.execute(sa.select(MEMBERSHIPS).where(MEMBERSHIPS.c.provider_uuid.in_(list(providers)))):
        member_of.setdefault(row.provider_uuid, set()).add(row.aggregate_uuid)
    nodes = [(row.host, row.uuid) for row in provider_rows if row.uuid == row.root_uuid and row.host is not None]
    if nodes:
        of_hosts = aggregates.of_host(connection, nodes[0][0]) if len(nodes) == 1 else aggregates.index(connection)
        for host, uuid in nodes:
            member_of.setdefault(uuid, set()).update(
                aggregate.uuid for aggregate in of_hosts if host in aggregate.hosts)
    for uuid, uuids in member_of.items():
        providers[uuid].aggregates = sorted(uuids)
    return list(providers.values())


def offers(resource_class: str, amount: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row is the inventory of ``resource_class`` and has room for ``amount``."""
    return sa.and_(
        INVENTORIES.c.resource_class == resource_class,
        INVENTORIES.c.used + amount <= (INVENTORIES.c.total - INVENTORIES.c.reserved) * INVENTORIES.c.ratio,
        INVENTORIES.c.min_unit <= amount, INVENTORIES.c.max_unit >= amount,
        sa.or_(INVENTORIES.c.step_size <= 1, amount % sa.func.nullif(INVENTORIES.c.step_size, 0) == 0))


def is_member(connection: sa.Connection, uuids: Iterable[str], provider: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a row of ``provider`` (uuid) is in one of these aggregates."""
    uuids = list(uuids)
    hosts = sorted({host for hosts in connection.scalars(sa.select(AGGREGATES.c.hosts).where(
        AGGREGATES.c.uuid.in_(uuids))) for host in hosts})
    return sa.or_(
        provider.c.uuid.in_(sa.select(MEMBERSHIPS.c.provider_uuid).where(MEMBERSHIPS.c.aggregate_uuid.in_(uuids))),
        provider.c.uuid.in_(sa.select(NODES.c.uuid).where(NODES.c.host.in_(hosts))))


def _conditions(connection: sa.Connection, wanted: ProviderFilter) -> list[sa.ColumnElement[bool]]:
    names.check(connection, RESOURCE_CLASS, wanted.resources)
    names.check(connection, TRAIT, {*wanted.forbidden, *(trait for options in wanted.required for trait in options)})
    conditions = [*rows.equal(PROVIDERS.c.uuid, wanted.uuid), *rows.equal(PROVIDERS.c.name, wanted.name)]
    if wanted.in_tree is not None:
        root = connection.scalar(sa.select(PROVIDERS.c.root_uuid).where(PROVIDERS.c.uuid == wanted.in_tree))
        conditions.append(PROVIDERS.c.root_uuid == root if root is not None else sa.false())
    conditions += [sa.exists().where(INVENTORIES.c.provider_uuid == PROVIDERS.c.uuid, offers(name, amount))
                   for name, amount in wanted.resources.items()]
    conditions += [sa.or_(*(names.has_trait(trait) for trait in options)) for options in wanted.required]
    conditions += [~names.has_trait(trait) for trait in wanted.forbidden]
    conditions += [is_member(connection, options, PROVIDERS) for options in wanted.member_of]
    if wanted.not_member_of:
        conditions.append(~is_member(connection, wanted.not_member_of, PROVIDERS))
    return conditions


def _row(connection: sa.Connection, uuid: str) -> Any:
    row = connection.execute(SELECT.where(PROVIDERS.c.uuid == uuid)).first()
    if row is None:
        raise exception.ProviderNotFound(uuid=uuid)
    return row


# --- locks and generations ---------------------------------------------------------------------
def hold(connection: sa.Connection, roots: Collection[str]) -> None:
    """Lock these trees: the rows of compute nodes first, then those of other roots."""
    nodes = set(connection.scalars(sa.select(NODES.c.uuid).where(NODES.c.uuid.in_(roots)).order_by(NODES.c.uuid)
                                   .with_for_update()))
    others = set(roots) - nodes
    if others:
        connection.execute(sa.select(PROVIDERS.c.uuid).where(PROVIDERS.c.uuid.in_(others)).order_by(PROVIDERS.c.uuid)
                           .with_for_update()).all()


def _held(connection: sa.Connection, uuid: str, *roots: str) -> Any:
    """Lock the tree of a provider and the trees ``roots``; return the provider's row. Raises ProviderNotFound."""
    before = _row(connection, uuid)
    hold(connection, {before.root_uuid, *roots})
    row = _row(connection, uuid)
    if row.root_uuid != before.root_uuid:
        raise db_exception.RetryRequest(exception.ServiceUnavailable("The provider was moved meanwhile."))
    return row


def changed(connection: sa.Connection, row: Any, generation: int | None = None) -> None:
    """Increment the generations of a locked provider and its node. Raises ConcurrentUpdate unless at ``generation``."""
    if generation is not None and generation != generation_of(row):
        raise exception.ConcurrentUpdate(uuid=row.uuid, actual=generation_of(row), expected=generation)
    if row.node_generation is not None:
        connection.execute(sa.update(NODES).where(NODES.c.uuid == row.root_uuid).values(
            generation=NODES.c.generation + 1))
    if row.external:
        connection.execute(sa.update(PROVIDERS).where(PROVIDERS.c.uuid == row.uuid).values(
            generation=PROVIDERS.c.generation + 1))


# --- external providers ------------------------------------------------------------------------
def create(connection: sa.Connection, name: str, uuid: str | None = None, parent_uuid: str | None = None
           ) -> ProviderView:
    """Create an external provider. Raises UnknownProvider (the parent), DuplicateProvider, PlacementConflict."""
    uuid = uuid or new_uuid()
    parent = _parent(connection, parent_uuid) if parent_uuid is not None else None
    if connection.scalar(sa.select(PROVIDERS.c.uuid).where(PROVIDERS.c.uuid == uuid)) is not None:
        raise exception.DuplicateProvider(field="uuid", value=uuid)
    _register(connection, name)
    with rows.on_duplicate(exception.DuplicateProvider(field="uuid", value=uuid)):
        connection.execute(sa.insert(PROVIDERS).values(
            uuid=uuid, name=name, parent_uuid=parent_uuid, root_uuid=parent.root_uuid if parent else uuid, traits=[],
            external=True, generation=0))
    if parent is not None:
        _check_size(connection, parent.root_uuid)
        changed(connection, parent)
    return get(connection, uuid)


def update(connection: sa.Connection, uuid: str, name: str, parent_uuid: str | None, reparent: bool,
           move: bool) -> ProviderView:
    """Rename a provider and, if ``reparent``, set its parent. ``move``: True if its present parent may be replaced.
    Raises ProviderNotFound, UnknownProvider, OwnedByNova, DuplicateProvider, Invalid."""
    new_root = _parent(connection, parent_uuid, lock=False).root_uuid if reparent and parent_uuid is not None else uuid
    row = _held(connection, uuid, *({new_root} - {uuid}))
    if new_root != uuid and _parent(connection, str(parent_uuid), lock=False).root_uuid != new_root:
        raise db_exception.RetryRequest(exception.ServiceUnavailable("The parent provider was moved meanwhile."))
    moved = reparent and parent_uuid != row.parent_uuid
    if name == row.name and not moved:
        return get(connection, uuid)
    if not row.external:
        raise exception.OwnedByNova(what=f"The resource provider {uuid} belongs to a compute node",
                                    command="nova-compute, which reports its name and its place in the tree")
    if name != row.name:
        _unregister(connection, row.name)
        _register(connection, name)
        connection.execute(sa.update(PROVIDERS).where(PROVIDERS.c.uuid == uuid).values(name=name))
    if moved:
        if row.parent_uuid is not None and not move:
            raise exception.Invalid(f"Unable to save resource provider {uuid}: re-parenting a provider is not allowed "
                                    f"before microversion 1.37.")
        _move(connection, row, parent_uuid, new_root)
    changed(connection, row)
    return get(connection, uuid)


def delete(connection: sa.Connection, uuid: str) -> str:
    """Delete an external provider; return the uuid of its root. Raises ProviderNotFound, OwnedByNova,
    ProviderHasChildren, ProviderInUse."""
    row = _held(connection, uuid)
    if not row.external:
        raise exception.OwnedByNova(what=f"The resource provider {uuid} belongs to a compute node",
                                    command="openstack compute service delete")
    if uuid in {parent for _uuid, parent in _tree(connection, row.root_uuid)}:
        raise exception.ProviderHasChildren(uuid=uuid)
    if connection.scalar(sa.select(ALLOCATIONS.c.consumer_uuid).where(
            ALLOCATIONS.c.provider_uuid == uuid).limit(1)) is not None:
        raise exception.ProviderInUse(uuid=uuid)
    changed(connection, row)
    connection.execute(sa.delete(INVENTORIES).where(INVENTORIES.c.provider_uuid == uuid))
    connection.execute(sa.delete(MEMBERSHIPS).where(MEMBERSHIPS.c.provider_uuid == uuid))
    connection.execute(sa.delete(PROVIDERS).where(PROVIDERS.c.uuid == uuid))
    _unregister(connection, row.name)
    return str(row.root_uuid)


def _parent(connection: sa.Connection, uuid: str, lock: bool = True) -> Any:
    try:
        return _held(connection, uuid) if lock else _row(connection, uuid)
    except exception.ProviderNotFound:
        raise exception.UnknownProvider(f"parent_provider_uuid: no resource provider with uuid {uuid} found.") from None


def _move(connection: sa.Connection, row: Any, parent_uuid: str | None, new_root: str) -> None:
    children: dict[str | None, list[str]] = {}
    for uuid, parent in _tree(connection, row.root_uuid):
        children.setdefault(parent, []).append(uuid)
    subtree = [row.uuid]
    for uuid in subtree:
        subtree += children.get(uuid, ())
    if parent_uuid in subtree:
        raise exception.Invalid(f"Unable to save resource provider {row.uuid}: parent_provider_uuid {parent_uuid} is "
                                f"the provider itself or below it (creating loop in the provider tree).")
    if new_root != row.root_uuid:
        _check_claims(connection, row.uuid, subtree)
    connection.execute(sa.update(PROVIDERS).where(PROVIDERS.c.uuid == row.uuid).values(parent_uuid=parent_uuid))
    connection.execute(sa.update(PROVIDERS).where(PROVIDERS.c.uuid.in_(subtree)).values(root_uuid=new_root))
    connection.execute(sa.update(ALLOCATIONS).where(ALLOCATIONS.c.provider_uuid.in_(subtree)).values(
        root_uuid=new_root))
    _check_size(connection, new_root)
    connection.execute(sa.update(NODES).where(NODES.c.uuid == new_root).values(generation=NODES.c.generation + 1))


def _check_claims(connection: sa.Connection, uuid: str, subtree: Sequence[str]) -> None:
    """Raise PlacementConflict if a server has a claim in a subtree, which must then stay in the tree of the node."""
    consumer = connection.scalar(sa.select(ALLOCATIONS.c.consumer_uuid).where(
        ALLOCATIONS.c.provider_uuid.in_(subtree), allocations.OF_SERVERS).limit(1))
    if consumer is not None:
        raise exception.PlacementConflict(
            f"Unable to move resource provider {uuid} to another tree: it or a provider below it has allocations of "
            f"{consumer}, a server or a migration of a server. Move or delete the server first.")


def _tree(connection: sa.Connection, root: str) -> list[tuple[str, str | None]]:
    """Return the uuid and the parent of each provider of a tree."""
    return [(row.uuid, row.parent_uuid) for row in connection.execute(
        sa.select(PROVIDERS.c.uuid, PROVIDERS.c.parent_uuid).where(PROVIDERS.c.root_uuid == root))]


def _check_size(connection: sa.Connection, root: str) -> None:
    """Raise PlacementConflict if a tree has more data than schedulers and messages may have of one node."""
    size = connection.execute(sa.select(
        sa.func.count(), sa.func.sum(sa.func.length(sa.type_coerce(PROVIDERS.c.traits, sa.Text)))).where(
            PROVIDERS.c.root_uuid == root)).one()
    inventories = connection.scalar(sa.select(sa.func.count()).select_from(PROVIDERS.join(
        INVENTORIES, INVENTORIES.c.provider_uuid == PROVIDERS.c.uuid)).where(PROVIDERS.c.root_uuid == root)) or 0
    if size[0] > node_types.CHILDREN + 1 or (size[1] or 0) > _MOST_TRAIT_BYTES or inventories > _MOST_INVENTORIES:
        raise exception.PlacementConflict(
            f"A tree has at most {node_types.CHILDREN} providers below its root, with {_MOST_INVENTORIES} inventories "
            f"and {_MOST_TRAIT_BYTES} bytes of traits in all.")


def _register(connection: sa.Connection, name: str) -> None:
    duplicate = exception.DuplicateProvider(field="name", value=name)
    if connection.scalar(sa.select(PROVIDERS.c.uuid).where(PROVIDERS.c.name == name).limit(1)) is not None:
        raise duplicate
    with rows.on_duplicate(duplicate):
        connection.execute(sa.insert(NAMES).values(kind=PROVIDER, name=name))


def _unregister(connection: sa.Connection, name: str) -> None:
    connection.execute(sa.delete(NAMES).where(NAMES.c.kind == PROVIDER, NAMES.c.name == name))


# --- inventories, traits, aggregates ---------------------------------------------------------------
def set_inventories(connection: sa.Connection, uuid: str, inventories: dict[str, Inventory],
                    generation: int | None = None, mode: str = "replace") -> ProviderView:
    """Change inventories of a provider. ``mode``: replace all, create or update the given classes, or delete them.
    Raises ProviderNotFound, ConcurrentUpdate, OwnedByNova, InventoryInUse, Invalid, NotFound, PlacementConflict."""
    row = _held(connection, uuid)
    stored: dict[str, Inventory] = {inventory.resource_class: rows.to_object(Inventory, inventory)
                                    for inventory in connection.execute(
                                        sa.select(INVENTORIES).where(INVENTORIES.c.provider_uuid == uuid))}
    _check_mode(uuid, stored, inventories, mode)
    names.check(connection, RESOURCE_CLASS, inventories.keys() - stored.keys())
    dropped = {"replace": stored.keys() - inventories.keys(), "delete": inventories.keys()}.get(mode, set())
    put = {} if mode == "delete" else {
        name: inventory for name, inventory in inventories.items()
        if name not in stored or _settings(stored[name]) != _settings(inventory)}
    if not row.external and (put or dropped):
        raise exception.OwnedByNova(
            what=f"nova-compute reports the inventories of {uuid} ({', '.join(sorted({*put, *dropped}))})",
            command="the options cpu_allocation_ratio, ram_allocation_ratio, disk_allocation_ratio, "
                    "reserved_host_cpus, reserved_host_memory_mb and reserved_host_disk_mb in nova.conf of the host")
    changed(connection, row, generation)
    busy = sorted(name for name in dropped if stored[name].used)
    if busy:
        raise exception.InventoryInUse(uuid=uuid, classes=", ".join(busy))
    if len(stored.keys() - dropped | put.keys()) > _MOST_CLASSES:
        raise exception.Invalid(f"inventories: a provider has at most {_MOST_CLASSES} resource classes.")
    here = INVENTORIES.c.provider_uuid == uuid
    if dropped:
        connection.execute(sa.delete(INVENTORIES).where(here, INVENTORIES.c.resource_class.in_(dropped)))
    for name, inventory in put.items():
        values = dict(zip(_SETTINGS, _settings(inventory), strict=True))
        connection.execute(
            sa.update(INVENTORIES).where(here, INVENTORIES.c.resource_class == name).values(values) if name in stored
            else sa.insert(INVENTORIES).values(provider_uuid=uuid, resource_class=name, used=0, **values))
    if put.keys() - stored.keys():
        _check_size(connection, row.root_uuid)
    return get(connection, uuid)


def _check_mode(uuid: str, stored: Collection[str], inventories: Collection[str], mode: str) -> None:
    missing = sorted(set(inventories) - set(stored))
    if mode == "create" and len(missing) < len(inventories):
        raise exception.PlacementConflict(f"Update conflict: {', '.join(inventories)} already exists on {uuid}.")
    if missing and mode == "update":
        raise exception.Invalid(f"No inventory record with resource class for {', '.join(missing)} on {uuid}.")
    if missing and mode == "delete":
        raise exception.NotFound(f"No inventory of class {', '.join(missing)} found for resource provider {uuid}.")


def _settings(inventory: Inventory) -> tuple[Any, ...]:
    return tuple(getattr(inventory, name) for name in _SETTINGS)


def set_traits(connection: sa.Connection, uuid: str, traits: list[str], generation: int | None = None
               ) -> ProviderView:
    """Replace the traits of a provider. Traits that nova-compute reports must stay, and only custom traits can be added
    to them. Raises ProviderNotFound, ConcurrentUpdate, OwnedByNova, Invalid (an unknown trait)."""
    row, wanted = _held(connection, uuid), sorted(set(traits))
    names.check(connection, TRAIT, set(wanted) - set(row.traits))
    if len(wanted) > _MOST_TRAITS:
        raise exception.Invalid(f"traits: a provider has at most {_MOST_TRAITS} traits.")
    values: dict[str, Any] = {"traits": wanted}
    if not row.external:
        reported = set(row.traits) - set(row.extra_traits or ())
        extra = sorted(set(wanted) - reported)
        wrong = sorted({*(reported - set(wanted)), *(trait for trait in extra if not trait.startswith(CUSTOM))})
        if wrong:
            raise exception.OwnedByNova(what=f"nova-compute reports the traits of {uuid} ({', '.join(wrong[:10])})",
                                        command="nova.conf of the host; only custom traits can be added or removed")
        values["extra_traits"] = extra
    changed(connection, row, generation)
    connection.execute(sa.update(PROVIDERS).where(PROVIDERS.c.uuid == uuid).values(values))
    if set(wanted) - set(row.traits):
        _check_size(connection, row.root_uuid)
    return get(connection, uuid)


def set_aggregates(connection: sa.Connection, uuid: str, uuids: list[str], generation: int | None = None
                   ) -> ProviderView:
    """Replace the aggregates of a provider; the host aggregates of a compute node must stay. Raises ProviderNotFound,
    ConcurrentUpdate, OwnedByNova, Invalid."""
    row, wanted = _held(connection, uuid), set(uuids)
    if len(wanted) > _MOST_AGGREGATES:
        raise exception.Invalid(f"aggregates: a provider has at most {_MOST_AGGREGATES} aggregates.")
    of_host = {aggregate.uuid for aggregate in aggregates.of_host(connection, row.host)} if (
        row.uuid == row.root_uuid and row.host is not None) else set()
    if of_host - wanted:
        raise exception.OwnedByNova(
            what=f"The host {row.host} is in the host aggregates {', '.join(sorted(of_host - wanted))}",
            command="openstack aggregate remove host")
    changed(connection, row, generation)
    connection.execute(sa.delete(MEMBERSHIPS).where(MEMBERSHIPS.c.provider_uuid == uuid))
    added = [{"aggregate_uuid": aggregate, "provider_uuid": uuid} for aggregate in sorted(wanted - of_host)]
    if added:
        connection.execute(sa.insert(MEMBERSHIPS), added)
    return get(connection, uuid)

