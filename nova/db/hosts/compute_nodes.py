"""Compute nodes with their trees of providers and inventories, as drivers report them."""

import collections
import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import aggregates, allocations, dedicated_resources, external_providers, services
from nova.db.servers import server_migrations
from nova.db.sql import clock, rows
from nova.objects.base import new_uuid
from nova.objects.dedicated_resources.fitting import NodeDedicatedResources
from nova.objects.hosts import node as node_types
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.scheduling import HostState, NodeUsage

TABLE = tables.compute_nodes
PROVIDERS = tables.providers
INVENTORIES = tables.inventories
ALLOCATIONS = tables.allocations
SERVICES = tables.services

P = TypeVar("P", bound=Provider)

# Fields of an inventory reported by the driver; claims maintain ``used``.
_REPORTED = ("total", "reserved", "ratio", "min_unit", "max_unit", "step_size")
# Fields of a node that schedulers use, and fields that only the API shows.
_FACTS = ("host", "hypervisor_hostname", "hypervisor_type", "hypervisor_version", "host_ip", "cpu_info",
          "supported_instances", "service_id", "numa_topology", "pci_devices")
_SHOWN = ("disk_available_least", "uptime")


@dataclasses.dataclass
class Report:
    """The changes of a report: the current nodes, and the uuids of changed nodes, of nodes with new metrics, and of
    removed nodes. Schedulers must be notified of all of these."""

    nodes: list[ComputeNode]
    changed: list[str]
    measured: list[str]
    removed: list[str]


class _StoredProvider(Provider, kw_only=True):
    """A provider with the traits that clients of the Placement API added (``extra_traits``); reports keep these."""

    extra_traits: list[str] | None = None


@dataclasses.dataclass
class _Stored:
    """The rows of a host before a report, without external providers."""

    nodes: Sequence[Any]
    providers: dict[str, _StoredProvider]
    roots: dict[str, str]


# --- reports ---------------------------------------------------------------------------------
def report(connection: sa.Connection, host: str, nodes: Sequence[ComputeNode], after: str = "",
           upto: str | None = None, trusted: bool = True) -> Report:
    """Update the nodes of a host from a report of its driver; only differences are written.

    ``nodes``: all nodes of the host with uuids after ``after`` and up to ``upto`` (None: to the end). Stored nodes in
    this range that are missing in the report are removed, unless they have claims. The number of statements grows with
    the number of changed nodes only. Raises HostBinaryNotFound (nova-compute never registered), InvalidInput (a node
    uuid with another name, a provider of another host, duplicates, or a violation of the limits in
    nova.objects.hosts.node) and NodeOfAnotherHost (a node of another host that has claims or, unless ``trusted``, whose
    host is up)."""
    service_id = connection.scalar(sa.select(SERVICES.c.id).where(
        SERVICES.c.host == host, SERVICES.c.binary == services.COMPUTE))
    if service_id is None:
        raise exception.HostBinaryNotFound(binary=services.COMPUTE, host=host)
    for node in nodes:
        node_types.check_limits(node)
    nodes = copy.deepcopy(list(nodes))  # Changed below; if the transaction is repeated, it needs the original report.
    stored = _stored(connection, host, [node.uuid for node in nodes if node.uuid], after, upto)
    _check_distinct(connection, nodes, stored)
    by_uuid = {row.uuid: row for row in stored.nodes}
    by_name = {row.hypervisor_hostname: row for row in stored.nodes if row.host == host}
    result, new = Report([], [], [], []), []
    with rows.on_duplicate():
        for node in nodes:
            row = by_uuid.get(node.uuid) or by_name.get(node.hypervisor_hostname)
            if row is not None and row.host != host:
                _check_taken_over(connection, row, node, host, trusted)
            node.host, node.service_id = host, service_id
            _identify(node, row)
            tree = [node.provider, *node.children]
            for provider in tree:
                if provider.uuid in stored.providers:
                    provider.traits = sorted({*provider.traits, *(stored.providers[provider.uuid].extra_traits or ())})
            if node.metrics != (row.metrics if row is not None else None):
                result.measured.append(node.uuid)
            if row is None and not any(provider.uuid in stored.providers for provider in tree):
                new.append(node)
                result.changed.append(node.uuid)
            elif _write(connection, node, row, stored):
                result.changed.append(node.uuid)
            result.nodes.append(node)
        if new and not trusted and rows.count(connection, TABLE, TABLE.c.host == host) + len(new) > node_types.NODES:
            raise exception.InvalidInput(reason=f"host {host} would have more than {node_types.NODES} nodes")
        _insert(connection, new)
    if nodes:
        reported = {node.uuid for node in result.nodes}
        result.removed = _remove_idle(connection, [
            row.uuid for row in stored.nodes if row.host == host and row.uuid not in reported])
    return result


