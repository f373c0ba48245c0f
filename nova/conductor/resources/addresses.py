"""The embedded network back end on the conductor: selection of networks, interfaces and addresses of a server."""

import uuid
from collections.abc import Sequence

import sqlalchemy as sa

from nova import exception
from nova.common import plain_ip
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.accounts import quotas
from nova.db.networks import fixed_ips, floating_ips, networks
from nova.db.sql.engine import Database
from nova.objects.base import new_uuid
from nova.objects.networks.network import VIF, FixedIp, Network, NetworkRequest
from nova.objects.servers.instance import Instance


class EmbeddedAllocator:
    """A :class:`nova.network.base.Allocator` of networks in this database."""

    external = False

    def __init__(self, db: Database) -> None:
        self._db = db

    def validate(self, ctx: RequestContext, project_id: str, wanted: Sequence[NetworkRequest] | None,
                 auto: bool = False) -> list[NetworkRequest]:
        return self._db.read(lambda connection: choose(connection, project_id, wanted))


def choose(connection: sa.Connection, project_id: str, wanted: Sequence[NetworkRequest] | None) -> list[NetworkRequest]:
    """Return the validated networks of a server: the requested networks, or the project's only network. Raises
    NetworkAmbiguous, NetworkNotFound, PortNotSupported, FixedIpInvalid, FixedIpInUse, QuotaLimit."""
    check_ports(len(wanted or ()))
    if wanted is not None and not wanted:
        return []
    usable = {network.uuid: network for network in networks.index(connection, project_id)}
    if wanted is None:
        if len(usable) > 1:
            raise exception.NetworkAmbiguous()
        return [NetworkRequest(network_id=uuid) for uuid in usable]
    requested_addresses: set[tuple[str, str]] = set()
    for request in wanted:
        if request.port_id:
            raise exception.PortNotSupported()
        network = usable.get(request.network_id or "")
        if network is None:
            raise exception.NetworkNotFound(network_id=request.network_id)
        if request.fixed_ip:
            address = fixed_ips.check(network, request.fixed_ip)
            if (network.uuid, address) in requested_addresses or fixed_ips.is_taken(connection, network.uuid, address):
                raise exception.FixedIpInUse(address=address)
            requested_addresses.add((network.uuid, address))
    return list(wanted)


def check_ports(number: int) -> None:
    """Raise QuotaLimit if a server may not have ``number`` interfaces."""
    if 0 <= CONF.quota.server_ports < number:
        raise exception.QuotaLimit("Maximum number of ports exceeded")


def check_more(connection: sa.Connection, instance: Instance) -> None:
    """Raise QuotaLimit if the server may not have another interface."""
    check_ports(len(instance.network_info) + 1)
    most = quotas.limits(connection, instance.project_id)["fixed_ips"]
    if most >= 0:
        quotas.lock(connection, instance.project_id)
        quotas.check_interfaces(connection, instance.project_id, most, 1)


def allocate(connection: sa.Connection, instance: Instance, wanted: Sequence[NetworkRequest]) -> list[VIF]:
    """Create interfaces with addresses on these networks. Raises NetworkNotFound, NoMoreFixedIps, FixedIpInUse."""
    if not wanted:
        return []
    usable = {network.uuid: network for network in networks.index(connection, instance.project_id)}
    vifs = []
    for request in wanted:
        network = usable.get(request.network_id or "")
        if network is None:
            raise exception.NetworkNotFound(network_id=request.network_id)
        vif_id = new_uuid()
        taken = fixed_ips.take(connection, network, instance.uuid, vif_id, request.fixed_ip)
        vifs.append(VIF(
            id=vif_id, network_id=network.uuid, label=network.label, mac=taken.mac, mtu=network.mtu,
            fixed_ips=[_fixed_ip(network, address) for address in taken.addresses], bridge=network.bridge,
            vlan=network.vlan, bridge_interface=network.bridge_interface, vni=network.vni,
            devname=f"tap{vif_id}"[:14], tag=request.tag))
    return vifs


def release(connection: sa.Connection, instance_uuid: str, vif_ids: Sequence[str] = ()) -> None:
    """Free the addresses of these interfaces of the server (default: of all)."""
    ids: Sequence[str | None] = vif_ids or [None]
    for vif_id in ids:
        fixed_ips.release(connection, instance_uuid, vif_id)
        floating_ips.let_go(connection, instance_uuid, vif_id)


def subnet_id(network_id: str, cidr: str) -> str:
    """Return the id under which users see a subnet. Embedded subnets have no rows of their own."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{network_id}/{cidr}"))


def _fixed_ip(network: Network, address: str) -> FixedIp:
    version = plain_ip.address(address).version
    cidr, gateway, mode = (network.cidr, network.gateway, "dhcp") if version == 4 else (
        network.cidr_v6 or "", network.gateway_v6, network.ipv6_mode)
    dns = [server for server in network.dns if plain_ip.address(server).version == version]
    return FixedIp(address=address, version=version, prefix=plain_ip.network(cidr).prefixlen, cidr=cidr,
                   gateway=gateway, dns=dns, mode=mode, subnet_id=subnet_id(network.uuid, cidr))
