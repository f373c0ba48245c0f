"""Addresses of the embedded networks.

The rows of addresses are created before the addresses are used, so that an allocation locks only these rows. A network
begins with rows for some of its IPv4 addresses and gets more when all are used. Addresses that were never used are
allocated first, then those that have been free for the longest time. The row of an IPv4 address also contains a unique
MAC address, and the IPv6 address is derived from both: an interface always gets the three together."""

import datetime
import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nova import exception
from nova.common import plain_ip
from nova.db import tables
from nova.db.sql import clock, rows
from nova.objects.networks.network import SLAAC, Network, NetworkAddress, slaac_address

NETWORKS = tables.networks
IPS = tables.fixed_ips
INSTANCES = tables.instances

POOL = 256  # number of rows of addresses that are added to a network at a time
# Release time of a row that was never allocated, which sorts before all others.
_NEVER = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TRIES = 16  # number of random IPv6 addresses to try if the derived one is in use
_OUI = "fa:16:3e"  # prefix of all MAC addresses of Nova: OpenStack's usual, locally administered one


class Taken(NamedTuple):
    """The addresses of an interface, the IPv4 address first."""

    mac: str
    addresses: list[str]


# --- allocation ----------------------------------------------------------------------------------
_FREE = (sa.select(IPS.c.id, IPS.c.address, IPS.c.mac)
         .where(IPS.c.network_uuid == sa.bindparam("network"), IPS.c.version == 4, IPS.c.instance_uuid.is_(None),
                IPS.c.reserved == sa.false())
         .order_by(IPS.c.updated_at, IPS.c.id).limit(1).with_for_update(skip_locked=True))
_THIS = (sa.select(IPS.c.id, IPS.c.address, IPS.c.mac, IPS.c.instance_uuid, IPS.c.reserved)
         .where(IPS.c.network_uuid == sa.bindparam("network"), IPS.c.address == sa.bindparam("address"))
         .with_for_update())
_TAKE = (sa.update(IPS)
         .where(IPS.c.network_uuid == sa.bindparam("network"), IPS.c.address.in_(sa.bindparam("these", expanding=True)),
                IPS.c.instance_uuid.is_(None))
         .values(instance_uuid=sa.bindparam("owner"), vif_id=sa.bindparam("vif"), updated_at=sa.bindparam("now")))


def take(connection: sa.Connection, network: Network, instance_uuid: str, vif_id: str,
         wanted: str | None = None) -> Taken:
    """Allocate an IPv4 address of the network, and an IPv6 address if the network has an IPv6 subnet. ``wanted``: the
    requested IPv4 or IPv6 address. Usually two statements. Raises NoMoreFixedIps, FixedIpInvalid (not an address of
    the network), FixedIpInUse."""
    wanted = check(network, wanted) if wanted else None
    wanted_v6 = wanted if wanted and ":" in wanted else None
    row = _row(connection, network, wanted) if wanted and not wanted_v6 else _free(connection, network)
    mac, addresses = row.mac or _assign(connection, network, [row.id])[row.id], [str(row.address)]
    owner = {"network": network.uuid, "owner": instance_uuid, "vif": vif_id, "now": clock.now()}
    if network.cidr_v6:
        addresses.append(wanted_v6 or _partner(network, addresses[0], mac))
    if connection.execute(_TAKE, {**owner, "these": addresses}).rowcount == len(addresses):
        return Taken(mac, addresses)
    # The IPv6 address has no row yet, or another server has it.
    fixed = wanted_v6 or network.ipv6_mode == SLAAC
    tries = [addresses[1], *(_random_v6(network) for _try in range(0 if fixed else _TRIES))]
    for address in tries:
        if _insert(connection, network, address, instance_uuid, vif_id) or (
                connection.execute(_TAKE, {**owner, "these": [address]}).rowcount):
            return Taken(mac, [addresses[0], address])
    if wanted_v6:
        raise exception.FixedIpInUse(address=wanted_v6)
    raise exception.NoMoreFixedIps(network_id=network.uuid)


