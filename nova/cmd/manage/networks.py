"""nova-manage network: the embedded networks."""

from __future__ import annotations

import argparse
from typing import Any

from nova import context, exception
from nova.cmd.manage import common
from nova.conductor.endpoints.networks import Networks
from nova.objects.base import new_uuid
from nova.objects.network import DHCPV6, SLAAC, Network


def add_commands(commands: Any) -> None:
    group = commands.add_parser("network", help="embedded networks").add_subparsers(required=True, metavar="ACTION")
    create = group.add_parser("create", help="make a network")
    create.add_argument("--name", required=True)
    create.add_argument("--cidr", required=True, help="the IPv4 subnet, e.g. 10.11.0.0/24")
    create.add_argument("--gateway", default="", help="default: the first address")
    create.add_argument("--dns", action="append", default=[], help="a name server; may be given several times")
    create.add_argument("--dhcp-start", help="the first address that is given out")
    create.add_argument("--cidr-v6", help="an IPv6 subnet beside it, e.g. fd00:11::/64")
    create.add_argument("--gateway-v6", help="default: the first address")
    create.add_argument("--ipv6-mode", choices=(SLAAC, DHCPV6), default=SLAAC,
                        help="how guests get their IPv6 address; default: %(default)s")
    create.add_argument("--mtu", type=int, help="default: 1500, and 1450 with --vni")
    create.add_argument("--vlan", type=int, help="the VLAN on --bridge-interface that carries the network")
    create.add_argument("--bridge-interface", help="the interface that connects the hosts")
    create.add_argument("--vni", type=int, help="connect the hosts by VXLAN with this number; 0: one that is free")
    create.add_argument("--project", help="the project that owns it; default: shared by all")
    create.add_argument("--if-missing", action="store_true", help="fine if a network of this name exists")
    create.set_defaults(run=_create)
    group.add_parser("list", help="list the networks").set_defaults(run=_list)
    delete = group.add_parser("delete", help="delete a network without servers")
    delete.add_argument("network", help="its name or uuid")
    delete.set_defaults(run=_delete)


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
    found = Networks(common.core()).index(context.admin(), None)
    common.show(("UUID", "Name", "CIDR", "Gateway", "IPv6 CIDR", "Bridge", "VLAN", "VNI", "Project"), (
        (network.uuid, network.label, network.cidr, network.gateway, network.cidr_v6, network.bridge, network.vlan,
         network.vni, network.project_id or "(shared)") for network in found))


def _delete(arguments: argparse.Namespace) -> None:
    networks = Networks(common.core())
    for network in networks.index(context.admin(), None):
        if arguments.network in (network.uuid, network.label):
            networks.delete(context.admin(), network.uuid)
            return
    raise exception.NetworkNotFound(network_id=arguments.network)
