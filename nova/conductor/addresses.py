"""Which networks a server gets, and its interfaces and addresses on them."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence

import sqlalchemy as sa

from nova import exception
from nova.db import fixed_ips, networks
from nova.objects.base import new_uuid
from nova.objects.instance import Instance
from nova.objects.network import VIF, Network, NetworkRequest


def choose(connection: sa.Connection, project_id: str,
           wanted: Sequence[NetworkRequest] | None) -> list[NetworkRequest]:
    """The networks of a new server, checked: what was asked for, or the project's only network.

    Raises NetworkAmbiguous, NetworkNotFound, PortNotSupported, FixedIpInvalid.
    """
    if wanted is not None and not wanted:
        return []
    usable = {network.uuid: network for network in networks.for_project(connection, project_id)}
    if wanted is None:
        if len(usable) > 1:
            raise exception.NetworkAmbiguous()
        return [NetworkRequest(network_id=uuid) for uuid in usable]
    for request in wanted:
        if request.port_id:
            raise exception.PortNotSupported()
        network = usable.get(request.network_id or "")
        if network is None:
            # What the API answers for a network that a create request names: 400, not 404.
            raise exception.InvalidInput(f"Network {request.network_id} could not be found.")
        if request.fixed_ip and _outside(network, request.fixed_ip):
            raise exception.FixedIpInvalid(address=request.fixed_ip, network_id=network.uuid)
    return list(wanted)


def take(connection: sa.Connection, instance: Instance) -> list[VIF]:
    """Interfaces with addresses for all requested networks. Raises NoMoreFixedIps, FixedIpInUse."""
    usable = {network.uuid: network for network in networks.for_project(connection, instance.project_id)}
    vifs = []
    for request in instance.requested_networks or []:
        network = usable.get(request.network_id or "")
        if network is None:
            raise exception.NetworkNotFound(network_id=request.network_id)
        vif_id = new_uuid()
        if request.fixed_ip:
            fixed_ips.take_exactly(connection, network, request.fixed_ip, instance.uuid, vif_id)
            address = request.fixed_ip
        else:
            address = fixed_ips.take(connection, network, instance.uuid, vif_id)
        vifs.append(_vif(network, vif_id, address, request.tag))
    return vifs


def release(connection: sa.Connection, instance_uuid: str) -> None:
    fixed_ips.release(connection, instance_uuid)


def _vif(network: Network, vif_id: str, address: str, tag: str | None) -> VIF:
    return VIF(
        id=vif_id, network_id=network.uuid, label=network.label, mac=_mac(), address=address,
        prefix=ipaddress.ip_network(network.cidr).prefixlen, gateway=network.gateway, dns=network.dns,
        cidr=network.cidr, mtu=network.mtu, bridge=network.bridge, vlan=network.vlan,
        bridge_interface=network.bridge_interface, devname=f"tap{vif_id}"[:14], tag=tag)


def _mac() -> str:
    """A locally administered address with OpenStack's usual prefix."""
    return "fa:16:3e:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))


def _outside(network: Network, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) not in ipaddress.ip_network(network.cidr)
    except ValueError:
        return True
