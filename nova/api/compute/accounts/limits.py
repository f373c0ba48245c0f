"""limits: quota limits and usage of a project."""

from typing import Any

from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Getter, Object, Out, Query, View
from nova.api.validation.types import INTEGER, STRING

QUERY = Query({"tenant_id": STRING}, strict=75)


def _limit(resource: str) -> Getter:
    return lambda quotas, _req: quotas.limits.get(resource, -1)


def _used(resource: str) -> Getter:
    return lambda quotas, _req: quotas.in_use.get(resource, 0)


ABSOLUTE = View([
    Out("maxTotalInstances", INTEGER, _limit("instances")), Out("maxTotalCores", INTEGER, _limit("cores")),
    Out("maxTotalRAMSize", INTEGER, _limit("ram")), Out("maxTotalKeypairs", INTEGER, _limit("key_pairs")),
    Out("maxServerMeta", INTEGER, _limit("metadata_items")), Out("maxServerGroups", INTEGER, _limit("server_groups")),
    Out("maxServerGroupMembers", INTEGER, _limit("server_group_members")),
    Out("maxImageMeta", INTEGER, _limit("metadata_items"), until=38),
    Out("maxPersonality", INTEGER, _limit("injected_files"), until=56),
    Out("maxPersonalitySize", INTEGER, _limit("injected_file_content_bytes"), until=56),
    Out("maxTotalFloatingIps", INTEGER, _limit("floating_ips"), until=35),
    Out("maxSecurityGroups", INTEGER, _limit("security_groups"), until=35),
    Out("maxSecurityGroupRules", INTEGER, _limit("security_group_rules"), until=35),
    Out("totalInstancesUsed", INTEGER, _used("instances")), Out("totalCoresUsed", INTEGER, _used("cores")),
    Out("totalRAMUsed", INTEGER, _used("ram")), Out("totalServerGroupsUsed", INTEGER, _used("server_groups")),
    Out("totalFloatingIpsUsed", INTEGER, _used("floating_ips"), until=35),
    Out("totalSecurityGroupsUsed", INTEGER, _used("security_groups"), until=35),
])


@accepts(query=QUERY, answer=Object({"limits": Object({"rate": Array(STRING), "absolute": ABSOLUTE})}))
def index(req: Request) -> dict[str, Any]:
    """Show the limits of a project and its usage."""
    project = req.arg("tenant_id") or req.ctx.project_id or ""
    if project != req.ctx.project_id:
        req.authorize("os_compute_api:limits:other_project", {"project_id": project})
    quotas = req.clients.quotas.get(req.ctx, project, usage=True)
    return {"limits": {"rate": [], "absolute": ABSOLUTE.render(quotas, req)}}
