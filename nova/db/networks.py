"""The embedded networks. Their addresses are given out in nova.db.fixed_ips."""

from __future__ import annotations

import ipaddress

import sqlalchemy as sa

from nova import exception
from nova.db import models, quotas, rows
from nova.objects.base import new_uuid, utcnow
from nova.objects.network import Network

TABLE = models.networks
IPS = models.fixed_ips


def index(connection: sa.Connection, project_id: str | None = None) -> list[Network]:
    """The project's own and the shared networks, oldest first; None: all."""
    statement = sa.select(TABLE).order_by(TABLE.c.id)
    if project_id is not None:
        statement = statement.where(_usable(project_id))
    return rows.to_objects(Network, connection.execute(statement))


def for_project(connection: sa.Connection, project_id: str) -> list[Network]:
    """The networks that servers of a project may have interfaces on."""
    return index(connection, project_id)


def get(connection: sa.Connection, uuid: str, project_id: str | None = None) -> Network:
    """Raises NetworkNotFound, also for a network of another project."""
    statement = sa.select(TABLE).where(TABLE.c.uuid == uuid)
    if project_id is not None:
        statement = statement.where(_usable(project_id))
    row = connection.execute(statement).first()
    if row is None:
        raise exception.NetworkNotFound(network_id=uuid)
    return rows.to_object(Network, row)


def _usable(project_id: str) -> sa.ColumnElement[bool]:
    return sa.or_(TABLE.c.project_id == project_id, TABLE.c.project_id.is_(None))


def create(connection: sa.Connection, network: Network) -> Network:
    """A new network; what is left empty gets a value. Raises InvalidInput (which field), NetworkDuplicate."""
    uuid = network.uuid or new_uuid()
    complete = _checked(network, uuid)
    # Neither overlap nor a VLAN used twice is visible to a unique index.
    quotas.serialize(connection, "networks")
    cidr = ipaddress.IPv4Network(complete.cidr)
    for other in index(connection):
        if other.uuid == uuid or cidr.overlaps(ipaddress.ip_network(other.cidr)) or (
                other.label == complete.label and other.project_id == complete.project_id):
            raise exception.NetworkDuplicate(name=complete.label, cidr=complete.cidr)
        if complete.vlan is not None and (other.vlan, other.bridge_interface) == (
                complete.vlan, complete.bridge_interface):
            raise exception.InvalidInput(reason=f"vlan {complete.vlan} is in use by network {other.uuid}")
    first = int(ipaddress.IPv4Address(complete.dhcp_start or cidr[1])) - int(cidr.network_address)
    connection.execute(sa.insert(TABLE).values(
        {**rows.values_of(TABLE, complete), "next_offset": first, "created_at": utcnow()}))
    return get(connection, uuid)


def delete(connection: sa.Connection, uuid: str) -> None:
    """Raises NetworkNotFound, NetworkInUse (a server has an address)."""
    row = connection.execute(sa.select(TABLE.c.id).where(TABLE.c.uuid == uuid).with_for_update()).first()
    if row is None:
        raise exception.NetworkNotFound(network_id=uuid)
    # The free addresses first: one that is taken at this moment is waited for and found below.
    connection.execute(sa.delete(IPS).where(IPS.c.network_uuid == uuid, IPS.c.instance_uuid.is_(None)))
    if connection.scalar(sa.select(IPS.c.id).where(IPS.c.network_uuid == uuid).limit(1)) is not None:
        raise exception.NetworkInUse(network_id=uuid)
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == row.id))


# --- checks ------------------------------------------------------------------------------------
def _checked(network: Network, uuid: str) -> Network:
    """The network with its defaults. Raises InvalidInput naming the field."""
    cidr = parse_cidr(network.cidr)
    if not network.label or len(network.label) > 255:
        raise exception.InvalidInput(reason="label must have 1 to 255 characters")
    gateway = _host_address("gateway", network.gateway, cidr) if network.gateway else str(cidr[1])
    start = _host_address("dhcp_start", network.dhcp_start, cidr) if network.dhcp_start else None
    if not 576 <= network.mtu <= 65535:
        raise exception.InvalidInput(reason=f"mtu {network.mtu} is not between 576 and 65535")
    if network.vlan is not None and not 1 <= network.vlan <= 4094:
        raise exception.InvalidInput(reason=f"vlan {network.vlan} is not between 1 and 4094")
    if network.vlan is not None and not network.bridge_interface:
        raise exception.InvalidInput(reason="vlan needs a bridge_interface")
    for name, value in (("bridge_interface", network.bridge_interface), ("bridge", network.bridge)):
        if value and (len(value) > 15 or not value.isprintable() or "/" in value or " " in value):
            raise exception.InvalidInput(reason=f"{name} '{value}' is not the name of a network device")
    for server in network.dns:
        try:
            ipaddress.ip_address(server)
        except ValueError as error:
            raise exception.InvalidInput(reason=f"dns '{server}' is not an IP address") from error
    return Network(
        uuid=uuid, label=network.label, cidr=str(cidr), gateway=gateway, dns=network.dns, dhcp_start=start,
        mtu=network.mtu, bridge=f"br-{uuid.replace('-', '')[:11]}", vlan=network.vlan,
        bridge_interface=network.bridge_interface or None, project_id=network.project_id or None)


def parse_cidr(value: str) -> ipaddress.IPv4Network:
    """The subnet that ``value`` names. Raises InvalidInput for what cannot be the subnet of a network."""
    try:
        cidr = ipaddress.IPv4Network(value)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"cidr '{value}' is not an IPv4 network: {error}") from error
    if "/" not in value or not 8 <= cidr.prefixlen <= 30:
        raise exception.InvalidInput(reason=f"cidr '{value}' must have a prefix length from /8 to /30")
    if cidr.is_multicast or cidr.is_reserved or any(cidr.overlaps(ipaddress.IPv4Network(special)) for special in (
            "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16")):
        raise exception.InvalidInput(reason=f"cidr '{value}' has addresses that are not for hosts")
    return cidr


def _host_address(name: str, value: str, cidr: ipaddress.IPv4Network) -> str:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"{name} '{value}' is not an IPv4 address") from error
    if address not in cidr or address in (cidr.network_address, cidr.broadcast_address):
        raise exception.InvalidInput(reason=f"{name} {address} is not a host address of {cidr}")
    return str(address)
