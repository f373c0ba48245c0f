"""Floating addresses of the networks that are embedded in Nova: those of projects, pools, and names in the DNS."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import find, legacy
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, listing
from nova.cli.errors import NotFound, UsageError
from nova.cli.find import quoted

_NO_BULK = ("This API does not serve it: it does with [api]legacy. On a machine with Nova's configuration there is "
            "nova-manage floating.")
_ADDRESS = arg("address", metavar="ADDRESS", help="the floating address")
_COLUMNS = ("Id", "IP", "Server Id", "Fixed IP", "Pool")
_RANGE = arg("ip_range", metavar="RANGE", help="addresses, as 203.0.113.0/28")
_DOMAIN = arg("domain", metavar="DOMAIN")


def _row(one: find.Thing) -> tuple[Any, ...]:
    return (one["id"], one["ip"], one["instance_id"], one["fixed_ip"], one["pool"])


@listing()
def list_addresses(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the floating addresses of the project."""
    return _COLUMNS, [_row(one) for one in nova.get("/os-floating-ips", version=legacy.OLD)["floating_ips"]]


@listing()
def pools(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the pools of floating addresses."""
    found = nova.get("/os-floating-ip-pools", version=legacy.OLD)["floating_ip_pools"]
    return ("Name",), [(one["name"],) for one in found]


@listing(arg("pool", metavar="POOL", nargs="?", help="where from (default: any pool)"))
def create(nova: Nova, args: argparse.Namespace) -> Any:
    """Take a floating address from a pool."""
    made = nova.post("/os-floating-ips", {"pool": args.pool} if args.pool else None, version=legacy.OLD)
    return _COLUMNS, [_row(made["floating_ip"])]


@doing(_ADDRESS)
def delete(nova: Nova, args: argparse.Namespace) -> None:
    """Give a floating address back to its pool; a server that has it loses it."""
    for one in nova.get("/os-floating-ips", version=legacy.OLD)["floating_ips"]:
        if args.address in (one["ip"], one["id"]):
            nova.delete(f"/os-floating-ips/{one['id']}", version=legacy.OLD)
            return
    raise NotFound(f"The project has no floating address {args.address}. nova floating-ip-list shows its addresses.")


@doing(SERVER, _ADDRESS, arg("--fixed-address", metavar="ADDRESS", help="to which of the server's own it leads"))
def associate(nova: Nova, args: argparse.Namespace) -> None:
    """Give a server a floating address of its project."""
    wanted = {"address": args.address} | ({"fixed_address": args.fixed_address} if args.fixed_address else {})
    nova.action(find.server(nova, args.server), "addFloatingIp", wanted, version=legacy.OLD_ACTIONS)


@doing(SERVER, _ADDRESS)
def disassociate(nova: Nova, args: argparse.Namespace) -> None:
    """Take a floating address from a server; it stays the project's."""
    nova.action(find.server(nova, args.server), "removeFloatingIp", {"address": args.address},
                version=legacy.OLD_ACTIONS)


# --- pools (administrators) --------------------------------------------------------------------------
def _bulk(nova: Nova, method: str, path: str, body: Any = None) -> Any:
    return legacy.call(nova, method, f"/os-floating-ips-bulk{path}", body, _NO_BULK)


@listing(arg("--host", metavar="HOST", help="those that lead to servers of this host"))
def bulk_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the floating addresses of all pools and projects (administrators, [api]legacy)."""
    found = _bulk(nova, "GET", f"/{quoted(args.host)}" if args.host else "")["floating_ip_info"]
    columns = ("project_id", "address", "instance_uuid", "pool", "interface")
    return columns, [tuple(one[column] for column in columns) for one in found]


@doing(_RANGE, arg("--pool", metavar="POOL", help="default: the API's"), arg("--interface", metavar="INTERFACE"))
def bulk_create(nova: Nova, args: argparse.Namespace) -> None:
    """Put the addresses of a range into a pool (administrators, [api]legacy)."""
    wanted = {"ip_range": args.ip_range, "pool": args.pool, "interface": args.interface}
    _bulk(nova, "POST", "", {
        "floating_ips_bulk_create": {name: value for name, value in wanted.items() if value is not None}})


@doing(_RANGE)
def bulk_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Take the addresses of a range, which nobody has, out of their pools (administrators, [api]legacy)."""
    _bulk(nova, "PUT", "/delete", {"ip_range": args.ip_range})


# --- names in the DNS --------------------------------------------------------------------------------
_TYPE = arg("--type", metavar="TYPE", default="A", choices=("A", "a"), help="of the record: A")


def _dns(nova: Nova, method: str, path: str = "", body: Any = None) -> Any:
    return legacy.call(nova, method, f"/os-floating-ip-dns{path}", body)


def _entry(domain: str, name: str) -> str:
    return f"/{quoted(domain)}/entries/{quoted(name)}"


@listing()
def dns_domains(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the domains that the project may have names in ([api]legacy)."""
    columns = ("domain", "scope", "project", "availability_zone")
    found = _dns(nova, "GET")["domain_entries"]
    return columns, [tuple(one[column] for column in columns) for one in found]


def _put_domain(nova: Nova, domain: str, scope: str, **whose: str | None) -> None:
    given = {name: value for name, value in whose.items() if value is not None}
    _dns(nova, "PUT", f"/{quoted(domain)}", {"domain_entry": {"scope": scope} | given})


@doing(_DOMAIN, arg("--availability-zone", metavar="ZONE", help="for servers of this zone"))
def dns_create_private_domain(nova: Nova, args: argparse.Namespace) -> None:
    """Create a domain whose names are the administrators' ([api]legacy)."""
    _put_domain(nova, args.domain, "private", availability_zone=args.availability_zone)


@doing(_DOMAIN, arg("--project", metavar="PROJECT", help="for names of this project (default: of all)"))
def dns_create_public_domain(nova: Nova, args: argparse.Namespace) -> None:
    """Create a domain that projects may have names in (administrators, [api]legacy)."""
    _put_domain(nova, args.domain, "public", project=find.project(nova, args.project) if args.project else None)


@doing(_DOMAIN)
def dns_delete_domain(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a domain and all names in it (administrators, [api]legacy)."""
    _dns(nova, "DELETE", f"/{quoted(args.domain)}")


@listing(_DOMAIN, arg("--ip", metavar="ADDRESS", help="the names of this address"),
         arg("--name", metavar="NAME", help="the address of this name"))
def dns_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the names of an address, or the address of a name ([api]legacy)."""
    if bool(args.ip) == bool(args.name):
        raise UsageError("Either --ip or --name says what to look for.")
    answer = _dns(nova, "GET", _entry(args.domain, args.ip or args.name))
    found = answer["dns_entries"] if args.ip else [answer["dns_entry"]]
    columns = ("ip", "name", "domain")
    return columns, [tuple(one[column] for column in columns) for one in found]


@doing(arg("ip", metavar="ADDRESS"), arg("name", metavar="NAME"), _DOMAIN, _TYPE)
def dns_create(nova: Nova, args: argparse.Namespace) -> None:
    """Give an address a name, or have the name be that of another address ([api]legacy)."""
    _dns(nova, "PUT", _entry(args.domain, args.name), {"dns_entry": {"ip": args.ip, "dns_type": args.type}})


@doing(_DOMAIN, arg("name", metavar="NAME"))
def dns_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a name ([api]legacy)."""
    _dns(nova, "DELETE", _entry(args.domain, args.name))
