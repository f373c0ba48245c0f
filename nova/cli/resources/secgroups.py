"""Commands for security groups of embedded networks."""

import argparse
from typing import Any

from nova.cli import find
from nova.cli.client import LEGACY, Nova
from nova.cli.declare import arg, flag, listing, table
from nova.cli.errors import NotFound

_GROUP = arg("secgroup", metavar="SECGROUP", help="name or id of a security group")
_RULE = (arg("ip_proto", metavar="PROTOCOL", help="icmp, tcp or udp"),
         arg("from_port", metavar="FROM", type=int, help="first port, or the ICMP type; -1: all"),
         arg("to_port", metavar="TO", type=int, help="last port, or the ICMP code; -1: all"))
_CIDR = arg("cidr", metavar="CIDR", help="source addresses of packets")
_SOURCE = arg("source_group", metavar="SOURCE", help="security group of the source servers, by name or id")
_COLUMNS = {"Id": "id", "Name": "name", "Description": "description"}
_RULES = ("IP Protocol", "From Port", "To Port", "IP Range", "Source Group")


def _groups(nova: Nova, everywhere: bool = False) -> list[find.Thing]:
    query = {"all_tenants": "1"} if everywhere else {}
    return list(nova.get("/os-security-groups", version=LEGACY, **query)["security_groups"])


def _group(nova: Nova, wanted: str) -> find.Thing:
    return find.by_id_or_name("security group", wanted, _groups(nova), command="nova secgroup-list")


def _rule_row(rule: find.Thing) -> tuple[Any, ...]:
    return (rule["ip_protocol"], rule["from_port"], rule["to_port"], rule["ip_range"].get("cidr"),
            rule["group"].get("name"))


@listing(flag("--all-tenants", help="list groups of all projects (administrators)"))
def secgroup_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List security groups."""
    columns = _COLUMNS | ({"Tenant ID": "tenant_id"} if args.all_tenants else {})
    return table(columns, _groups(nova, args.all_tenants))


@listing(arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def secgroup_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a security group."""
    wanted = {"name": args.name, "description": args.description}
    made = nova.post("/os-security-groups", {"security_group": wanted}, version=LEGACY)
    return table(_COLUMNS, [made["security_group"]])


@listing(_GROUP, arg("name", metavar="NAME"), arg("description", metavar="DESCRIPTION"))
def secgroup_update(nova: Nova, args: argparse.Namespace) -> Any:
    """Update the name and description of a security group."""
    path = f"/os-security-groups/{_group(nova, args.secgroup)['id']}"
    wanted = {"name": args.name, "description": args.description}
    return table(_COLUMNS, [nova.put(path, {"security_group": wanted}, version=LEGACY)["security_group"]])


@listing(_GROUP)
def secgroup_delete(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a security group that no server uses."""
    group = _group(nova, args.secgroup)
    nova.delete(f"/os-security-groups/{group['id']}", version=LEGACY)
    return table(_COLUMNS, [group])


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
    """Add a rule that allows packets from addresses to the servers of a security group."""
    return _add(nova, args, _group(nova, args.secgroup), cidr=args.cidr)


@listing(_GROUP, *_RULE, _CIDR)
def secgroup_delete_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule for packets from addresses."""
    return _remove(nova, args, _group(nova, args.secgroup), args.cidr, None)


@listing(_GROUP, _SOURCE, *_RULE)
def secgroup_add_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a rule that allows packets from the servers of another security group."""
    return _add(nova, args, _group(nova, args.secgroup), group_id=_group(nova, args.source_group)["id"])


@listing(_GROUP, _SOURCE, *_RULE)
def secgroup_delete_group_rule(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a rule for packets from the servers of another security group."""
    return _remove(nova, args, _group(nova, args.secgroup), None, _group(nova, args.source_group)["name"])