def _check_distinct(connection: sa.Connection, nodes: Sequence[ComputeNode], stored: _Stored) -> None:
    """Refuse a report with duplicates. Their INSERT would fail as if two reports were concurrent, and be retried."""
    uuids = [node.uuid for node in nodes if node.uuid]
    uuids += [child.uuid for node in nodes for child in node.children]
    for reported in (uuids, [node.hypervisor_hostname for node in nodes]):
        if len(reported) != len(set(reported)):
            raise exception.InvalidInput(reason="a report contains a node or provider twice")
    new = set(uuids) - stored.providers.keys()
    if new and connection.scalar(sa.select(PROVIDERS.c.uuid).where(PROVIDERS.c.uuid.in_(new)).limit(1)) is not None:
        raise exception.InvalidInput(reason="a provider of the report belongs to another host, or was created with the "
                                            "Placement API")


def _check_taken_over(connection: sa.Connection, row: Any, node: ComputeNode, host: str, trusted: bool) -> None:
    """Check that a host may take over a node of another host: the node must have no claims, and the other host must not
    be up unless the report is ``trusted``."""
    if row.hypervisor_hostname != node.hypervisor_hostname:
        raise exception.InvalidInput(reason=f"node {node.uuid} of host {host} is already registered as "
                                            f"{row.hypervisor_hostname} of host {row.host}")
    _hold(connection, [row.uuid])
    on_it = sa.or_(ALLOCATIONS.c.root_uuid == row.uuid, ALLOCATIONS.c.provider_uuid == row.uuid)
    claimed = connection.scalar(sa.select(ALLOCATIONS.c.consumer_uuid).where(
        on_it, allocations.OF_SERVERS).limit(1)) is not None
    if claimed or not (trusted or not services.host_up(connection, row.host)):
        raise exception.NodeOfAnotherHost(node=row.uuid, name=row.hypervisor_hostname, owner=row.host, host=host)


def _stored(connection: sa.Connection, host: str, uuids: Sequence[str], after: str, upto: str | None) -> _Stored:
    page = TABLE.c.host == host
    if after:
        page &= TABLE.c.uuid > after
    if upto is not None:
        page &= TABLE.c.uuid <= upto
    nodes = connection.execute(sa.select(TABLE).where(sa.or_(page, TABLE.c.uuid.in_(uuids)) if uuids else page)).all()
    trees = _trees(connection, [row.uuid for row in nodes], _StoredProvider, PROVIDERS.c.external == sa.false())
    own = {provider.uuid: (root, provider) for root, tree in trees.items() for provider in tree}
    return _Stored(nodes, {uuid: provider for uuid, (_root, provider) in own.items()},
                   {uuid: root for uuid, (root, _provider) in own.items()})


def _identify(node: ComputeNode, row: Any) -> None:
    """Copy uuid, id and counters of the stored ``row`` to a reported node, and its uuid to its root provider."""
    if row is not None:
        node.uuid, node.id = row.uuid, row.id
        node.num_instances, node.num_io_ops = row.num_instances, row.num_io_ops
        node.failed_builds, node.generation = row.failed_builds, row.generation
    elif not node.uuid:
        node.uuid = new_uuid()
    before = node.provider.uuid
    node.provider.uuid = node.uuid
    node.provider.parent_uuid = None
    for child in node.children:
        if child.parent_uuid in (None, "", before):
            child.parent_uuid = node.uuid


