"""Commands that report the usage of projects."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import arg, listing, showing
from nova.cli.errors import UsageError

_RANGE = (arg("--start", metavar="DATE", help="such as 2026-01-20 (default: four weeks ago)"),
          arg("--end", metavar="DATE", help="such as 2026-02-20 (default: tomorrow)"))
_COLUMNS = ("Servers", "RAM MiB-Hours", "CPU Hours", "Disk GiB-Hours")
_SUMS = ("total_memory_mb_usage", "total_vcpus_usage", "total_local_gb_usage")


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
    """Return the row of a project: the sums over its pages."""
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


@listing(*_RANGE, arg("--tenant", metavar="PROJECT", help="name or id of the project (default: your own)"))
def usage(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the usage of a project."""
    def last(page: Mapping[str, Any]) -> Any:
        return page["server_usages"][-1]["instance_id"] if page.get("server_usages") else None

    path = f"/os-simple-tenant-usage/{find.project(nova, args.tenant)}"
    pages = list(_pages(nova, path, "tenant_usage", last, _range(args)))
    return _COLUMNS, [_row(pages)] if any(pages) else []


@listing(*_RANGE)
def list_usage(nova: Nova, args: argparse.Namespace) -> Any:
    """List the usage of all projects (administrators)."""
    def last(entries: list[Mapping[str, Any]]) -> Any:
        return entries[-1]["server_usages"][-1]["instance_id"] if entries else None

    projects: dict[str, list[Mapping[str, Any]]] = {}
    for page in _pages(nova, "/os-simple-tenant-usage", "tenant_usages", last, _range(args) | {"detailed": "1"}):
        for project_usage in page:
            projects.setdefault(project_usage["tenant_id"], []).append(project_usage)
    return ("Tenant ID", *_COLUMNS), [(project, *_row(projects[project])) for project in sorted(projects)]


@showing(arg("--before", metavar="TIME", help="the last audit before this time (UTC), such as 2026-08-27 09:49:58"))
def audit_log(nova: Nova, args: argparse.Namespace) -> Any:
    """Show which hosts have completed their usage audit (administrators)."""
    path = "/os-instance_usage_audit_log" + (f"/{find.quoted(args.before)}" if args.before else "")
    key = "instance_usage_audit_log" + ("" if args.before else "s")
    return dict(sorted(nova.get(path)[key].items()))
