"""Nodes that several hosts can manage (bare metal). Each node belongs to one host that is up, chosen by rendezvous
hashing: the loss of a host moves only its own nodes, and a new host takes an equal part of the nodes without servers.
Conductors decide by their database and [ironic]peer_list; hosts only list the nodes that they can reach."""

import dataclasses
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import liveness, tables
from nova.db.hosts import allocations, services
from nova.db.servers import servers
from nova.db.sql import clock
from nova.objects.hosts.node import NODES
from nova.objects.hosts.service import BARE_METAL

TABLE = tables.compute_nodes
ALLOCATIONS = tables.allocations
SERVICES = tables.services
EVICTIONS = tables.evictions


@dataclasses.dataclass
class Plan:
    """``own``: nodes that the host manages, and new ones. ``wanted``: nodes of other hosts that the host is to take
    over, with True if the other host is down."""

    own: list[str]
    wanted: dict[str, bool]


def owner_of(node_uuid: str, hosts: Collection[str]) -> str:
    """Return the host that manages a node among ``hosts``, by rendezvous hashing."""
    return max(hosts, key=lambda host: hashlib.blake2b(f"{node_uuid}\n{host}".encode(), digest_size=8).digest())


def plan(connection: sa.Connection, host: str, uuids: Sequence[str], trusted: bool) -> Plan:
    """Plan which of these nodes a host manages. A node stays with its current host while that host is up, unless the
    node has no server and the hashing assigns it to ``host``. Raises CallerRefused if the host may not share nodes.
    ``trusted``: the hosts have no keys of their own, so [ironic]peer_list need not be set."""
    listed = CONF.ironic.peer_list
    if len(uuids) > NODES or (host not in listed if listed else not trusted):
        raise exception.CallerRefused(what=f"Host {host} is not in [ironic]peer_list of nova-conductor, or reports "
                                           f"more than {NODES} nodes: the management of bare metal nodes")
    peers = _peers(connection, host, listed)
    alive = {peer for peer, up in peers.items() if up}
    owners: dict[str, str] = {row.uuid: row.host for row in connection.execute(
        sa.select(TABLE.c.uuid, TABLE.c.host).where(TABLE.c.uuid.in_(uuids)))}
    result = Plan([], {})
    for uuid in dict.fromkeys(uuids):
        owner = owners.get(uuid)
        if owner == host:
            result.own.append(uuid)
        elif alive and host in alive and owner_of(uuid, alive) == host:
            if owner is None:
                result.own.append(uuid)
            elif owner in peers:
                result.wanted[uuid] = owner not in alive
    return result


def _peers(connection: sa.Connection, host: str, listed: Sequence[str]) -> dict[str, bool]:
    """Return the hosts that reach the same nodes, with True for those that are up."""
    rows = connection.execute(sa.select(SERVICES).where(
        SERVICES.c.binary == services.COMPUTE, SERVICES.c.connector.is_not(None))).all()
    groups = {row.host: (row.connector or {}).get(BARE_METAL) for row in rows}
    now, group = clock.now(), groups.get(host)
    return {row.host: liveness.is_alive(row, now) and not row.forced_down for row in rows
            if group and groups[row.host] == group and (not listed or row.host in listed)}


def take_over(connection: sa.Connection, host: str, wanted: dict[str, bool]) -> list[str]:
    """Move nodes to the host, with their servers if the previous host is down; return them. Nodes stay where they are
    while an operation changes a server on them, or if the server must still be removed from ``host``."""
    service_id = connection.scalar(sa.select(SERVICES.c.id).where(
        SERVICES.c.host == host, SERVICES.c.binary == services.COMPUTE))
    nodes = connection.execute(sa.select(TABLE).where(TABLE.c.uuid.in_(wanted)).order_by(TABLE.c.uuid)
                               .with_for_update()).all()
    down = {owner: not services.host_up(connection, owner, lock=True)
            for owner in sorted({node.host for node in nodes if wanted[node.uuid]})}
    on_them = sa.or_(ALLOCATIONS.c.root_uuid.in_(wanted), ALLOCATIONS.c.provider_uuid.in_(wanted))
    consumers: dict[str, set[str]] = {}
    for root, consumer in connection.execute(sa.select(allocations.ROOT, ALLOCATIONS.c.consumer_uuid).where(
            on_them, allocations.OF_SERVERS)):
        consumers.setdefault(root, set()).add(consumer)
    taken = []
    for node in nodes:
        held = consumers.get(node.uuid, set())
        if held and not (down.get(node.host) and _move_servers(connection, node, host, held)):
            continue
        taken.append(str(node.uuid))
    if taken:
        connection.execute(sa.update(TABLE).where(TABLE.c.uuid.in_(taken)).values(
            host=host, service_id=service_id, generation=TABLE.c.generation + 1, updated_at=clock.now()))
    return taken


def _move_servers(connection: sa.Connection, node: Any, host: str, consumers: set[str]) -> bool:
    """Make ``host`` the host of the servers with these claims on a node. Return False if one may not be moved now."""
    instances = connection.execute(sa.select(servers.TABLE.c.uuid, servers.TABLE.c.action_uuid).where(
        servers.TABLE.c.uuid.in_(consumers), servers.TABLE.c.host == node.host,
        servers.TABLE.c.node == node.hypervisor_hostname, servers.TABLE.c.deleted == sa.false())
        .order_by(servers.TABLE.c.uuid).with_for_update()).all()
    if {row.uuid for row in instances} != consumers or any(row.action_uuid for row in instances):
        return False
    if connection.scalar(sa.select(EVICTIONS.c.host).where(
            EVICTIONS.c.instance_uuid.in_(consumers), EVICTIONS.c.host == host).limit(1)):
        return False
    for row in instances:
        servers.update(connection, row.uuid, {"host": host})
    return True