def check(network: Network, address: str) -> str:
    """Return the address as stored in the database. Raises FixedIpInvalid if no interface can request it."""
    try:
        wanted = plain_ip.address(address)
    except ValueError as error:
        raise exception.FixedIpInvalid(address=address, network_id=network.uuid) from error
    # SLAAC derives the address from the MAC address, so it cannot be chosen.
    cidr = network.cidr if wanted.version == 4 else network.cidr_v6 if network.ipv6_mode != SLAAC else None
    if cidr is None or wanted not in (subnet := plain_ip.network(cidr)) or str(wanted) in _reserved(
            network, subnet) or (wanted.version == 4 and not _start(network) <= wanted <= _end(network)):
        raise exception.FixedIpInvalid(address=address, network_id=network.uuid)
    return str(wanted)


def _reserved(network: Network, subnet: ipaddress.IPv4Network | ipaddress.IPv6Network) -> set[str | None]:
    """Return the addresses that no interface gets: gateways, name servers, the first and last address of the subnet."""
    return {network.gateway, network.gateway_v6, *network.dns, str(subnet[0]), str(subnet[-1])}


def _start(network: Network) -> ipaddress.IPv4Address:
    """Return the first address of the pool; the addresses before it are reserved for the operator."""
    return ipaddress.IPv4Address(network.dhcp_start or ipaddress.IPv4Network(network.cidr)[1])


def _end(network: Network) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(network.dhcp_end or ipaddress.IPv4Network(network.cidr)[-2])


def _free(connection: sa.Connection, network: Network) -> Any:
    """Return a free IPv4 address, locked. Concurrent allocations skip it."""
    row = connection.execute(_FREE, {"network": network.uuid}).first()
    while row is None:
        offset = _lock(connection, network)
        row = connection.execute(_FREE, {"network": network.uuid}).first()
        if row is None and not _add(connection, network, offset):
            raise exception.NoMoreFixedIps(network_id=network.uuid)
        row = row or connection.execute(_FREE, {"network": network.uuid}).first()
    return row


def _row(connection: sa.Connection, network: Network, address: str) -> Any:
    """Return the free row of this IPv4 address, locked, created if missing. Raises FixedIpInUse."""
    this = {"network": network.uuid, "address": address}
    row = connection.execute(_THIS, this).first()
    if row is None:
        _lock(connection, network)  # Only one transaction at a time creates rows.
        _insert(connection, network, address)
        row = connection.execute(_THIS, this).one()
    if row.instance_uuid is not None or row.reserved:
        raise exception.FixedIpInUse(address=address)
    return row


def _insert(connection: sa.Connection, network: Network, address: str, instance_uuid: str | None = None,
            vif_id: str | None = None) -> bool:
    """Insert the row of an address. Return False if the address already has a row."""
    values = {"network_uuid": network.uuid, "address": address, "version": 6 if ":" in address else 4,
              "instance_uuid": instance_uuid, "vif_id": vif_id, "updated_at": clock.now() if instance_uuid else _NEVER}
    existing = sa.select(IPS.c.id).where(IPS.c.network_uuid == network.uuid, IPS.c.address == address)
    row = sa.select(*(sa.literal(value, IPS.c[name].type) for name, value in values.items())).where(~existing.exists())
    with rows.on_duplicate():
        done = connection.execute(sa.insert(IPS).from_select(list(values), row))
    return done.rowcount == 1


# --- pool ----------------------------------------------------------------------------------------
def fill(connection: sa.Connection, network: Network) -> None:
    """Insert the first addresses of a new network."""
    _add(connection, network, _lock(connection, network))


