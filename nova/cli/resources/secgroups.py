"""Commands for security groups of embedded networks."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import Argument, arg, flag, listing
from nova.cli.errors import NotFound
from nova.cli.legacy import OLD

_GROUP = arg("secgroup", metavar="SECGROUP", help="name or id of a security group")
_RULE = (arg("ip_proto", metavar="PROTOCOL", help="icmp, tcp or udp"),
         arg("from_port", metavar="FROM", type=int, help="first port, or the ICMP type; -1: all"),
         arg("to_port", metavar="TO", type=int, help="last port, or the ICMP code; -1: all"))
_CIDR = arg("cidr", metavar="CIDR", help="source addresses of packets")
_SOURCE = arg("source_group", metavar="SOURCE", help="security group of the source servers, by name or id")
_RULES = ("IP Protocol", "From Port", "To Port", "IP Range", "Source Group")


def _groups(nova: Nova, everywhere: bool = False) -> list[find.Thing]:
    query = {"all_tenants": "1"} if everywhere else {}
    return list(nova.get("/os-security-groups", version=OLD, **query)["security_groups"])


def _group(nova: Nova, wanted: str) -> find.Thing:
    return find.by_id_or_name("security group", wanted, _groups(nova), command="nova secgroup-list")


def _rule_row(rule: find.Thing) -> tuple[Any, ...]:
    return (rule["ip_protocol"], rule["from_port"], rule["to_port"], rule["ip_range"].get("cidr"),
            rule["group"].get("name"))


def _table(answer: Any) -> Any:
    group = answer["security_group"]
    return ("Id", "Name", "Description"), [(group["id"], group["name"], group["description"])]


@listing(flag("--all-tenants", help="list groups of all projects (administrators)"))
def list_groups(nova: Nova, args: argparse.Namespace) -> Any:
    """List security groups."""
    columns = ("Id", "Name", "Description", *(("Tenant ID",) if args.all_tenants else ()))
    return columns, [(group["id"], group["name"], group["description"], group["tenant_id"])[:len(columns)]
                     for group in _groups(nova, args.all_tenants)]


@listing(arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a security group."""
    wanted = {"name": args.name, "description": args.description}
    return _table(nova.post("/os-security-groups", {"security_group": wanted}, version=OLD))


@listing(_GROUP, arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def update(nova: Nova, args: argparse.Namespace) -> Any:
    """Update the name and description of a security group."""
    path = f"/os-security-groups/{_group(nova, args.secgroup)['id']}"
    wanted = {"name": args.name, "description": args.description}
    return _table(nova.put(path, {"security_group": wanted}, version=OLD))


@listing(_GROUP)
def delete(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a security group that no server uses."""
    group = _group(nova, args.secgroup)
    nova.delete(f"/os-security-groups/{group['id']}", version=OLD)
    return _table({"security_group": group})


# --- rules -------------------------------------------------------------------------------------------
@listing(_GROUP)
def list_rules(nova: Nova, args: argparse.Namespace) -> Any:
    """List the rules of a security group."""
    return _RULES, [_rule_row(rule) for rule in _group(nova, args.secgroup)["rules"]]


def _add(nova: Nova, args: argparse.Namespace, group: find.Thing, **source: str) -> Any:
    wanted = {"parent_group_id": group["id"], "ip_protocol": args.ip_proto, "from_port": args.from_port,
              "to_port": args.to_port, **source}
    made = nova.post("/os-security-group-rules", {"security_group_rule": wanted}, version=OLD)
    return _RULES, [_rule_row(made["security_group_rule"])]


def _remove(nova: Nova, args: argparse.Namespace, group: find.Thing, cidr: str | None, source: str | None) -> Any:
    """Delete the rules with exactly these values and return them as rows. Raises NotFound if none matches."""
    wanted = (args.ip_proto.lower(), args.from_port, args.to_port, cidr, source)
    matching = [rule for rule in group["rules"] if _rule_row(rule) == wanted]
    if not matching:
        raise NotFound(f"The security group {group['name']} has no such rule. "
                       "nova secgroup-list-rules shows its rules.")
    for rule in matching:
        nova.delete(f"/os-security-group-rules/{rule['id']}", version=OLD)
    return _RULES, [_rule_row(rule) for rule in matching]


def _arguments(source: Argument) -> tuple[Argument, ...]:
    return (_GROUP, *_RULE, source)


@listing(*_arguments(_CIDR))
def add_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a rule that allows packets from addresses to the servers of a security group."""
    return _add(nova, args, _group(nova, args.secgroup), cidr=args.cidr)


@listing(*_arguments(_CIDR))
def delete_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule for packets from addresses."""
    return _remove(nova, args, _group(nova, args.secgroup), args.cidr, None)


@listing(_GROUP, _SOURCE, *_RULE)
def add_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a rule that allows packets from the servers of another security group."""
    return _add(nova, args, _group(nova, args.secgroup), group_id=_group(nova, args.source_group)["id"])


@listing(_GROUP, _SOURCE, *_RULE)
def delete_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule for packets from the servers of another security group."""
    return _remove(nova, args, _group(nova, args.secgroup), None, _group(nova, args.source_group)["name"])
