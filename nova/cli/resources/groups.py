"""Commands for server groups."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import arg, doing, flag, listing, pairs, table

_GROUP = arg("id", metavar="GROUP", help="name or id of a server group")
# The first minor microversion with a single policy and rules per group.
_SINGLE_POLICY = 64


def _table(nova: Nova, groups: Sequence[Mapping[str, Any]]) -> Any:
    columns = {"Id": "id", "Name": "name"}
    if nova.version >= 13:
        columns |= {"Project Id": "project_id", "User Id": "user_id"}
    columns |= {"Policy": "policy", "Rules": "rules"} if nova.version >= _SINGLE_POLICY else {"Policies": "policies"}
    columns |= {"Members": "members"} | ({} if nova.version >= _SINGLE_POLICY else {"Metadata": "metadata"})
    return table(columns, groups)


@listing(arg("--limit", metavar="N", type=int, help="maximum number of groups"),
         arg("--offset", metavar="N", type=int, help="number of groups to skip"),
         flag("--all-projects", help="list groups of all projects (administrators)"))
def server_group_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List server groups."""
    answer = nova.get("/os-server-groups", limit=args.limit, offset=args.offset, all_projects=args.all_projects or None)
    return _table(nova, answer["server_groups"])


@listing(_GROUP)
def server_group_get(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a server group."""
    return _table(nova, [find.server_group(nova, args.id)])


@listing(arg("name", metavar="NAME"),
         arg("policy", metavar="POLICY", help="policy: affinity, anti-affinity, soft-affinity or soft-anti-affinity"),
         pairs("--rule", since=_SINGLE_POLICY, help="rule of anti-affinity: max_server_per_host=N"))
def server_group_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a server group."""
    group: dict[str, Any] = {"name": args.name}
    if nova.version >= _SINGLE_POLICY:
        group["policy"] = args.policy
        if args.rule:
            group["rules"] = dict(args.rule)
    else:
        group["policies"] = [args.policy]
    return _table(nova, [nova.post("/os-server-groups", {"server_group": group})["server_group"]])


@doing(arg("ids", metavar="GROUP", nargs="+", help="names or ids of server groups"))
def server_group_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete server groups."""
    for name in args.ids:
        nova.delete(f"/os-server-groups/{find.server_group(nova, name)['id']}")
        print(f"Server group {name} has been successfully deleted.")
