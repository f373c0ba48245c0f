"""Commands for quotas, limits and usage of projects."""

import argparse
import datetime
import sys
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import Argument, arg, doing, flag, listing, showing, without_none
from nova.cli.errors import UsageError

_RANGE = (arg("--start", metavar="DATE", help="first day, such as 2026-01-20 (default: four weeks ago)"),
          arg("--end", metavar="DATE", help="last day, such as 2026-02-20 (default: tomorrow)"))
_COLUMNS = ("Servers", "RAM MiB-Hours", "CPU Hours", "Disk GiB-Hours")
_SUMS = ("total_memory_mb_usage", "total_vcpus_usage", "total_local_gb_usage")
# Quotas in the order of the output; the microversion determines which of them the API returns.
_QUOTAS = ("instances", "cores", "ram", "floating_ips", "fixed_ips", "metadata_items", "injected_files",
           "injected_file_content_bytes", "injected_file_path_bytes", "key_pairs", "security_groups",
           "security_group_rules", "server_groups", "server_group_members")
_TENANT = arg("--tenant", metavar="PROJECT", help="name or id of the project (default: your own)")
_USER = arg("--user", metavar="USER", help="id of a user: the quotas of this user in the project")
_CLASS = arg("class_name", metavar="CLASS", help='name of the class; "default" has the default quotas of all projects')
_LIMITS: tuple[Argument, ...] = tuple(
    arg(f"--{name.replace('_', '-')}", metavar="N", type=int, help="new limit; -1: unlimited") for name in _QUOTAS)


def _range(args: argparse.Namespace) -> dict[str, str]:
    today = datetime.datetime.now(datetime.UTC).date()
    start = _date(args.start, today - datetime.timedelta(weeks=4))
    end = _date(args.end, today + datetime.timedelta(days=1))
    print(f"Usage from {start} to {end}:", file=sys.stderr)
    return {"start": f"{start}T00:00:00", "end": f"{end}T00:00:00"}


def _date(text: str | None, default: datetime.date) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text) if text else default
    except ValueError:
        raise UsageError(f"{text} is not a date such as 2026-01-20") from None


def _row(usages: list[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return the table row of a project: the sums over the pages of its usage."""
    return (sum(len(usage.get("server_usages", ())) for usage in usages),
            *(round(sum(usage.get(name, 0.0) for usage in usages), 2) for name in _SUMS))


def _pages(nova: Nova, path: str, key: str, last: Any, query: dict[str, Any]) -> Any:
    """Yield the documents of all pages; ``last`` returns the marker of a page, or None if the page is empty."""
    while True:
        answer = nova.get(path, **query)
        yield answer[key]
        marker = last(answer[key])
        if nova.version < 40 or marker is None or f"{key}_links" not in answer:
            return
        query = {**query, "marker": marker}


@listing(*_RANGE, _TENANT)
def usage(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the usage of a project."""
    def last(page: Mapping[str, Any]) -> Any:
        return page["server_usages"][-1]["instance_id"] if page.get("server_usages") else None

    path = f"/os-simple-tenant-usage/{find.project(nova, args.tenant)}"
    pages = list(_pages(nova, path, "tenant_usage", last, _range(args)))
    return _COLUMNS, [_row(pages)] if any(pages) else []


@listing(*_RANGE)
def usage_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the usage of all projects (administrators)."""
    def last(entries: list[Mapping[str, Any]]) -> Any:
        return entries[-1]["server_usages"][-1]["instance_id"] if entries else None

    projects: dict[str, list[Mapping[str, Any]]] = {}
    for page in _pages(nova, "/os-simple-tenant-usage", "tenant_usages", last, _range(args) | {"detailed": "1"}):
        for project_usage in page:
            projects.setdefault(project_usage["tenant_id"], []).append(project_usage)
    return ("Tenant ID", *_COLUMNS), [(project, *_row(projects[project])) for project in sorted(projects)]


@showing(arg("--before", metavar="TIME", help="newest audit before this time (UTC), such as 2026-08-27 09:49:58"))
def instance_usage_audit_log(nova: Nova, args: argparse.Namespace) -> Any:
    """Show which hosts have completed their usage audit (administrators)."""
    path = "/os-instance_usage_audit_log" + (f"/{find.quoted(args.before)}" if args.before else "")
    key = "instance_usage_audit_log" + ("" if args.before else "s")
    return dict(sorted(nova.get(path)[key].items()))


def _quotas(quota: Mapping[str, Any]) -> Any:
    return ("Quota", "Limit"), [(name, quota[name]) for name in _QUOTAS if name in quota]


@listing(_TENANT, _USER, flag("--detail", help="also show usage and reservations"))
def quota_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the quotas of a project."""
    path = f"/os-quota-sets/{find.project(nova, args.tenant)}{'/detail' if args.detail else ''}"
    return _quotas(nova.get(path, user_id=args.user)["quota_set"])


@listing(_TENANT)
def quota_defaults(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the default quotas of projects."""
    return _quotas(nova.get(f"/os-quota-sets/{find.project(nova, args.tenant)}/defaults")["quota_set"])


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    changes = without_none({name: getattr(args, name) for name in _QUOTAS})
    if not changes:
        raise UsageError("Nothing to change: specify a quota, such as --instances 20")
    return changes


@doing(arg("tenant", metavar="PROJECT"), _USER, *_LIMITS, flag("--force", help="allow limits below the current usage"))
def quota_update(nova: Nova, args: argparse.Namespace) -> None:
    """Update the quotas of a project (administrators)."""
    changes = _changes(args) | ({"force": True} if args.force else {})
    path = f"/os-quota-sets/{find.project(nova, args.tenant)}"
    nova.call("PUT", path, {"quota_set": changes}, user_id=args.user)


@doing(arg("--tenant", metavar="PROJECT", required=True), _USER)
def quota_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete the quotas of a project, so that the defaults apply (administrators)."""
    nova.delete(f"/os-quota-sets/{find.project(nova, args.tenant)}", user_id=args.user)


@listing(_CLASS)
def quota_class_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the quotas of a quota class (administrators)."""
    return _quotas(nova.get(f"/os-quota-class-sets/{find.quoted(args.class_name)}")["quota_class_set"])


@doing(_CLASS, *_LIMITS)
def quota_class_update(nova: Nova, args: argparse.Namespace) -> None:
    """Update the quotas of a quota class (administrators)."""
    nova.put(f"/os-quota-class-sets/{find.quoted(args.class_name)}", {"quota_class_set": _changes(args)})


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