def _insert(connection: sa.Connection, nodes: Sequence[ComputeNode]) -> None:
    """Insert new nodes with four statements, whatever their number."""
    if not nodes:
        return
    trees = [(node, provider) for node in nodes for provider in (node.provider, *node.children)]
    connection.execute(sa.insert(PROVIDERS), [
        {"uuid": provider.uuid, "name": provider.name, "parent_uuid": provider.parent_uuid, "root_uuid": node.uuid,
         "traits": sorted(set(provider.traits))} for node, provider in trees])
    inventories = [
        {"provider_uuid": provider.uuid, "resource_class": name, "used": 0,
         **{field: getattr(inventory, field) for field in _REPORTED}}
        for _node, provider in trees for name, inventory in provider.inventories.items()]
    if inventories:
        connection.execute(sa.insert(INVENTORIES), inventories)
    _insert_nodes(connection, nodes)


def _insert_nodes(connection: sa.Connection, nodes: Sequence[ComputeNode]) -> None:
    now = clock.now()
    connection.execute(sa.insert(TABLE), [
        {**rows.values_of(TABLE, node), "generation": 1, "created_at": now, "updated_at": now} for node in nodes])
    ids = dict(connection.execute(sa.select(TABLE.c.uuid, TABLE.c.id).where(
        TABLE.c.uuid.in_([node.uuid for node in nodes]))).all())
    for node in nodes:
        node.id, node.generation = ids[node.uuid], 1


def _write(connection: sa.Connection, node: ComputeNode, row: Any, stored: _Stored) -> bool:
    """Write the changes of a node; return True if schedulers must be notified of more than metrics."""
    changed = False
    tree = [node.provider, *node.children]
    stored_fields = {uuid: _reported_fields(stored.providers[uuid])
                     for uuid, root in stored.roots.items() if root == node.uuid}
    if row is not None and stored_fields != {provider.uuid: _reported_fields(provider) for provider in tree}:
        _hold(connection, [node.uuid])  # All transactions lock a node before its inventories.
    for provider in tree:
        changed = _write_provider(connection, node.uuid, provider, stored) or changed
    removed = [uuid for uuid, root in stored.roots.items()
               if root == node.uuid and uuid not in {provider.uuid for provider in tree}]
    if removed:
        changed = bool(_remove_idle_providers(connection, node.uuid, removed)) or changed
    if row is None:
        _insert_nodes(connection, [node])
        return True
    changed = changed or any(getattr(row, name) != getattr(node, name) for name in _FACTS)
    measured = row.metrics != node.metrics
    if changed or measured or any(getattr(row, name) != getattr(node, name) for name in _SHOWN):
        values: dict[str, Any] = {name: getattr(node, name) for name in (*_FACTS, *_SHOWN, "metrics")}
        if changed or measured:
            node.generation += 1
            values["generation"] = TABLE.c.generation + 1
        connection.execute(sa.update(TABLE).where(TABLE.c.id == row.id).values(**values, updated_at=clock.now()))
    return changed


def _reported_fields(provider: Provider) -> tuple[Any, ...]:
    return (provider.name, provider.parent_uuid, sorted(set(provider.traits)),
            {resource_class: [getattr(inventory, name) for name in _REPORTED]
             for resource_class, inventory in provider.inventories.items()})


def _hold(connection: sa.Connection, node_uuids: Sequence[str]) -> None:
    """Lock these nodes against claims until the transaction ends."""
    connection.execute(sa.select(TABLE.c.id).where(TABLE.c.uuid.in_(node_uuids)).order_by(TABLE.c.uuid)
                       .with_for_update()).all()


