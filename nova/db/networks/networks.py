"""The embedded networks. Their addresses are allocated in nova.db.networks.fixed_ips."""

import ipaddress
import itertools

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.common import plain_ip
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.hosts import network_hosts, services
from nova.db.networks import fixed_ips
from nova.db.sql import clock, rows
from nova.objects.base import new_uuid
from nova.objects.networks.network import DHCPV6, SLAAC, Network

TABLE = tables.networks
IPS = tables.fixed_ips


def index(connection: sa.Connection, project_id: str | None = None) -> list[Network]:
    """Return the project's own and the shared networks (``project_id`` None: all networks), oldest first."""
    return rows.to_objects(Network, connection.execute(
        sa.select(TABLE).where(*rows.equal_or_null(TABLE.c.project_id, project_id)).order_by(TABLE.c.id)))


def get(connection: sa.Connection, uuid: str, project_id: str | None = None) -> Network:
    """Return a network. Raises NetworkNotFound, also for a network of another project."""
    return rows.first(connection, Network, sa.select(TABLE).where(
        TABLE.c.uuid == uuid, *rows.equal_or_null(TABLE.c.project_id, project_id)),
        exception.NetworkNotFound(network_id=uuid))


def create(connection: sa.Connection, network: Network) -> Network:
    """Insert a network with defaults for empty fields (``vni`` 0: an unused number). Raises InvalidInput (with the name
    of the field), NetworkDuplicate."""
    uuid = network.uuid or new_uuid()
    complete = _checked(network, uuid)
    # Only one transaction at a time: a unique index cannot refuse overlapping subnets or a VLAN that is in use.
    quotas.serialize(connection, "networks")
    others = index(connection)
    for other in others:
        if other.uuid == uuid or any(mine.overlaps(theirs) for mine in subnets(complete) for theirs in subnets(other)
                                     if mine.version == theirs.version) or (
                other.label == complete.label and other.project_id == complete.project_id):
            raise exception.NetworkDuplicate(name=complete.label, cidr=complete.cidr)
        if complete.vlan is not None and (other.vlan, other.bridge_interface) == (
                complete.vlan, complete.bridge_interface):
            raise exception.InvalidInput(reason=f"vlan {complete.vlan} is in use by network {other.uuid}")
        if complete.vni and other.vni == complete.vni:
            raise exception.InvalidInput(reason=f"vni {complete.vni} is in use by network {other.uuid}")
    if complete.vni == 0:
        taken = {existing.vni for existing in others}
        complete.vni = next(number for number in itertools.count(1) if number not in taken)
    cidr = ipaddress.IPv4Network(complete.cidr)
    first = int(ipaddress.IPv4Address(complete.dhcp_start or cidr[1])) - int(cidr.network_address)
    connection.execute(sa.insert(TABLE).values(
        {**rows.values_of(TABLE, complete), "next_offset": first, "created_at": clock.now()}))
    fixed_ips.fill(connection, complete)
    return get(connection, uuid)


def associate(connection: sa.Connection, project_id: str, uuid: str | None = None) -> Network:
    """Assign a network without an owner to the project (``uuid`` None: the first one without servers of other
    projects). Raises NetworkNotFound, NetworkInUse (another project owns or uses it), NetworkDuplicate,
    NoMoreNetworks."""
    quotas.serialize(connection, "networks")
    if uuid is not None:
        network = get(connection, uuid)
        if network.project_id not in (None, project_id) or _has_servers(connection, uuid, besides=project_id):
            raise exception.NetworkInUse(network_id=uuid)
        return _owned(connection, network, project_id)
    for network in index(connection):
        if network.project_id is None and not _has_servers(connection, network.uuid, besides=project_id):
            return _owned(connection, network, project_id)
    raise exception.NoMoreNetworks()


def disassociate(connection: sa.Connection, uuid: str, project: bool, host: bool) -> None:
    """Remove the owner of a network (which becomes shared), its host, or both. Raises NetworkNotFound,
    NetworkInUse (it has servers of the project), NetworkDuplicate."""
    quotas.serialize(connection, "networks")
    network = get(connection, uuid)
    if project and network.project_id is not None:
        if _has_servers(connection, uuid):
            raise exception.NetworkInUse(network_id=uuid)
        _owned(connection, network, None)
    if host:
        connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid).values(host=None))


