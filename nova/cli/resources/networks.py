"""Commands for networks, interfaces of servers, floating addresses with their DNS names, and security groups."""

import argparse
from typing import Any

from nova.cli import find
from nova.cli.client import LEGACY, LEGACY_ACTIONS, Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing, table, without_none
from nova.cli.errors import CommandError, NotFound, UsageError

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
                                          help="IPv4 network of a new subnet (default: none)"),
         arg("--gateway", metavar="ADDRESS", help="address of the gateway (default: the first address)"),
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


# --- floating addresses of embedded networks ---------------------------------------------------------------
_NO_BULK = ("This API does not serve the request: it requires [api]legacy. Alternative on a machine with Nova's "
            "configuration: nova-manage floating.")
_ADDRESS = arg("address", metavar="ADDRESS", help="floating IP address")
_COLUMNS = {"Id": "id", "IP": "ip", "Server Id": "instance_id", "Fixed IP": "fixed_ip", "Pool": "pool"}
_RANGE = arg("ip_range", metavar="RANGE", help="network of floating IPs, such as 203.0.113.0/28")
_DOMAIN = arg("domain", metavar="DOMAIN")


@listing()
def floating_ip_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the floating addresses of the project."""
    return table(_COLUMNS, nova.get("/os-floating-ips", version=LEGACY)["floating_ips"])


@listing()
def floating_ip_pool_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the pools of floating addresses."""
    return table({"Name": "name"}, nova.get("/os-floating-ip-pools", version=LEGACY)["floating_ip_pools"])


@listing(arg("pool", metavar="POOL", nargs="?", help="pool of the address (default: any pool)"))
def floating_ip_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Allocate a floating address from a pool."""
    made = nova.post("/os-floating-ips", {"pool": args.pool} if args.pool else None, version=LEGACY)
    return table(_COLUMNS, [made["floating_ip"]])


@doing(_ADDRESS)
def floating_ip_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Release a floating address to its pool; it is disassociated from its server first."""
    for address in nova.get("/os-floating-ips", version=LEGACY)["floating_ips"]:
        if args.address in (address["ip"], address["id"]):
            nova.delete(f"/os-floating-ips/{address['id']}", version=LEGACY)
            return
    raise NotFound(f"The project has no floating address {args.address}. nova floating-ip-list shows its addresses.")


@doing(SERVER, _ADDRESS, arg("--fixed-address", metavar="ADDRESS", help="fixed address of the server"))
def floating_ip_associate(nova: Nova, args: argparse.Namespace) -> None:
    """Associate a floating address of the project with a server."""
    wanted = {"address": args.address} | ({"fixed_address": args.fixed_address} if args.fixed_address else {})
    nova.action(find.server(nova, args.server), "addFloatingIp", wanted, version=LEGACY_ACTIONS)


@doing(SERVER, _ADDRESS)
def floating_ip_disassociate(nova: Nova, args: argparse.Namespace) -> None:
    """Disassociate a floating address from a server; the project keeps the address."""
    nova.action(find.server(nova, args.server), "removeFloatingIp", {"address": args.address}, version=LEGACY_ACTIONS)


def _bulk(nova: Nova, method: str, path: str, body: Any = None) -> Any:
    return nova.legacy(method, f"/os-floating-ips-bulk{path}", body, _NO_BULK)


@listing(arg("--host", metavar="HOST", help="list addresses of servers on this host"))
def floating_ip_bulk_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the floating addresses of all pools and projects (administrators, [api]legacy)."""
    addresses = _bulk(nova, "GET", f"/{find.quoted(args.host)}" if args.host else "")["floating_ip_info"]
    columns = ("project_id", "address", "instance_uuid", "pool", "interface")
    return table(dict(zip(columns, columns, strict=True)), addresses)


@doing(_RANGE, arg("--pool", metavar="POOL", help="pool of the addresses (default: the pool set in nova-api)"),
       arg("--interface", metavar="INTERFACE"))
def floating_ip_bulk_create(nova: Nova, args: argparse.Namespace) -> None:
    """Add the addresses of a range to a pool (administrators, [api]legacy)."""
    wanted = without_none({"ip_range": args.ip_range, "pool": args.pool, "interface": args.interface})
    _bulk(nova, "POST", "", {"floating_ips_bulk_create": wanted})


@doing(_RANGE)
def floating_ip_bulk_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Remove the unused addresses of a range from their pools (administrators, [api]legacy)."""
    _bulk(nova, "PUT", "/delete", {"ip_range": args.ip_range})


