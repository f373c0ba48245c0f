"""Commands for quotas and limits."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import Argument, arg, doing, flag, listing
from nova.cli.errors import UsageError

# Resources in the order of the output; which ones the API returns depends on the microversion.
_RESOURCES = ("instances", "cores", "ram", "floating_ips", "fixed_ips", "metadata_items", "injected_files",
              "injected_file_content_bytes", "injected_file_path_bytes", "key_pairs", "security_groups",
              "security_group_rules", "server_groups", "server_group_members")
_TENANT = arg("--tenant", metavar="PROJECT", help="name or id of the project (default: your own)")
_USER = arg("--user", metavar="USER", help="id of a user of the project")
_LIMITS: tuple[Argument, ...] = tuple(
    arg(f"--{name.replace('_', '-')}", metavar="N", type=int, help="-1: unlimited") for name in _RESOURCES)
_CHANGED = ("Quota", "Limit")


def _table(quota: Mapping[str, Any]) -> Any:
    return _CHANGED, [(name, quota[name]) for name in _RESOURCES if name in quota]


@listing(_TENANT, _USER, flag("--detail", help="also show usage and reservations"))
def show_quota(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the quotas of a project."""
    path = f"/os-quota-sets/{find.project(nova, args.tenant)}{'/detail' if args.detail else ''}"
    return _table(nova.get(path, user_id=args.user)["quota_set"])


@listing(_TENANT)
def defaults(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the default quotas of projects."""
    return _table(nova.get(f"/os-quota-sets/{find.project(nova, args.tenant)}/defaults")["quota_set"])


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    changes = {name: getattr(args, name) for name in _RESOURCES if getattr(args, name) is not None}
    if not changes:
        raise UsageError("Nothing to change: specify a quota, such as --instances 20")
    return changes


@doing(arg("tenant", metavar="PROJECT"), _USER, *_LIMITS, flag("--force", help="allow limits below the current usage"))
def update(nova: Nova, args: argparse.Namespace) -> None:
    """Update the quotas of a project (administrators)."""
    changes = _changes(args) | ({"force": True} if args.force else {})
    path = f"/os-quota-sets/{find.project(nova, args.tenant)}"
    nova.call("PUT", path, {"quota_set": changes}, user_id=args.user)


@doing(arg("--tenant", metavar="PROJECT", required=True), _USER)
def delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete the quotas of a project, so that the defaults apply (administrators)."""
    nova.delete(f"/os-quota-sets/{find.project(nova, args.tenant)}", user_id=args.user)


_CLASS = arg("class_name", metavar="CLASS", help="class name; default: the defaults of all projects")


@listing(_CLASS)
def show_class(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the quotas of a quota class (administrators)."""
    return _table(nova.get(f"/os-quota-class-sets/{find.quoted(args.class_name)}")["quota_class_set"])


@doing(_CLASS, *_LIMITS)
def update_class(nova: Nova, args: argparse.Namespace) -> None:
    """Update the quotas of a quota class (administrators)."""
    nova.put(f"/os-quota-class-sets/{find.quoted(args.class_name)}", {"quota_class_set": _changes(args)})


# --- limits ------------------------------------------------------------------------------------------
_NAMES = {"Cores": ("totalCoresUsed", "maxTotalCores"), "FloatingIPs": ("totalFloatingIpsUsed", "maxTotalFloatingIps"),
          "ImageMeta": (None, "maxImageMeta"), "Instances": ("totalInstancesUsed", "maxTotalInstances"),
          "Keypairs": (None, "maxTotalKeypairs"), "Personality": (None, "maxPersonality"),
          "Personality Size": (None, "maxPersonalitySize"), "RAM": ("totalRAMUsed", "maxTotalRAMSize"),
          "SecurityGroupRules": (None, "maxSecurityGroupRules"),
          "SecurityGroups": ("totalSecurityGroupsUsed", "maxSecurityGroups"), "Server Meta": (None, "maxServerMeta"),
          "ServerGroupMembers": (None, "maxServerGroupMembers"),
          "ServerGroups": ("totalServerGroupsUsed", "maxServerGroups")}


@listing(arg("--tenant", metavar="PROJECT", help="name or id of the project (administrators)"),
         flag("--reserved", help="include reservations"))
def limits(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the usage and limits of a project."""
    tenant = find.project(nova, args.tenant) if args.tenant else None
    absolute = nova.get("/limits", tenant_id=tenant, reserved=1 if args.reserved else None)["limits"]["absolute"]
    return ("Name", "Used", "Max"), [(name, absolute.get(used), absolute[maximum])
                                     for name, (used, maximum) in _NAMES.items() if maximum in absolute]