def associate_host(connection: sa.Connection, uuid: str, host: str) -> None:
    """Assign a network to a host. Raises NetworkNotFound, ComputeHostNotFound."""
    network = get(connection, uuid)
    if not services.compute_exists(connection, host):
        raise exception.ComputeHostNotFound(host=host)
    connection.execute(sa.update(TABLE).where(TABLE.c.id == network.id).values(host=host))


def _has_servers(connection: sa.Connection, uuid: str, besides: str | None = None) -> bool:
    """Return True if servers (of projects other than ``besides``, if given) have addresses of the network."""
    instances = tables.instances
    statement = sa.select(IPS.c.id).join(instances, instances.c.uuid == IPS.c.instance_uuid).where(
        IPS.c.network_uuid == uuid)
    if besides is not None:
        statement = statement.where(instances.c.project_id != besides)
    return connection.scalar(statement.limit(1)) is not None


def _owned(connection: sa.Connection, network: Network, project_id: str | None) -> Network:
    """Change the owner of a network; return it. Raises NetworkDuplicate if the owner has a network of this name."""
    same = sa.and_(TABLE.c.label == network.label, TABLE.c.id != network.id, TABLE.c.project_id.is_not_distinct_from(
        project_id))
    if connection.scalar(sa.select(TABLE.c.id).where(same).limit(1)) is not None:
        raise exception.NetworkDuplicate(name=network.label, cidr=network.cidr)
    connection.execute(sa.update(TABLE).where(TABLE.c.id == network.id).values(project_id=project_id))
    return msgspec.structs.replace(network, project_id=project_id)