_DNS = "/os-floating-ip-dns"
_TYPE = arg("--type", metavar="TYPE", default="A", choices=("A", "a"), help="record type: A")


def _entry(domain: str, name: str) -> str:
    return f"{_DNS}/{find.quoted(domain)}/entries/{find.quoted(name)}"


@listing()
def dns_domains(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the DNS domains that are available to the project ([api]legacy)."""
    columns = ("domain", "scope", "project", "availability_zone")
    return table(dict(zip(columns, columns, strict=True)), nova.legacy("GET", _DNS)["domain_entries"])


def _put_domain(nova: Nova, domain: str, scope: str, **restriction: str | None) -> None:
    entry = {"scope": scope, **without_none(restriction)}
    nova.legacy("PUT", f"{_DNS}/{find.quoted(domain)}", {"domain_entry": entry})


@doing(_DOMAIN, arg("--availability-zone", metavar="ZONE", help="availability zone of the servers"))
def dns_create_private_domain(nova: Nova, args: argparse.Namespace) -> None:
    """Create a private DNS domain, managed by administrators ([api]legacy)."""
    _put_domain(nova, args.domain, "private", availability_zone=args.availability_zone)


@doing(_DOMAIN, arg("--project", metavar="PROJECT", help="project that can use the domain (default: all)"))
def dns_create_public_domain(nova: Nova, args: argparse.Namespace) -> None:
    """Create a public DNS domain for names of projects (administrators, [api]legacy)."""
    _put_domain(nova, args.domain, "public", project=find.project(nova, args.project) if args.project else None)


@doing(_DOMAIN)
def dns_delete_domain(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a DNS domain with all its names (administrators, [api]legacy)."""
    nova.legacy("DELETE", f"{_DNS}/{find.quoted(args.domain)}")


@listing(_DOMAIN, arg("--ip", metavar="ADDRESS", help="list the names of this address"),
         arg("--name", metavar="NAME", help="list the address of this name"))
def dns_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the names of an address, or the address of a name ([api]legacy)."""
    if bool(args.ip) == bool(args.name):
        raise UsageError("Specify either --ip or --name.")
    answer = nova.legacy("GET", _entry(args.domain, args.ip or args.name))
    entries = answer["dns_entries"] if args.ip else [answer["dns_entry"]]
    return table({"ip": "ip", "name": "name", "domain": "domain"}, entries)


@doing(arg("ip", metavar="ADDRESS"), arg("name", metavar="NAME"), _DOMAIN, _TYPE)
def dns_create(nova: Nova, args: argparse.Namespace) -> None:
    """Create a DNS name for an address, or assign an existing name to another address ([api]legacy)."""
    nova.legacy("PUT", _entry(args.domain, args.name), {"dns_entry": {"ip": args.ip, "dns_type": args.type}})


@doing(_DOMAIN, arg("name", metavar="NAME"))
def dns_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a DNS name ([api]legacy)."""
    nova.legacy("DELETE", _entry(args.domain, args.name))


# --- security groups of embedded networks ------------------------------------------------------------------
_GROUP = arg("secgroup", metavar="SECGROUP", help="name or id of a security group")
_RULE = (arg("ip_proto", metavar="PROTOCOL", help="icmp, tcp or udp"),
         arg("from_port", metavar="FROM", type=int, help="first port, or the ICMP type; -1: all"),
         arg("to_port", metavar="TO", type=int, help="last port, or the ICMP code; -1: all"))
_CIDR = arg("cidr", metavar="CIDR", help="network whose packets the rule permits")
_SOURCE = arg("source_group", metavar="SOURCE", help="security group of the source servers, by name or id")
_GROUP_COLUMNS = {"Id": "id", "Name": "name", "Description": "description"}
_RULES = ("IP Protocol", "From Port", "To Port", "IP Range", "Source Group")


def _groups(nova: Nova, everywhere: bool = False) -> list[find.Thing]:
    query = {"all_tenants": "1"} if everywhere else {}
    return list(nova.get("/os-security-groups", version=LEGACY, **query)["security_groups"])


def _group(nova: Nova, wanted: str) -> find.Thing:
    return find.by_id_or_name("security group", wanted, _groups(nova), command="nova secgroup-list")


def _rule_row(rule: find.Thing) -> tuple[Any, ...]:
    return (rule["ip_protocol"], rule["from_port"], rule["to_port"], rule["ip_range"].get("cidr"),
            rule["group"].get("name"))


@listing(flag("--all-tenants", help="list security groups of all projects (administrators)"))
def secgroup_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List security groups."""
    columns = _GROUP_COLUMNS | ({"Tenant ID": "tenant_id"} if args.all_tenants else {})
    return table(columns, _groups(nova, args.all_tenants))


@listing(arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def secgroup_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a security group."""
    wanted = {"name": args.name, "description": args.description}
    made = nova.post("/os-security-groups", {"security_group": wanted}, version=LEGACY)
    return table(_GROUP_COLUMNS, [made["security_group"]])


@listing(_GROUP, arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def secgroup_update(nova: Nova, args: argparse.Namespace) -> Any:
    """Update the name and description of a security group."""
    path = f"/os-security-groups/{_group(nova, args.secgroup)['id']}"
    wanted = {"name": args.name, "description": args.description}
    return table(_GROUP_COLUMNS, [nova.put(path, {"security_group": wanted}, version=LEGACY)["security_group"]])


@listing(_GROUP)
def secgroup_delete(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a security group that no server uses."""
    group = _group(nova, args.secgroup)
    nova.delete(f"/os-security-groups/{group['id']}", version=LEGACY)
    return table(_GROUP_COLUMNS, [group])


@listing(_GROUP)
def secgroup_list_rules(nova: Nova, args: argparse.Namespace) -> Any:
    """List the rules of a security group."""
    return _RULES, [_rule_row(rule) for rule in _group(nova, args.secgroup)["rules"]]


def _add(nova: Nova, args: argparse.Namespace, group: find.Thing, **source: str) -> Any:
    wanted = {"parent_group_id": group["id"], "ip_protocol": args.ip_proto, "from_port": args.from_port,
              "to_port": args.to_port, **source}
    made = nova.post("/os-security-group-rules", {"security_group_rule": wanted}, version=LEGACY)
    return _RULES, [_rule_row(made["security_group_rule"])]


def _remove(nova: Nova, args: argparse.Namespace, group: find.Thing, cidr: str | None, source: str | None) -> Any:
    """Delete the rules with exactly these values and return them as rows. Raises NotFound if none matches."""
    wanted = (args.ip_proto.lower(), args.from_port, args.to_port, cidr, source)
    matching = [rule for rule in group["rules"] if _rule_row(rule) == wanted]
    if not matching:
        raise NotFound(f"The security group {group['name']} has no such rule. "
                       "nova secgroup-list-rules shows its rules.")
    for rule in matching:
        nova.delete(f"/os-security-group-rules/{rule['id']}", version=LEGACY)
    return _RULES, [_rule_row(rule) for rule in matching]


@listing(_GROUP, *_RULE, _CIDR)
def secgroup_add_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a rule that allows packets from a network to the servers of a security group."""
    return _add(nova, args, _group(nova, args.secgroup), cidr=args.cidr)


@listing(_GROUP, *_RULE, _CIDR)
def secgroup_delete_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule that allows packets from a network."""
    return _remove(nova, args, _group(nova, args.secgroup), args.cidr, None)


@listing(_GROUP, _SOURCE, *_RULE)
def secgroup_add_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a rule that allows packets from the servers of another security group."""
    return _add(nova, args, _group(nova, args.secgroup), group_id=_group(nova, args.source_group)["id"])


@listing(_GROUP, _SOURCE, *_RULE)
def secgroup_delete_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule that allows packets from the servers of another security group."""
    return _remove(nova, args, _group(nova, args.secgroup), None, _group(nova, args.source_group)["name"])
