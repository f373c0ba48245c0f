"""The commands nova-manage network and floating, for embedded networks and pools of floating IP addresses."""

import argparse
from typing import Any

from nova import context, exception
from nova.cmd.manage import common
from nova.conductor.endpoints.networks import Networks
from nova.db.networks import floating_ips
from nova.objects.base import new_uuid
from nova.objects.networks.network import DHCPV6, SLAAC, Network


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "network", "Manage the networks of Nova itself (without Neutron).")
    create = common.add_action(group, "create", _create, "Create a network.")
    create.add_argument("--name", required=True)
    create.add_argument("--cidr", required=True, help="IPv4 subnet, such as 10.11.0.0/24")
    create.add_argument("--gateway", default="", help="gateway address (default: the first address)")
    create.add_argument("--dns", action="append", default=[], help="name server; may be repeated")
    create.add_argument("--dhcp-start", help="first address for servers")
    create.add_argument("--cidr-v6", help="additional IPv6 subnet, such as fd00:11::/64")
    create.add_argument("--gateway-v6", help="IPv6 gateway address (default: the first address)")
    create.add_argument("--ipv6-mode", choices=(SLAAC, DHCPV6), default=SLAAC,
                        help="address assignment of IPv6 (default: %(default)s)")
    create.add_argument("--mtu", type=int, help="MTU (default: 1450 if --vni is set, else 1500)")
    create.add_argument("--vlan", type=int, help="VLAN of the network on --bridge-interface")
    create.add_argument("--bridge-interface", help="network interface that connects the hosts")
    create.add_argument("--vni", type=int, help="VXLAN network identifier to connect the hosts; 0: a free identifier")
    create.add_argument("--project", help="id of the owning project (default: shared by all projects)")
    create.add_argument("--if-missing", action="store_true", help="succeed if a network with this name exists")
    common.add_action(group, "list", _list, "List networks.")
    delete = common.add_action(group, "delete", _delete, "Delete a network without servers.")
    delete.add_argument("network", help="name or UUID of the network")
    group = common.add_group(commands, "floating", "Manage floating IP addresses.")
    create = common.add_action(group, "create", _create_floating, "Add the addresses of a network to a pool.")
    create.add_argument("--pool", default="nova", help="name of the pool (default: %(default)s)")
    create.add_argument("--ip_range", "--ip-range", required=True, help="IPv4 network, such as 203.0.113.16/28; "
                        "its first and last address are omitted, except for /31 and /32")
    common.add_action(group, "list", _list_floating, "List floating IP addresses.")
    delete = common.add_action(group, "delete", _delete_floating, "Remove unallocated addresses from their pools.")
    delete.add_argument("--ip_range", "--ip-range", required=True, help="IPv4 network of the addresses to remove")


def _create(arguments: argparse.Namespace) -> None:
    networks = Networks(common.core())
    if arguments.if_missing and any(
            network.label == arguments.name for network in networks.index(context.admin(), None)):
        return
    network = networks.create(context.admin(), Network(
        uuid=new_uuid(), label=arguments.name, cidr=arguments.cidr, gateway=arguments.gateway, dns=arguments.dns,
        dhcp_start=arguments.dhcp_start, mtu=arguments.mtu or (1500 if arguments.vni is None else 1450),
        vlan=arguments.vlan, bridge="", bridge_interface=arguments.bridge_interface, vni=arguments.vni,
        cidr_v6=arguments.cidr_v6, gateway_v6=arguments.gateway_v6, ipv6_mode=arguments.ipv6_mode,
        project_id=arguments.project))
    print(network.uuid)


def _list(_arguments: argparse.Namespace) -> None:
    networks = Networks(common.core()).index(context.admin(), None)
    common.show(("UUID", "Name", "CIDR", "Gateway", "IPv6 CIDR", "Bridge", "VLAN", "VNI", "Project"), (
        (network.uuid, network.label, network.cidr, network.gateway, network.cidr_v6, network.bridge, network.vlan,
         network.vni, network.project_id or "(shared)") for network in networks))


def _delete(arguments: argparse.Namespace) -> None:
    networks = Networks(common.core())
    for network in networks.index(context.admin(), None):
        if arguments.network in (network.uuid, network.label):
            networks.delete(context.admin(), network.uuid)
            return
    raise exception.NetworkNotFound(network_id=arguments.network)


def _create_floating(arguments: argparse.Namespace) -> None:
    made = common.core().db.write(
        lambda connection: floating_ips.create(connection, arguments.pool, arguments.ip_range))
    print(f"Added {made} addresses to pool {arguments.pool}")


def _list_floating(_arguments: argparse.Namespace) -> None:
    common.show(("Address", "Pool", "Project", "Server", "Fixed address"), (
        (floating.address, floating.pool, floating.project_id or "(free)", floating.instance_uuid,
         floating.fixed_address) for floating in common.core().db.read(floating_ips.index)))


def _delete_floating(arguments: argparse.Namespace) -> None:
    removed = common.core().db.write(lambda connection: floating_ips.delete(connection, arguments.ip_range))
    print(f"Removed {removed} addresses")