def _lock(connection: sa.Connection, network: Network) -> int:
    """Lock the network until the commit. Return the offset, within its subnet, of the first address without a row."""
    offset = connection.scalar(
        sa.select(NETWORKS.c.next_offset).where(NETWORKS.c.uuid == network.uuid).with_for_update())
    if offset is None:
        raise exception.NetworkNotFound(network_id=network.uuid)
    return int(offset)


def _add(connection: sa.Connection, network: Network, offset: int) -> bool:
    """Insert rows of up to ``POOL`` addresses from ``offset`` on. Return False if the subnet has no more addresses."""
    subnet = ipaddress.IPv4Network(network.cidr)
    end = min(offset + POOL, int(_end(network)) - int(subnet.network_address) + 1)
    if offset >= end:
        return False
    addresses = [str(subnet[number]) for number in range(offset, end)]
    there = set(connection.scalars(sa.select(IPS.c.address).where(
        IPS.c.network_uuid == network.uuid, IPS.c.address.in_(addresses))))
    fresh = [address for address in addresses if address not in there | _reserved(network, subnet)]
    if fresh:
        ids = list(connection.scalars(sa.insert(IPS).returning(IPS.c.id, sort_by_parameter_order=True), [
            {"network_uuid": network.uuid, "address": address, "version": 4, "updated_at": _NEVER}
            for address in fresh]))
        macs = _assign(connection, network, ids)
        if network.cidr_v6:
            _add_partners(connection, network, {address: macs[number]
                                                for number, address in zip(ids, fresh, strict=True)})
    connection.execute(sa.update(NETWORKS).where(NETWORKS.c.uuid == network.uuid).values(next_offset=end))
    return True


def _add_partners(connection: sa.Connection, network: Network, made: dict[str, str]) -> None:
    """Insert the IPv6 addresses derived from new rows (``made``: IPv4 -> MAC), so that one statement allocates both."""
    partners = {_partner(network, address, mac) for address, mac in made.items()}
    partners -= set(connection.scalars(sa.select(IPS.c.address).where(
        IPS.c.network_uuid == network.uuid, IPS.c.address.in_(list(partners)))))
    if partners:
        connection.execute(sa.insert(IPS), [
            {"network_uuid": network.uuid, "address": address, "version": 6, "updated_at": _NEVER}
            for address in sorted(partners)])


def _assign(connection: sa.Connection, network: Network, row_ids: Sequence[int]) -> dict[int, str]:
    """Assign MAC addresses to rows without one: the derived address, or another address if the derived is in use."""
    macs = {row_id: _mac(network, row_id) for row_id in row_ids}
    while taken := set(connection.scalars(sa.select(IPS.c.mac).where(IPS.c.mac.in_(list(macs.values()))))):
        macs.update({row_id: _spelt(secrets.randbelow(2**24)) for row_id, mac in macs.items() if mac in taken})
    with rows.on_duplicate():
        connection.execute(sa.update(IPS).where(IPS.c.id == sa.bindparam("this")).values(mac=sa.bindparam("new_mac")),
                           [{"this": row_id, "new_mac": mac} for row_id, mac in macs.items()])
    return macs


def _mac(network: Network, row_id: int) -> str:
    """Return the MAC address derived from the id of a row. The numbers of each network begin at a different value,
    since another cloud may use the same physical network."""
    start = int.from_bytes(hashlib.sha256(network.uuid.encode()).digest()[:3], "big")
    return _spelt((start + row_id) % 2**24)


def _spelt(number: int) -> str:
    return f"{_OUI}:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"


def _partner(network: Network, address: str, mac: str) -> str:
    """Return the IPv6 address derived from an IPv4 address and a MAC address."""
    subnet = plain_ip.v6_network(network.cidr_v6 or "")
    if network.ipv6_mode == SLAAC:
        return slaac_address(subnet, mac)
    offset = int(ipaddress.IPv4Address(address)) - int(ipaddress.IPv4Network(network.cidr).network_address)
    if offset < subnet.num_addresses and str(subnet[offset]) not in _reserved(network, subnet):
        return str(subnet[offset])
    return _random_v6(network)


