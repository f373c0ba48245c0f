"""Addresses of the embedded networks: given out once, by a counter; freed ones last and oldest first."""

from __future__ import annotations

import ipaddress

import sqlalchemy as sa

from nova import exception
from nova.db import models
from nova.objects.base import utcnow
from nova.objects.network import Network

NETWORKS = models.networks
IPS = models.fixed_ips


def take(connection: sa.Connection, network: Network, instance_uuid: str, vif_id: str) -> str:
    """A free address of the network. Raises NoMoreFixedIps."""
    subnet = ipaddress.ip_network(network.cidr)
    last = subnet.num_addresses - 2  # the one before broadcast
    while True:
        # The counter's row lock hands each offset to one transaction only.
        connection.execute(sa.update(NETWORKS).where(NETWORKS.c.uuid == network.uuid)
                           .values(next_offset=NETWORKS.c.next_offset + 1))
        offset = int(connection.scalar(sa.select(NETWORKS.c.next_offset).where(
            NETWORKS.c.uuid == network.uuid)) or last + 2) - 1
        if offset > last:
            connection.execute(sa.update(NETWORKS).where(NETWORKS.c.uuid == network.uuid)
                               .values(next_offset=last + 1))
            return _reuse(connection, network, instance_uuid, vif_id)
        address = str(subnet[offset])
        if address != network.gateway and _insert(connection, network, address, instance_uuid, vif_id):
            return address


def take_exactly(connection: sa.Connection, network: Network, address: str, instance_uuid: str, vif_id: str) -> None:
    """This address. Raises FixedIpInvalid (not of the network), FixedIpInUse."""
    subnet = ipaddress.ip_network(network.cidr)
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError as error:
        raise exception.FixedIpInvalid(address=address, network_id=network.uuid) from error
    if (wanted not in subnet or address == network.gateway
            or wanted in (subnet.network_address, subnet.broadcast_address)):
        raise exception.FixedIpInvalid(address=address, network_id=network.uuid)
    if _insert(connection, network, address, instance_uuid, vif_id):
        return
    freed = connection.execute(
        sa.update(IPS).where(IPS.c.network_uuid == network.uuid, IPS.c.address == address,
                             IPS.c.instance_uuid.is_(None))
        .values(instance_uuid=instance_uuid, vif_id=vif_id, updated_at=utcnow()))
    if freed.rowcount != 1:
        owner = connection.scalar(sa.select(IPS.c.instance_uuid).where(
            IPS.c.network_uuid == network.uuid, IPS.c.address == address))
        if owner != instance_uuid:
            raise exception.FixedIpInUse(address=address, instance_uuid=owner)


def release(connection: sa.Connection, instance_uuid: str) -> None:
    connection.execute(sa.update(IPS).where(IPS.c.instance_uuid == instance_uuid)
                       .values(instance_uuid=None, vif_id=None, updated_at=utcnow()))


def owner_of(connection: sa.Connection, network_uuid: str, address: str) -> str | None:
    """The instance that holds an address."""
    return connection.scalar(sa.select(IPS.c.instance_uuid).where(
        IPS.c.network_uuid == network_uuid, IPS.c.address == address))


def _insert(connection: sa.Connection, network: Network, address: str, instance_uuid: str, vif_id: str) -> bool:
    """Whether the address was new and is now this instance's."""
    values = {"network_uuid": network.uuid, "address": address, "instance_uuid": instance_uuid, "vif_id": vif_id,
              "updated_at": utcnow()}
    known = sa.select(IPS.c.id).where(IPS.c.network_uuid == network.uuid, IPS.c.address == address)
    row = sa.select(*(sa.literal(value, IPS.c[name].type) for name, value in values.items())).where(~known.exists())
    return connection.execute(sa.insert(IPS).from_select(list(values), row)).rowcount == 1


def _reuse(connection: sa.Connection, network: Network, instance_uuid: str, vif_id: str) -> str:
    while True:
        free = connection.execute(
            sa.select(IPS.c.id, IPS.c.address)
            .where(IPS.c.network_uuid == network.uuid, IPS.c.instance_uuid.is_(None))
            .order_by(IPS.c.updated_at).limit(1).with_for_update(skip_locked=True)).first()
        if free is None:
            raise exception.NoMoreFixedIps(network_id=network.uuid)
        taken = connection.execute(
            sa.update(IPS).where(IPS.c.id == free.id, IPS.c.instance_uuid.is_(None))
            .values(instance_uuid=instance_uuid, vif_id=vif_id, updated_at=utcnow()))
        if taken.rowcount == 1:
            return str(free.address)
