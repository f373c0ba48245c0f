"""Commands for floating addresses of embedded networks, their pools and DNS names."""

import argparse
from typing import Any

from nova.cli import find
from nova.cli.client import LEGACY, LEGACY_ACTIONS, Nova
from nova.cli.declare import SERVER, arg, doing, listing, table, without_none
from nova.cli.errors import NotFound, UsageError
from nova.cli.find import quoted

_NO_BULK = ("This API does not serve the request: it requires [api]legacy. Alternative on a machine with Nova's "
            "configuration: nova-manage floating.")
_ADDRESS = arg("address", metavar="ADDRESS", help="the floating address")
_COLUMNS = {"Id": "id", "IP": "ip", "Server Id": "instance_id", "Fixed IP": "fixed_ip", "Pool": "pool"}
_RANGE = arg("ip_range", metavar="RANGE", help="addresses, such as 203.0.113.0/28")
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
    addresses = _bulk(nova, "GET", f"/{quoted(args.host)}" if args.host else "")["floating_ip_info"]
    columns = ("project_id", "address", "instance_uuid", "pool", "interface")
    return table(dict(zip(columns, columns, strict=True)), addresses)


@doing(_RANGE, arg("--pool", metavar="POOL", help="default: the default pool of the API"),
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
    return f"{_DNS}/{quoted(domain)}/entries/{quoted(name)}"


@listing()
def dns_domains(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the DNS domains that are available to the project ([api]legacy)."""
    columns = ("domain", "scope", "project", "availability_zone")
    return table(dict(zip(columns, columns, strict=True)), nova.legacy("GET", _DNS)["domain_entries"])


def _put_domain(nova: Nova, domain: str, scope: str, **restriction: str | None) -> None:
    entry = {"scope": scope, **without_none(restriction)}
    nova.legacy("PUT", f"{_DNS}/{quoted(domain)}", {"domain_entry": entry})


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
    nova.legacy("DELETE", f"{_DNS}/{quoted(args.domain)}")


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