def subnets(network: Network) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the subnets of a network, one per IP version."""
    return [plain_ip.network(cidr) for cidr in (network.cidr, network.cidr_v6) if cidr]


def delete(connection: sa.Connection, uuid: str) -> None:
    """Delete a network. Raises NetworkNotFound, NetworkInUse (a server has an address)."""
    row = connection.execute(sa.select(TABLE.c.id).where(TABLE.c.uuid == uuid).with_for_update()).first()
    if row is None:
        raise exception.NetworkNotFound(network_id=uuid)
    # Delete free addresses first: this waits for a concurrent allocation, whose address is then found below.
    connection.execute(sa.delete(IPS).where(IPS.c.network_uuid == uuid, IPS.c.instance_uuid.is_(None)))
    if connection.scalar(sa.select(IPS.c.id).where(IPS.c.network_uuid == uuid).limit(1)) is not None:
        raise exception.NetworkInUse(network_id=uuid)
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == row.id))
    network_hosts.forget_network(connection, uuid)


# --- checks ------------------------------------------------------------------------------------
def _checked(network: Network, uuid: str) -> Network:
    """Return the network with its defaults. Raises InvalidInput naming the field."""
    cidr = parse_cidr(network.cidr)
    if not network.label or len(network.label) > 255:
        raise exception.InvalidInput(reason="label must have 1 to 255 characters")
    gateway = _host_address("gateway", network.gateway, cidr) if network.gateway else str(cidr[1])
    start = _host_address("dhcp_start", network.dhcp_start, cidr) if network.dhcp_start else None
    end = _host_address("dhcp_end", network.dhcp_end, cidr) if network.dhcp_end else None
    if end and ipaddress.IPv4Address(end) < ipaddress.IPv4Address(start or cidr[1]):
        raise exception.InvalidInput(reason=f"dhcp_end {end} is before the first address of the DHCP range")
    least = 1280 if network.cidr_v6 else 576
    if not least <= network.mtu <= 65535:
        raise exception.InvalidInput(reason=f"mtu {network.mtu} is not between {least} and 65535")
    _check_wire(network)
    for server in network.dns:
        try:
            plain_ip.address(server)
        except ValueError as error:
            raise exception.InvalidInput(reason=f"dns '{server}' is not an IP address") from error
    cidr_v6, gateway_v6 = _checked_v6(network)
    return msgspec.structs.replace(
        network, uuid=uuid, cidr=str(cidr), gateway=gateway, dhcp_start=start, dhcp_end=end, cidr_v6=cidr_v6,
        gateway_v6=gateway_v6, bridge=f"br-{uuid.replace('-', '')[:11]}",
        bridge_interface=network.bridge_interface or None, project_id=network.project_id or None)


def _check_wire(network: Network) -> None:
    """Check the fields about the traffic between hosts: VLAN, VNI and bridge."""
    if network.vlan is not None and not 1 <= network.vlan <= 4094:
        raise exception.InvalidInput(reason=f"vlan {network.vlan} is not between 1 and 4094")
    if network.vlan is not None and not network.bridge_interface:
        raise exception.InvalidInput(reason="vlan needs a bridge_interface")
    if network.vni is not None and not 0 <= network.vni < 2**24:
        raise exception.InvalidInput(reason=f"vni {network.vni} is not between 1 and {2**24 - 1}")
    if network.vni is not None and network.bridge_interface:
        raise exception.InvalidInput(reason="a network has a vni or a bridge_interface, not both")
    for name, value in (("bridge_interface", network.bridge_interface), ("bridge", network.bridge)):
        if value and (len(value) > 15 or not value.isprintable() or "/" in value or " " in value):
            raise exception.InvalidInput(reason=f"{name} '{value}' is not the name of a network device")


def _checked_v6(network: Network) -> tuple[str | None, str | None]:
    """Return the IPv6 subnet and its gateway, or (None, None) without an IPv6 subnet."""
    if not network.cidr_v6:
        if network.gateway_v6:
            raise exception.InvalidInput(reason="gateway_v6 needs a cidr_v6")
        return None, None
    if network.ipv6_mode not in (SLAAC, DHCPV6):
        raise exception.InvalidInput(reason=f"ipv6_mode '{network.ipv6_mode}' is not {SLAAC} or {DHCPV6}")
    cidr = parse_cidr_v6(network.cidr_v6)
    if network.ipv6_mode == SLAAC and cidr.prefixlen != 64:
        raise exception.InvalidInput(reason=f"cidr_v6 '{cidr}' must be a /64: SLAAC requires it")
    if not network.gateway_v6:
        return str(cidr), str(cidr[1])
    return str(cidr), _host_address("gateway_v6", network.gateway_v6, cidr)


def parse_cidr_v6(value: str) -> ipaddress.IPv6Network:
    """Return the IPv6 subnet of a text. Raises InvalidInput if it cannot be the subnet of a network."""
    try:
        cidr = plain_ip.v6_network(value)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"cidr_v6 '{value}' is not an IPv6 network: {error}") from error
    if not 64 <= cidr.prefixlen <= 120:
        raise exception.InvalidInput(reason=f"cidr_v6 '{value}' must have a prefix length from /64 to /120")
    if any(cidr.overlaps(plain_ip.v6_network(special)) for special in (
            "::/32", "64:ff9b::/96", "fe80::/10", "fec0::/10", "ff00::/8")):
        raise exception.InvalidInput(
            reason=f"cidr_v6 '{value}' has reserved, loopback, link-local or multicast addresses")
    return cidr


def parse_cidr(value: str) -> ipaddress.IPv4Network:
    """Return the subnet of a text. Raises InvalidInput if it cannot be the subnet of a network."""
    try:
        cidr = ipaddress.IPv4Network(value)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"cidr '{value}' is not an IPv4 network: {error}") from error
    if "/" not in value or not 8 <= cidr.prefixlen <= 30:
        raise exception.InvalidInput(reason=f"cidr '{value}' must have a prefix length from /8 to /30")
    if cidr.is_multicast or cidr.is_reserved or any(cidr.overlaps(ipaddress.IPv4Network(special)) for special in (
            "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16")):
        raise exception.InvalidInput(reason=f"cidr '{value}' has reserved, loopback, link-local or multicast addresses")
    return cidr


def _host_address(name: str, value: str, cidr: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    try:
        address = ipaddress.IPv4Address(value) if cidr.version == 4 else plain_ip.v6_address(value)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"{name} '{value}' is not an IPv{cidr.version} address") from error
    if address not in cidr or address == cidr[0] or (cidr.version == 4 and address == cidr[-1]):
        raise exception.InvalidInput(reason=f"{name} {address} is not a host address of {cidr}")
    return str(address)