def _write_provider(connection: sa.Connection, root: str, provider: Provider, stored: _Stored) -> bool:
    before = stored.providers.get(provider.uuid)
    traits = sorted(set(provider.traits))
    same = (before is not None and stored.roots[provider.uuid] == root
            and (before.name, before.parent_uuid, before.traits) == (provider.name, provider.parent_uuid, traits))
    values = {"name": provider.name, "parent_uuid": provider.parent_uuid, "root_uuid": root, "traits": traits}
    if before is None:
        connection.execute(sa.insert(PROVIDERS).values(uuid=provider.uuid, **values))
    elif not same:
        # Read again now that the node is locked: a client of the Placement API may have added traits meanwhile.
        extra = connection.scalar(sa.select(PROVIDERS.c.extra_traits).where(PROVIDERS.c.uuid == provider.uuid))
        values["traits"] = sorted({*set(traits) - set(before.extra_traits or ()), *(extra or ())})
        connection.execute(sa.update(PROVIDERS).where(PROVIDERS.c.uuid == provider.uuid).values(values))
    return _write_inventories(connection, provider, before) or not same


def _write_inventories(connection: sa.Connection, provider: Provider, before: Provider | None) -> bool:
    stored_inventories = before.inventories if before else {}
    changed = False
    new = {}
    for resource_class, inventory in provider.inventories.items():
        old = stored_inventories.get(resource_class)
        values = {name: getattr(inventory, name) for name in _REPORTED}
        if old is None:
            new[resource_class] = values
        else:
            inventory.used = old.used
            if values != {name: getattr(old, name) for name in _REPORTED}:
                _update_inventory(connection, provider.uuid, resource_class, values)
                changed = True
    if new:
        used = collections.Counter[str]()
        for resources in connection.scalars(sa.select(ALLOCATIONS.c.resources).where(
                ALLOCATIONS.c.provider_uuid == provider.uuid)) if before else ():
            used.update(resources)
        for resource_class in new:
            provider.inventories[resource_class].used = used[resource_class]
        connection.execute(sa.insert(INVENTORIES), [
            {"provider_uuid": provider.uuid, "resource_class": resource_class, "used": used[resource_class],
             **values} for resource_class, values in new.items()])
    for resource_class in stored_inventories.keys() - provider.inventories.keys():
        removed = connection.execute(sa.delete(INVENTORIES).where(
            INVENTORIES.c.provider_uuid == provider.uuid, INVENTORIES.c.resource_class == resource_class,
            INVENTORIES.c.used == 0))
        # An inventory with claims stays, with capacity 0: no further claim is possible.
        if removed.rowcount == 0 and stored_inventories[resource_class].total:
            _update_inventory(connection, provider.uuid, resource_class, {"total": 0, "reserved": 0})
            changed = True
        changed = changed or removed.rowcount > 0
    return changed or bool(new)


def _update_inventory(connection: sa.Connection, provider_uuid: str, resource_class: str,
                      values: dict[str, Any]) -> None:
    connection.execute(sa.update(INVENTORIES).where(
        INVENTORIES.c.provider_uuid == provider_uuid, INVENTORIES.c.resource_class == resource_class).values(values))


# --- removal ---------------------------------------------------------------------------------
def remove_host(connection: sa.Connection, host: str) -> list[str]:
    """Remove all nodes of a host with their claims; return their uuids. Raises ServiceInUse if the host has servers or
    migrations."""
    uuids = list(connection.scalars(sa.select(TABLE.c.uuid).where(TABLE.c.host == host).order_by(TABLE.c.uuid)))
    remove(connection, uuids)
    # Query while the nodes are locked: each transaction that claimed earlier has also written its instance.
    instances = tables.instances
    busy = connection.scalar(sa.select(instances.c.uuid).where(
        instances.c.host == host, instances.c.deleted == sa.false()).limit(1))
    if busy is not None:
        raise exception.ServiceInUse()
    if server_migrations.under_way(connection, host):
        raise exception.ServiceMigrating()
    return uuids


