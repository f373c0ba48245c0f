"""The hosts of each VXLAN network, and the addresses of their tunnels. A host reports when it gets its first guest of a
network and when its last guest of the network has left. So, on a host that has the network, a boot needs no report."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from nova.db import tables, versions
from nova.db.servers import servers
from nova.db.sql import rows
from nova.objects.networks.network import Peers

TABLE = tables.network_hosts
NETWORKS = tables.networks
VERSIONS = tables.versions


def differs(connection: sa.Connection, host: str, address: str, networks: Collection[str], complete: bool) -> set[str]:
    """Return the networks for which :func:`present` would write rows, by one or two statements."""
    there = dict(connection.execute(sa.select(TABLE.c.network_uuid, TABLE.c.address).where(TABLE.c.host == host)).all())
    new = {network for network in networks if there.get(network) != address}
    if new:
        new &= set(connection.scalars(sa.select(NETWORKS.c.uuid).where(
            NETWORKS.c.uuid.in_(new), NETWORKS.c.vni.is_not(None))))
    return new | (there.keys() - set(networks) if complete else set())


def strangers(connection: sa.Connection, host: str, networks: Collection[str]) -> set[str]:
    """Return those of ``networks`` in which no server on the host, or moving to it, has an address. One statement."""
    ips, instances = tables.fixed_ips, tables.instances
    with_servers = connection.scalars(sa.select(ips.c.network_uuid).distinct().join(
        instances, instances.c.uuid == ips.c.instance_uuid).where(
        ips.c.network_uuid.in_(networks), servers.placed_on(host)))
    return set(networks) - set(with_servers)


def present(connection: sa.Connection, host: str, address: str, networks: Collection[str], complete: bool) -> set[str]:
    """Record that the host has these networks (with ``complete``: only these), with tunnels to ``address``. Return the
    networks whose other hosts must be notified."""
    changed = differs(connection, host, address, networks, complete)
    for network in sorted(changed):
        versions.bump(connection, versions.peers(network))
        connection.execute(sa.delete(TABLE).where(TABLE.c.network_uuid == network, TABLE.c.host == host))
        if network in networks:
            with rows.on_duplicate():
                connection.execute(sa.insert(TABLE).values(network_uuid=network, host=host, address=address))
    return changed


def newer(connection: sa.Connection, held: Mapping[str, int]) -> list[Peers]:
    """Return the networks with a newer version than in ``held`` (network -> version), and their hosts."""
    names = {versions.peers(network): network for network in held}
    newer_versions = {names[row.name]: row.version for row in connection.execute(
        sa.select(VERSIONS).where(VERSIONS.c.name.in_(names)))} if names else {}
    stale = {network: version for network, version in newer_versions.items() if version > held[network]}
    hosts: dict[str, dict[str, str]] = {network: {} for network in stale}
    if stale:
        for row in connection.execute(sa.select(TABLE).where(TABLE.c.network_uuid.in_(stale)).order_by(TABLE.c.host)):
            hosts[row.network_uuid][row.host] = row.address
    return [Peers(network_id=network, version=stale[network], hosts=hosts[network]) for network in sorted(stale)]


def forget_host(connection: sa.Connection, host: str) -> None:
    """Remove a host that an operator deleted. Other hosts are informed in the reply to their next query."""
    present(connection, host, "", [], complete=True)


def forget_network(connection: sa.Connection, network_uuid: str) -> None:
    connection.execute(sa.delete(TABLE).where(TABLE.c.network_uuid == network_uuid))
    connection.execute(sa.delete(VERSIONS).where(VERSIONS.c.name == versions.peers(network_uuid)))
