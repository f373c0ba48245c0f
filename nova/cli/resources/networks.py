"""Commands for networks and interfaces of servers."""

import argparse
from typing import Any

from nova.cli import find
from nova.cli.client import LEGACY_ACTIONS, Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing, table, without_none
from nova.cli.errors import CommandError

_EMBEDDED = ("This cloud has no network service: its networks are embedded in Nova, and administrators manage them "
             "with nova-manage network {} on a machine with Nova's configuration.")


@listing()
def network_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List networks."""
    networks = sorted(find.networks(nova), key=lambda network: str(network["name"]))
    if not nova.has("network"):
        return ("ID", "Label", "Cidr"), [(network["id"], network["name"], network.get("cidr")) for network in networks]
    cidrs = {subnet["id"]: subnet["cidr"] for subnet in nova.ask("network", "GET", "/subnets")["subnets"]}
    return ("ID", "Label", "Cidr"), [
        (network["id"], network["name"], ", ".join(cidrs[subnet] for subnet in network["subnets"] if subnet in cidrs))
        for network in networks]


@showing(arg("network", metavar="NETWORK", help="name or id of a network"))
def network_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a network."""
    return dict(sorted(find.network(nova, args.network).items()))


@showing(arg("name", metavar="NAME"), arg("--fixed-range-v4", "--cidr", dest="cidr", metavar="CIDR",
                                          help="addresses of the subnet; default: no subnet"),
         arg("--gateway", metavar="ADDRESS", help="default: the first address"),
         arg("--dns1", metavar="ADDRESS"), arg("--dns2", metavar="ADDRESS"),
         flag("--share", help="share the network with all projects (administrators)"))
def network_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a network with a subnet: in the network service or, if there is none, in Nova ([api]legacy)."""
    if not nova.has("network"):
        made = nova.legacy("POST", "/os-networks", {"network": without_none({
            "label": args.name, "cidr": args.cidr, "gateway": args.gateway, "dns1": args.dns1, "dns2": args.dns2,
            "project_id": None if args.share else nova.project_id})}, _EMBEDDED.format("create"))
        return dict(sorted(made["network"].items()))
    wanted = {"name": args.name} | ({"shared": True} if args.share else {})
    network = nova.ask("network", "POST", "/networks", {"network": wanted})["network"]
    if not args.cidr:
        return dict(sorted(network.items()))
    subnet = {"network_id": network["id"], "cidr": args.cidr, "ip_version": 6 if ":" in args.cidr else 4,
              "dns_nameservers": [address for address in (args.dns1, args.dns2) if address]}
    if args.gateway:
        subnet["gateway_ip"] = args.gateway
    try:
        made = nova.ask("network", "POST", "/subnets", {"subnet": subnet})["subnet"]
    except CommandError:
        nova.ask("network", "DELETE", f"/networks/{network['id']}")
        raise
    return dict(sorted({**network, "subnets": [made["id"]], "cidr": made["cidr"]}.items()))


@doing(arg("network", metavar="NETWORK", help="name or id of a network"))
def network_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a network of the network service or, if there is none, of Nova ([api]legacy)."""
    if nova.has("network"):
        nova.ask("network", "DELETE", f"/networks/{find.network(nova, args.network)['id']}")
    else:
        nova.legacy("DELETE", f"/os-networks/{find.network(nova, args.network)['id']}",
                    otherwise=_EMBEDDED.format("delete"))


@listing(SERVER)
def interface_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the interfaces of a server."""
    interfaces = nova.get(f"{find.server_path(nova, args.server)}/os-interface")["interfaceAttachments"]
    columns = ("Port State", "Port ID", "Net ID", "IP addresses", "MAC Addr", *(("Tag",) if nova.version >= 70 else ()))
    return columns, [(interface["port_state"], interface["port_id"], interface["net_id"],
                      ",".join(fixed["ip_address"] for fixed in interface["fixed_ips"] or ()), interface["mac_addr"],
                      interface.get("tag"))[:len(columns)] for interface in interfaces]


@showing(SERVER, arg("--port-id", metavar="ID", help="attach this port of the network service"),
         arg("--net-id", metavar="NETWORK", help="create a port in this network, by name or id"),
         arg("--fixed-ip", metavar="ADDRESS", help="IP address of the new port"), arg("--tag", metavar="TAG", since=49))
def interface_attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Attach an interface to a server."""
    network = args.net_id if args.net_id is None or find.is_id(args.net_id) else find.network(nova, args.net_id)["id"]
    wanted = without_none({"port_id": args.port_id, "net_id": network, "tag": args.tag,
                           "fixed_ips": [{"ip_address": args.fixed_ip}] if args.fixed_ip else None})
    made = nova.post(f"{find.server_path(nova, args.server)}/os-interface", {"interfaceAttachment": wanted})
    return dict(sorted(made["interfaceAttachment"].items()))


@doing(SERVER, arg("port_id", metavar="PORT", help="the port's id (nova interface-list)"))
def interface_detach(nova: Nova, args: argparse.Namespace) -> None:
    """Detach an interface from a server."""
    nova.delete(f"{find.server_path(nova, args.server)}/os-interface/{args.port_id}")


@doing(SERVER, arg("network", metavar="NETWORK", help="name or id of a network"))
def add_fixed_ip(nova: Nova, args: argparse.Namespace) -> None:
    """Add an address of a network to a server."""
    network = args.network if find.is_id(args.network) else find.network(nova, args.network)["id"]
    nova.action(find.server(nova, args.server), "addFixedIp", {"networkId": network}, version=LEGACY_ACTIONS)


@doing(SERVER, arg("address", metavar="ADDRESS", help="fixed address of the server"))
def remove_fixed_ip(nova: Nova, args: argparse.Namespace) -> None:
    """Remove a fixed address from a server."""
    nova.action(find.server(nova, args.server), "removeFixedIp", {"address": args.address}, version=LEGACY_ACTIONS)


@listing(SERVER)
def list_secgroup(nova: Nova, args: argparse.Namespace) -> Any:
    """List the security groups of a server."""
    groups = nova.get(f"{find.server_path(nova, args.server)}/os-security-groups")["security_groups"]
    return table({"Id": "id", "Name": "name", "Description": "description"}, groups)
