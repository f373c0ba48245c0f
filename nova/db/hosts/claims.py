"""Claims of servers: the selection of a scheduler is checked again under locks, and its resources are claimed. The
order of locks is the same everywhere: the server group, the nodes, their inventories, allocations, quotas."""

import functools

import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import aggregates, allocations, compute_nodes, dedicated_resources, services
from nova.db.servers import server_groups, server_migrations, servers
from nova.objects.dedicated_resources.fitting import GuestDedicatedResources
from nova.objects.hosts import trees
from nova.objects.hosts.scheduling import DIFFERENT_HOST, SAME_HOST, RequestSpec, Selection, metadata_digest
from nova.objects.servers.instance import Instance

PROVIDERS = tables.providers


def claim(connection: sa.Connection, instance: Instance, selection: Selection, spec: RequestSpec,
          consumer: str = "") -> GuestDedicatedResources:
    """Claim the resources of ``spec`` at ``selection`` for ``instance``, or for ``consumer`` (a migration). Checks the
    state of the compute service, the policy of the server group, traits, zone, hints and, if the scheduler used them,
    aggregates. The service of a forced host must be enabled, but may be down. Returns the assigned NUMA cells and
    devices. Raises ClaimLost."""
    named = bool(spec.forced or spec.requested_host or spec.requested_node)
    why = server_groups.admit(connection, spec.group, instance.uuid, selection.host, only=named) if spec.group else ""
    if not why:
        by_tree = selection.tree or bool(spec.groups)
        allocations.claim(connection, consumer or instance.uuid, selection, spec.resources, instance.project_id,
                          instance.user_id, service="enabled" if spec.forced else "up",
                          choose=functools.partial(_from_tree, connection, selection, spec) if by_tree else None)
        why = ("" if by_tree else _traits(connection, selection, spec)) or _place(connection, selection, spec) or (
            _release(connection, selection, spec)) or _hints(connection, selection, spec)
    if why:
        raise exception.ClaimLost(node=selection.node_uuid, reason=why)
    if not spec.dedicated_request:
        return GuestDedicatedResources()
    return dedicated_resources.claim(connection, consumer or instance.uuid, selection.node_uuid, spec.dedicated_request)


def _from_tree(connection: sa.Connection, selection: Selection, spec: RequestSpec) -> trees.Allocation:
    """Choose a provider in the tree of the node for each resource. Raises ClaimLost."""
    root = selection.node_uuid
    providers = compute_nodes.provider_trees(connection, [root]).get(root, [])
    chosen = trees.allocate(
        sorted(providers, key=lambda provider: provider.uuid != root),
        trees.Amounts(spec.resources, frozenset(spec.required_traits), frozenset(spec.forbidden_traits), spec.groups,
                      isolate=spec.group_policy == "isolate"))
    if chosen is None:
        raise exception.ClaimLost(node=root, reason="the resource providers have not enough free resources")
    dedicated_resources.note(connection, root)
    return chosen


def _traits(connection: sa.Connection, selection: Selection, spec: RequestSpec) -> str:
    """Return the reason why the traits of the node do not fit the request, or ""."""
    if not spec.required_traits and not spec.forbidden_traits:
        return ""
    have = set(connection.scalar(sa.select(PROVIDERS.c.traits).where(PROVIDERS.c.uuid == selection.node_uuid)) or ())
    return "its traits have changed" if set(spec.required_traits) - have or set(spec.forbidden_traits) & have else ""


def _release(connection: sa.Connection, selection: Selection, spec: RequestSpec) -> str:
    """Return the reason why the nova-compute of the host is too old to run the server, or ""."""
    version = services.compute_version(connection, selection.host) if spec.release else None
    return f"its nova-compute has service version {version}" if version is not None and version < spec.release else ""


def _hints(connection: sa.Connection, selection: Selection, spec: RequestSpec) -> str:
    """Return the reason why the host no longer satisfies a hint (other servers have moved), or ""."""
    for hint in selection.hints:
        hosts = servers.hosts_of(connection, spec.project_id, spec.hint(hint))
        if hint == SAME_HOST and selection.host not in hosts.values():
            return "it no longer has a server of the hint same_host"
        if hint == DIFFERENT_HOST and selection.host in (*hosts.values(), *(
                migration.dest_compute for migration in server_migrations.open_of(connection, list(hosts)))):
            return "a server of the hint different_host was placed on it"
    return ""


def _place(connection: sa.Connection, selection: Selection, spec: RequestSpec) -> str:
    """Return the reason why the zone or the aggregates of the host do not fit the request, or ""."""
    zone = None if spec.forced else spec.availability_zone
    if not zone and not selection.aggregates:
        return ""
    aggregates_of_host = aggregates.of_host(connection, selection.host)
    if zone and aggregates.host_zones(aggregates_of_host).get(selection.host, CONF.default_availability_zone) != zone:
        return "its availability zone has changed"
    digest = metadata_digest([aggregate.metadata for aggregate in aggregates_of_host])
    if selection.aggregates and digest != selection.aggregates:
        return "its aggregates have changed"
    return ""