def remove(connection: sa.Connection, node_uuids: Sequence[str]) -> None:
    """Remove nodes with their providers, inventories and allocations."""
    if not node_uuids:
        return
    _hold(connection, node_uuids)
    external_providers.forget(connection, node_uuids)
    # Select the uuids first: MariaDB would wait for the locks of all rows that a DELETE with a subquery reads.
    tree = list(connection.scalars(sa.select(PROVIDERS.c.uuid).where(PROVIDERS.c.root_uuid.in_(node_uuids))))
    for start in range(0, len(tree), node_types.NODES):
        for table in (INVENTORIES, ALLOCATIONS, external_providers.MEMBERSHIPS):
            connection.execute(sa.delete(table).where(
                table.c.provider_uuid.in_(tree[start:start + node_types.NODES])))
    connection.execute(sa.delete(PROVIDERS).where(PROVIDERS.c.root_uuid.in_(node_uuids)))
    connection.execute(sa.delete(TABLE).where(TABLE.c.uuid.in_(node_uuids)))


def _remove_idle(connection: sa.Connection, node_uuids: Sequence[str]) -> list[str]:
    """Remove the nodes without claims; return them."""
    if not node_uuids:
        return []
    _hold(connection, node_uuids)
    busy = set(connection.scalars(sa.select(PROVIDERS.c.root_uuid).distinct().join(
        ALLOCATIONS, ALLOCATIONS.c.provider_uuid == PROVIDERS.c.uuid).where(PROVIDERS.c.root_uuid.in_(node_uuids))))
    idle = [uuid for uuid in node_uuids if uuid not in busy]
    remove(connection, idle)
    return idle


def _remove_idle_providers(connection: sa.Connection, root: str, uuids: Sequence[str]) -> list[str]:
    """Remove sub-providers of a locked node that its report lacks. A sub-provider is kept, with capacity 0, if it has
    claims, or if a provider below it is external or has claims."""
    used = set(connection.scalars(
        sa.select(ALLOCATIONS.c.provider_uuid).where(ALLOCATIONS.c.provider_uuid.in_(uuids))))
    busy = external_providers.with_ancestors(connection, root, used).intersection(uuids)
    idle = [uuid for uuid in uuids if uuid not in busy]
    if idle:
        connection.execute(sa.delete(INVENTORIES).where(INVENTORIES.c.provider_uuid.in_(idle)))
        connection.execute(sa.delete(external_providers.MEMBERSHIPS).where(
            external_providers.MEMBERSHIPS.c.provider_uuid.in_(idle)))
        connection.execute(sa.delete(PROVIDERS).where(PROVIDERS.c.uuid.in_(idle)))
    if busy:
        connection.execute(sa.update(INVENTORIES).where(INVENTORIES.c.provider_uuid.in_(busy))
                           .values(total=0, reserved=0))
    return idle


# --- reads for the API ------------------------------------------------------------------------
def index(connection: sa.Connection, pattern: str | None = None, limit: int | None = None,
          marker: str | None = None, host: str | None = None) -> list[ComputeNode]:
    """Return nodes (of ``host``, if given) with their services, ordered by id. ``pattern``: a part of the hypervisor
    hostname. Raises MarkerNotFound."""
    statement = sa.select(TABLE).where(*rows.equal(TABLE.c.host, host)).order_by(TABLE.c.id)
    if pattern is not None:
        statement = statement.where(TABLE.c.hypervisor_hostname.icontains(pattern, autoescape=True))
    after = rows.marker_row(connection, sa.select(TABLE.c.id).where(rows.identified(TABLE, marker or "")), marker)
    if after is not None:
        statement = statement.where(TABLE.c.id > after.id)
    return _objects(connection, connection.execute(statement.limit(limit)).all())


def get(connection: sa.Connection, node_id: str) -> ComputeNode:
    """Return a node by uuid or integer id. Raises ComputeHostNotFound."""
    row = connection.execute(sa.select(TABLE).where(rows.identified(TABLE, node_id))).first()
    if row is None:
        raise exception.ComputeHostNotFound(host=node_id)
    return _objects(connection, [row])[0]


def exists(connection: sa.Connection, name: str, host: str | None) -> bool:
    """Return True if a node has this hypervisor hostname (on ``host``, if that is given)."""
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.hypervisor_hostname == name, *rows.equal(TABLE.c.host, host)).limit(1)) is not None