def _random_v6(network: Network) -> str:
    subnet = plain_ip.v6_network(network.cidr_v6 or "")
    while True:
        address = str(subnet[secrets.randbelow(subnet.num_addresses)])
        if address not in _reserved(network, subnet):
            return address


# --- os-fixed-ips, for administrators -------------------------------------------------------------
def show(connection: sa.Connection, address: str) -> NetworkAddress:
    """Return an address of a network, even if it was never used. Raises FixedIpNotFoundForAddress."""
    network = _network_of(connection, address)
    row = connection.execute(
        sa.select(IPS.c.reserved, IPS.c.instance_uuid, INSTANCES.c.hostname, INSTANCES.c.host)
        .outerjoin(INSTANCES, INSTANCES.c.uuid == IPS.c.instance_uuid)
        .where(IPS.c.network_uuid == network.uuid, IPS.c.address == address)).first()
    cidr = network.cidr_v6 if ":" in address else network.cidr
    if row is None:
        return NetworkAddress(address=address, cidr=cidr or "", reserved=not _given_out(network, address))
    return NetworkAddress(address=address, cidr=cidr or "", reserved=row.reserved, instance_uuid=row.instance_uuid,
                        hostname=row.hostname, host=row.host)


def reserve(connection: sa.Connection, address: str, reserved: bool) -> None:
    """Reserve an address, so that no server gets it, or end its reservation. A server that has the address keeps it.
    Raises FixedIpNotFoundForAddress, InvalidInput (outside of the pool, or not an IPv4 address)."""
    network = _network_of(connection, address)
    if ":" in address:  # The IPv6 address follows from the IPv4 address.
        raise exception.InvalidInput(reason=f"{address} is an IPv6 address: reserve the related IPv4 address")
    if not _given_out(network, address):
        raise exception.InvalidInput(reason=f"address {address} is not in the range for servers")
    _lock(connection, network)  # Only one transaction at a time creates rows.
    _insert(connection, network, address)
    connection.execute(sa.update(IPS).where(
        IPS.c.network_uuid == network.uuid, IPS.c.address == address).values(reserved=reserved))


def _network_of(connection: sa.Connection, address: str) -> Network:
    wanted = plain_ip.address(address)
    for row in connection.execute(sa.select(NETWORKS).order_by(NETWORKS.c.id)):
        cidr = row.cidr if wanted.version == 4 else row.cidr_v6
        if cidr and wanted in plain_ip.network(cidr):
            return rows.to_object(Network, row)
    raise exception.FixedIpNotFoundForAddress(address=address)


def _given_out(network: Network, address: str) -> bool:
    try:
        check(network, address)
    except exception.FixedIpInvalid:
        return ":" in address and str(address) not in _reserved(network, plain_ip.network(network.cidr_v6 or ""))
    return True


# --- release -------------------------------------------------------------------------------------
def release(connection: sa.Connection, instance_uuid: str, vif_id: str | None = None) -> None:
    """Free the addresses of an instance, or of one of its interfaces."""
    connection.execute(sa.update(IPS).where(IPS.c.instance_uuid == instance_uuid, *rows.equal(IPS.c.vif_id, vif_id))
                       .values(instance_uuid=None, vif_id=None, updated_at=clock.now()))


def is_taken(connection: sa.Connection, network_uuid: str, address: str) -> bool:
    """Return True if an address is in use or reserved."""
    return connection.scalar(sa.select(IPS.c.id).where(
        IPS.c.network_uuid == network_uuid, IPS.c.address == address,
        sa.or_(IPS.c.instance_uuid.is_not(None), IPS.c.reserved == sa.true()))) is not None


def owner_of(connection: sa.Connection, network_uuid: str, address: str) -> str | None:
    return connection.scalar(sa.select(IPS.c.instance_uuid).where(
        IPS.c.network_uuid == network_uuid, IPS.c.address == address))
