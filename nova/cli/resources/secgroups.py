"""Security groups of the networks that are embedded in Nova: what packets reach servers."""

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
         arg("from_port", metavar="FROM", type=int, help="first port; of icmp its type, -1 for all"),
         arg("to_port", metavar="TO", type=int, help="last port; of icmp its code, -1 for all"))
_CIDR = arg("cidr", metavar="CIDR", help="where packets come from")
_SOURCE = arg("source_group", metavar="SOURCE", help="whose servers packets come from")
_RULES = ("IP Protocol", "From Port", "To Port", "IP Range", "Source Group")


def _all(nova: Nova, everywhere: bool = False) -> list[find.Thing]:
    query = {"all_tenants": "1"} if everywhere else {}
    return list(nova.get("/os-security-groups", version=OLD, **query)["security_groups"])


def _group(nova: Nova, wanted: str) -> find.Thing:
    return find.one_of("security group", wanted, _all(nova), command="nova secgroup-list")


def _rule_row(rule: find.Thing) -> tuple[Any, ...]:
    return (rule["ip_protocol"], rule["from_port"], rule["to_port"], rule["ip_range"].get("cidr"),
            rule["group"].get("name"))


def _shown(made: Any) -> Any:
    one = made["security_group"]
    return ("Id", "Name", "Description"), [(one["id"], one["name"], one["description"])]


@listing(flag("--all-tenants", help="of all projects (administrators)"))
def list_groups(nova: Nova, args: argparse.Namespace) -> Any:
    """List security groups."""
    columns = ("Id", "Name", "Description", *(("Tenant ID",) if args.all_tenants else ()))
    return columns, [(one["id"], one["name"], one["description"], one["tenant_id"])[:len(columns)]
                     for one in _all(nova, args.all_tenants)]


@listing(arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a security group."""
    wanted = {"name": args.name, "description": args.description}
    return _shown(nova.post("/os-security-groups", {"security_group": wanted}, version=OLD))


@listing(_GROUP, arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def update(nova: Nova, args: argparse.Namespace) -> Any:
    """Rename a security group and describe it anew."""
    path = f"/os-security-groups/{_group(nova, args.secgroup)['id']}"
    wanted = {"name": args.name, "description": args.description}
    return _shown(nova.put(path, {"security_group": wanted}, version=OLD))


@listing(_GROUP)
def delete(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a security group that no server is in."""
    group = _group(nova, args.secgroup)
    nova.delete(f"/os-security-groups/{group['id']}", version=OLD)
    return _shown({"security_group": group})


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
    """The rules that say just this. Raises NotFound if none does."""
    wanted = (args.ip_proto.lower(), args.from_port, args.to_port, cidr, source)
    found = [rule for rule in group["rules"] if _rule_row(rule) == wanted]
    if not found:
        raise NotFound(f"The security group {group['name']} has no such rule. "
                       "nova secgroup-list-rules shows what it has.")
    for rule in found:
        nova.delete(f"/os-security-group-rules/{rule['id']}", version=OLD)
    return _RULES, [_rule_row(rule) for rule in found]


def _arguments(source: Argument) -> tuple[Argument, ...]:
    return (_GROUP, *_RULE, source)


@listing(*_arguments(_CIDR))
def add_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Let packets from these addresses reach the servers of a security group."""
    return _add(nova, args, _group(nova, args.secgroup), cidr=args.cidr)


@listing(*_arguments(_CIDR))
def delete_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule about packets from these addresses."""
    return _remove(nova, args, _group(nova, args.secgroup), args.cidr, None)


@listing(_GROUP, _SOURCE, *_RULE)
def add_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Let packets from the servers of a group reach the servers of a security group."""
    return _add(nova, args, _group(nova, args.secgroup), group_id=_group(nova, args.source_group)["id"])


@listing(_GROUP, _SOURCE, *_RULE)
def delete_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule about packets from the servers of a group."""
    return _remove(nova, args, _group(nova, args.secgroup), None, _group(nova, args.source_group)["name"])