def has_trait(connection: sa.Connection, host: str, name: str, trait: str) -> bool:
    """Return True if the root provider of this node has a trait."""
    traits = connection.scalar(sa.select(PROVIDERS.c.traits).join(TABLE, TABLE.c.uuid == PROVIDERS.c.uuid).where(
        TABLE.c.host == host, TABLE.c.hypervisor_hostname == name))
    return trait in (traits or ())


def _objects(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[ComputeNode]:
    """Return nodes with inventories, service and zone, by four more statements for any number of nodes."""
    if not rows:
        return []
    trees = provider_trees(connection, [row.uuid for row in rows])
    zones, now = aggregates.host_zones(aggregates.index(connection)), clock.now()
    services_by_id = {row.id: services.shown(row, zones, now) for row in connection.execute(
        sa.select(SERVICES).where(SERVICES.c.id.in_({row.service_id for row in rows})))}
    nodes = []
    for row in rows:
        tree = {provider.uuid: provider for provider in trees.get(row.uuid, [])}
        root = tree.pop(row.uuid, None) or Provider(uuid=row.uuid, name=row.hypervisor_hostname)
        values = {name: row._mapping[name] for name in ComputeNode.__struct_fields__ if name in row._mapping}
        nodes.append(ComputeNode(**values, provider=root, children=list(tree.values()),
                                 service=services_by_id.get(row.service_id)))
    return nodes


def provider_trees(connection: sa.Connection, node_uuids: Sequence[str]) -> dict[str, list[Provider]]:
    """Return root uuid -> providers of the tree with their inventories, by two statements."""
    return _trees(connection, node_uuids, Provider)


def _trees(connection: sa.Connection, node_uuids: Sequence[str], kind: type[P], *conditions: sa.ColumnElement[bool]
           ) -> dict[str, list[P]]:
    if not node_uuids:
        return {}
    trees: dict[str, list[P]] = {}
    providers: dict[str, P] = {}
    for row in connection.execute(sa.select(PROVIDERS).where(PROVIDERS.c.root_uuid.in_(node_uuids), *conditions)
                                  .order_by(PROVIDERS.c.root_uuid, PROVIDERS.c.name)):
        provider = rows.to_object(kind, row)
        provider.inventories = {}
        providers[provider.uuid] = provider
        trees.setdefault(row.root_uuid, []).append(provider)
    if providers:
        for row in connection.execute(sa.select(INVENTORIES).where(INVENTORIES.c.provider_uuid.in_(list(providers)))):
            providers[row.provider_uuid].inventories[row.resource_class] = rows.to_object(Inventory, row)
    return trees


# --- reads for schedulers -----------------------------------------------------------------------
def states(connection: sa.Connection, after_uuid: str | None, limit: int) -> list[HostState]:
    """Return a page of the states of all nodes in the order of uuids, by four statements."""
    return _states(connection, TABLE.c.uuid > (after_uuid or ""), limit)


def states_of(connection: sa.Connection, node_uuids: Sequence[str]) -> list[HostState]:
    """Return the states of these nodes (if they exist) in the order of uuids, by four statements."""
    return _states(connection, TABLE.c.uuid.in_(node_uuids), len(node_uuids)) if node_uuids else []


def renewed(connection: sa.Connection, host: str, limit: int) -> list[HostState]:
    """Increase the generation of a host's nodes and return their states, newer for schedulers than earlier states."""
    connection.execute(sa.update(TABLE).where(TABLE.c.host == host).values(generation=TABLE.c.generation + 1))
    return _states(connection, TABLE.c.host == host, limit)


def _states(connection: sa.Connection, wanted: sa.ColumnElement[bool], limit: int) -> list[HostState]:
    rows = connection.execute(
        sa.select(TABLE, SERVICES.c.up, SERVICES.c.disabled, SERVICES.c.forced_down,
                  SERVICES.c.generation.label("service_generation"))
        .outerjoin(SERVICES, SERVICES.c.id == TABLE.c.service_id)
        .where(wanted).order_by(TABLE.c.uuid).limit(limit)).all()
    trees = provider_trees(connection, [row.uuid for row in rows])
    all_aggregates = aggregates.index(connection)
    zones = aggregates.host_zones(all_aggregates)
    of_host: dict[str, list[Any]] = {}
    for aggregate in all_aggregates:
        for host in aggregate.hosts:
            of_host.setdefault(host, []).append(aggregate)
    left = dedicated_resources.of_nodes(connection, rows)
    return [_state(row, trees.get(row.uuid, []), zones, of_host.get(row.host, []), left.get(row.uuid)) for row in rows]


def _state(row: Any, tree: Sequence[Provider], zones: dict[str, str], member_of: Sequence[Any],
           left: NodeDedicatedResources | None) -> HostState:
    root = next((provider for provider in tree if provider.uuid == row.uuid), None)
    return HostState(
        node_uuid=row.uuid, host=row.host, node=row.hypervisor_hostname,
        up=bool(row.up) and not row.forced_down, disabled=bool(row.disabled),
        inventories=root.inventories if root else {}, traits=root.traits if root else [],
        availability_zone=zones.get(row.host, CONF.default_availability_zone),
        aggregates=[aggregate.metadata for aggregate in member_of],
        aggregate_ids=[aggregate.id for aggregate in member_of],
        num_instances=row.num_instances, num_io_ops=row.num_io_ops, failed_builds=row.failed_builds,
        hypervisor_type=row.hypervisor_type, hypervisor_version=row.hypervisor_version, host_ip=row.host_ip,
        cpu_info=row.cpu_info, supported_instances=row.supported_instances, generation=row.generation,
        metrics={metric.name: metric.value for metric in row.metrics or ()},
        service_generation=row.service_generation or 0, dedicated_resources=left,
        children=[provider for provider in tree if provider is not root])


def usage(connection: sa.Connection, node_uuids: Sequence[str]) -> list[NodeUsage]:
    """Return the usage of these nodes (if they exist) by one statement (four with NUMA cells or devices)."""
    if not node_uuids:
        return []
    usages: dict[str, NodeUsage] = {}
    fitted: set[str] = set()
    for row in connection.execute(_usage_statement(), {"uuids": list(node_uuids)}):
        node_usage = usages.setdefault(row.uuid, NodeUsage(
            node_uuid=row.uuid, num_instances=row.num_instances, num_io_ops=row.num_io_ops,
            failed_builds=row.failed_builds, generation=row.generation))
        if row.resource_class is not None:
            node_usage.used = {**node_usage.used, row.resource_class: row.used}
        if row.fitted:
            fitted.add(row.uuid)
    if fitted:
        _add_fitted(connection, usages, sorted(fitted))
    return list(usages.values())


@functools.cache
def _usage_statement() -> sa.Select[Any]:
    return (sa.select(TABLE.c.uuid, TABLE.c.num_instances, TABLE.c.num_io_ops, TABLE.c.failed_builds,
                      TABLE.c.generation, TABLE.c.fitted, INVENTORIES.c.resource_class, INVENTORIES.c.used)
            .outerjoin(INVENTORIES, INVENTORIES.c.provider_uuid == TABLE.c.uuid)
            .where(TABLE.c.uuid.in_(sa.bindparam("uuids", expanding=True))).order_by(TABLE.c.uuid))


def _add_fitted(connection: sa.Connection, usages: dict[str, NodeUsage], uuids: Sequence[str]) -> None:
    """Add the free NUMA cells and devices of these nodes, and the usage of their sub-providers."""
    for uuid, left in dedicated_resources.of_fitted(connection, uuids).items():
        usages[uuid].dedicated_resources = left
    for row in connection.execute(
            sa.select(PROVIDERS.c.root_uuid, PROVIDERS.c.uuid, INVENTORIES.c.resource_class, INVENTORIES.c.used)
            .join(INVENTORIES, INVENTORIES.c.provider_uuid == PROVIDERS.c.uuid)
            .where(PROVIDERS.c.root_uuid.in_(uuids), PROVIDERS.c.parent_uuid.is_not(None))):
        node_usage = usages[row.root_uuid]
        node_usage.children = {**node_usage.children, row.uuid: {
            **node_usage.children.get(row.uuid, {}), row.resource_class: row.used}}
