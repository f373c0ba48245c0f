"""Networks, and the interfaces of servers."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import find, legacy
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing
from nova.cli.errors import CommandError

_EMBEDDED = ("This cloud has no network service: its networks are embedded in Nova, and administrators manage them "
             "with nova-manage network {} on a machine with Nova's configuration.")


@listing()
def list_networks(nova: Nova, _args: argparse.Namespace) -> Any:
    """List networks."""
    found = sorted(find.networks(nova), key=lambda network: str(network["name"]))
    if not nova.has("network"):
        return ("ID", "Label", "Cidr"), [(one["id"], one["name"], one.get("cidr")) for one in found]
    cidrs = {one["id"]: one["cidr"] for one in nova.ask("network", "GET", "/subnets")["subnets"]}
    return ("ID", "Label", "Cidr"), [
        (one["id"], one["name"], ", ".join(cidrs[subnet] for subnet in one["subnets"] if subnet in cidrs)) for one
        in found]


@showing(arg("network", metavar="NETWORK", help="name or id of a network"))
def show_network(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a network."""
    return dict(sorted(find.network(nova, args.network).items()))


@showing(arg("name", metavar="NAME"), arg("--fixed-range-v4", "--cidr", dest="cidr", metavar="CIDR",
                                          help="addresses of its servers; without it there is no subnet"),
         arg("--gateway", metavar="ADDRESS", help="default: the first address"),
         arg("--dns1", metavar="ADDRESS"), arg("--dns2", metavar="ADDRESS"),
         flag("--share", help="for all projects (administrators)"))
def create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a network with one subnet: in the network service or, without one, in Nova ([api]legacy)."""
    if not nova.has("network"):
        return _create_embedded(nova, args)
    wanted = {"name": args.name} | ({"shared": True} if args.share else {})
    network = nova.ask("network", "POST", "/networks", {"network": wanted})["network"]
    if not args.cidr:
        return dict(sorted(network.items()))
    subnet = {"network_id": network["id"], "cidr": args.cidr, "ip_version": 6 if ":" in args.cidr else 4,
              "dns_nameservers": [one for one in (args.dns1, args.dns2) if one]}
    if args.gateway:
        subnet["gateway_ip"] = args.gateway
    try:
        made = nova.ask("network", "POST", "/subnets", {"subnet": subnet})["subnet"]
    except CommandError:
        nova.ask("network", "DELETE", f"/networks/{network['id']}")
        raise
    return dict(sorted({**network, "subnets": [made["id"]], "cidr": made["cidr"]}.items()))


@doing(arg("network", metavar="NETWORK", help="name or id of a network"))
def delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a network of the network service or, without one, of Nova ([api]legacy)."""
    if nova.has("network"):
        nova.ask("network", "DELETE", f"/networks/{find.network(nova, args.network)['id']}")
    else:
        legacy.call(nova, "DELETE", f"/os-networks/{find.network(nova, args.network)['id']}",
                    otherwise=_EMBEDDED.format("delete"))


def _create_embedded(nova: Nova, args: argparse.Namespace) -> Any:
    wanted = {"label": args.name, "cidr": args.cidr, "gateway": args.gateway, "dns1": args.dns1, "dns2": args.dns2,
              "project_id": None if args.share else nova.project_id}
    made = legacy.call(nova, "POST", "/os-networks",
                       {"network": {name: value for name, value in wanted.items() if value is not None}},
                       _EMBEDDED.format("create"))
    return dict(sorted(made["network"].items()))


# --- interfaces --------------------------------------------------------------------------------------
@listing(SERVER)
def interface_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the interfaces of a server."""
    found = nova.get(f"/servers/{find.server(nova, args.server)['id']}/os-interface")["interfaceAttachments"]
    columns = ("Port State", "Port ID", "Net ID", "IP addresses", "MAC Addr", *(("Tag",) if nova.version >= 70 else ()))
    return columns, [(one["port_state"], one["port_id"], one["net_id"],
                      ",".join(fixed["ip_address"] for fixed in one["fixed_ips"] or ()), one["mac_addr"],
                      one.get("tag"))[:len(columns)] for one in found]


@showing(SERVER, arg("--port-id", metavar="ID", help="this port of the network service"),
         arg("--net-id", metavar="NETWORK", help="a new one in this network, by name or id"),
         arg("--fixed-ip", metavar="ADDRESS", help="with this address"), arg("--tag", metavar="TAG", since=49))
def attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Give a server another interface."""
    network = args.net_id if args.net_id is None or find.is_id(args.net_id) else find.network(nova, args.net_id)["id"]
    values = {"port_id": args.port_id, "net_id": network, "tag": args.tag,
              "fixed_ips": [{"ip_address": args.fixed_ip}] if args.fixed_ip else None}
    wanted = {name: value for name, value in values.items() if value is not None}
    path = f"/servers/{find.server(nova, args.server)['id']}/os-interface"
    return dict(sorted(nova.post(path, {"interfaceAttachment": wanted})["interfaceAttachment"].items()))


@doing(SERVER, arg("port_id", metavar="PORT", help="the port's id (nova interface-list)"))
def detach(nova: Nova, args: argparse.Namespace) -> None:
    """Take an interface from a server."""
    nova.delete(f"/servers/{find.server(nova, args.server)['id']}/os-interface/{args.port_id}")


@doing(SERVER, arg("network", metavar="NETWORK", help="name or id of a network"))
def add_fixed_ip(nova: Nova, args: argparse.Namespace) -> None:
    """Give a server one address more, of a network."""
    network = args.network if find.is_id(args.network) else find.network(nova, args.network)["id"]
    nova.action(find.server(nova, args.server), "addFixedIp", {"networkId": network}, version=legacy.OLD_ACTIONS)


@doing(SERVER, arg("address", metavar="ADDRESS", help="one of the server's"))
def remove_fixed_ip(nova: Nova, args: argparse.Namespace) -> None:
    """Take an address from a server."""
    nova.action(find.server(nova, args.server), "removeFixedIp", {"address": args.address},
                version=legacy.OLD_ACTIONS)


@listing(SERVER)
def secgroups(nova: Nova, args: argparse.Namespace) -> Any:
    """List the security groups of a server."""
    found = nova.get(f"/servers/{find.server(nova, args.server)['id']}/os-security-groups")["security_groups"]
    return ("Id", "Name", "Description"), [(one["id"], one["name"], one["description"]) for one in found]
