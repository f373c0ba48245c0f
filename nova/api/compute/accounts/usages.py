"""os-simple-tenant-usage: usage of the servers of projects in a period; os-instance_usage_audit_log: usage audits."""

import datetime
import itertools
from collections.abc import Iterable
from typing import Any

from nova import exception
from nova.api.request import Request, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Field, Object, Out, Query, Type, View
from nova.api.validation.types import INTEGER, LIMIT, LINKS, NUMBER, OPEN, STRING, TIME, TIME_OR_NULL
from nova.conf import CONF
from nova.objects.accounts.usage import ServerUsage, audit_period
from nova.objects.base import utcnow

_PATH = "os-simple-tenant-usage"

_PERIOD: dict[str, Field | Type] = {
    "start": STRING, "end": STRING, "limit": Field(LIMIT, since=40), "marker": Field(STRING, since=40)}


class _Period:
    """The period of a usage report, from ``begin`` to ``end``; ``detailed``: list each server."""

    def __init__(self, req: Request, detailed: bool) -> None:
        self.version, self.detailed, self.now = req.version, detailed, utcnow()
        begin, end = req.arg("start"), req.arg("end")
        self.begin = _parsed(begin) if begin else self.now
        # The period is the current moment if neither start nor end is given.
        self.end = _parsed(end) if end else self.now + datetime.timedelta(microseconds=0 if begin else 1)
        if self.begin >= self.end:
            raise exception.InvalidInput("Invalid start time. The start time cannot occur after the end time.")

    def hours(self, server: ServerUsage) -> float:
        return server.hours(self.begin, self.end)

    def uptime(self, server: ServerUsage) -> int:
        """Return the seconds from the server's launch to its deletion or now, regardless of the report's period."""
        return int(((server.terminated_at or self.now) - server.launched_at).total_seconds())


def _parsed(text: str) -> datetime.datetime:
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f"):
        try:
            return datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)
        except ValueError:
            continue
    raise exception.InvalidInput("Invalid datetime string: Datetime is in invalid format")


SERVER = View([
    Out("instance_id", STRING, "uuid"), Out("name", STRING, "display_name"), Out("tenant_id", STRING, "project_id"),
    Out("flavor", STRING), Out("vcpus", INTEGER), Out("memory_mb", INTEGER), Out("local_gb", INTEGER),
    Out("hours", NUMBER, lambda server, period: period.hours(server)),
    Out("started_at", TIME, lambda server, _period: iso_precise(server.launched_at)),
    Out("ended_at", TIME_OR_NULL, lambda server, _period: iso_precise(server.terminated_at)),
    Out("state", STRING, lambda server, _period: "terminated" if server.terminated_at else server.vm_state),
    Out("uptime", INTEGER, lambda server, period: period.uptime(server))])


def _total(name: str, of: str = "") -> Out:
    """Return a field with the hours of all servers, each multiplied by the server's attribute ``of`` (e.g. vcpus)."""
    return Out(name, NUMBER, lambda usage, period: sum(
        period.hours(server) * (getattr(server, of) if of else 1) for server in usage))


# The usage of one project, from the list of its servers.
USAGE = View([
    Out("tenant_id", STRING, lambda usage, _period: usage[0].project_id),
    Out("start", TIME, lambda _usage, period: iso_precise(period.begin)),
    Out("stop", TIME, lambda _usage, period: iso_precise(period.end)),
    _total("total_hours"), _total("total_vcpus_usage", "vcpus"), _total("total_memory_mb_usage", "memory_mb"),
    _total("total_local_gb_usage", "local_gb"),
    Out("server_usages", Array(SERVER), lambda usage, period: [
        SERVER.render(server, period) for server in usage] if period.detailed else ABSENT)])


def _projects(servers: Iterable[ServerUsage], period: _Period) -> list[dict[str, Any]]:
    return [USAGE.render(list(usage), period) for _project, usage in itertools.groupby(
        servers, lambda server: server.project_id)]


def _page(req: Request, period: _Period, project: str | None) -> tuple[list[ServerUsage], int]:
    limit, marker = req.page()
    if limit == 0:
        return [], limit
    return req.clients.usages.index(req.ctx, period.begin, period.end, limit, project, marker), limit


def _answer(req: Request, key: str, path: str, shown: Any, servers: list[ServerUsage], limit: int) -> dict[str, Any]:
    """Return a page of at most ``limit`` servers. It may end in the middle of a project."""
    return req.with_next({key: shown}, f"{key}_links", path, servers, limit, "uuid", since=40)


@accepts(query=Query({**_PERIOD, "detailed": STRING}, strict=75), answer=Object({
    "tenant_usages": Array(USAGE), "tenant_usages_links": Field(LINKS, since=40)}))
def index(req: Request) -> dict[str, Any]:
    """Show the usage of the servers of all projects."""
    period = _Period(req, req.arg("detailed") == "1")
    servers, limit = _page(req, period, None)
    return _answer(req, "tenant_usages", _PATH, _projects(servers, period), servers, limit)


@accepts(query=Query(_PERIOD, strict=75), answer=Object({
    "tenant_usage": USAGE, "tenant_usage_links": Field(LINKS, since=40)}))
def show(req: Request) -> dict[str, Any]:
    """Show the usage of each server of a project."""
    project = req.params["id"]
    req.authorize("os_compute_api:os-simple-tenant-usage:show", {"project_id": project})
    period = _Period(req, True)
    servers, limit = _page(req, period, project)
    shown = _projects(servers, period)
    return _answer(req, "tenant_usage", f"{_PATH}/{project}", shown[0] if shown else {}, servers, limit)


# -- usage audits of hosts: Nova does not run them, so the response always reports none -----------------
_LOG = Object({
    "hosts_not_run": Array(STRING), "log": OPEN, "num_hosts": INTEGER, "num_hosts_done": INTEGER,
    "num_hosts_not_run": INTEGER, "num_hosts_running": INTEGER, "overall_status": STRING, "period_beginning": STRING,
    "period_ending": STRING, "total_errors": INTEGER, "total_instances": INTEGER})


@accepts(answer=Object({"instance_usage_audit_logs": _LOG}))
def audit_index(req: Request) -> dict[str, Any]:
    """Show the usage audits of the previous complete period."""
    return {"instance_usage_audit_logs": _log(utcnow())}


@accepts(answer=Object({"instance_usage_audit_log": _LOG}))
def audit_show(req: Request) -> dict[str, Any]:
    """Show the usage audits of the last complete period before a time."""
    text = req.params["id"]
    try:
        before = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f" if "." in text else "%Y-%m-%d %H:%M:%S")
        return {"instance_usage_audit_log": _log(before.replace(tzinfo=datetime.UTC))}
    except (ValueError, OverflowError) as error:
        raise exception.InvalidInput(f"Invalid timestamp for date {text}") from error


def _log(before: datetime.datetime) -> dict[str, Any]:
    begin, end = audit_period(CONF.instance_usage_audit_period, before)
    return {
        "period_beginning": f"{begin:%Y-%m-%d %H:%M:%S}", "period_ending": f"{end:%Y-%m-%d %H:%M:%S}",
        "num_hosts": 0, "num_hosts_done": 0, "num_hosts_running": 0, "num_hosts_not_run": 0, "hosts_not_run": [],
        "total_instances": 0, "total_errors": 0, "overall_status": "ALL hosts done. 0 errors.", "log": {}}
