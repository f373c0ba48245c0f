"""limits: limits and usage of a project; os-quota-sets: limits of projects and their users; os-quota-class-sets: limits
of quota classes (only the class default has an effect)."""

from typing import Any

from nova import exception
from nova.api import identity, microversion
from nova.api.request import Request, is_true, whole
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Getter, Object, Out, Plain, Query, View, single
from nova.api.validation.types import ANY_QUERY, BOOLEAN, INTEGER, STRING
from nova.objects.accounts.usage import Quotas as QuotaSet

POLICY = "os_compute_api:os-quota-sets:"

LIMIT = Plain(type=["integer", "string"], pattern="^-?[0-9]+$", minimum=-1, maximum=2147483647)
# Resource -> last microversion that shows it (None: all microversions).
RESOURCES: dict[str, int | None] = {
    **dict.fromkeys(("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups",
                     "server_group_members"), None),
    **dict.fromkeys(("injected_files", "injected_file_content_bytes", "injected_file_path_bytes"), 56),
    **dict.fromkeys(("fixed_ips", "floating_ips", "security_groups", "security_group_rules"), 35)}
UNLIMITED = -1
# Maximum number of characters of the name of a project, user or class.
LONGEST = 255


def _until(name: str) -> int:
    """Return the last microversion that shows a resource."""
    return RESOURCES[name] or microversion.MAX


def _limit(resource: str) -> Getter:
    return lambda quotas, _req: quotas.limits.get(resource, UNLIMITED)


def _used(resource: str) -> Getter:
    return lambda quotas, _req: quotas.in_use.get(resource, 0)


# -- limits -------------------------------------------------------------------------------------------
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
    Out("totalSecurityGroupsUsed", INTEGER, _used("security_groups"), until=35)])


@accepts(query=Query({"tenant_id": STRING}, strict=75), answer=Object({"limits": Object({
    "rate": Array(STRING), "absolute": ABSOLUTE})}))
def limits(req: Request) -> dict[str, Any]:
    """Show the limits of a project and its usage."""
    project = req.arg("tenant_id") or req.ctx.project_id or ""
    if project != req.ctx.project_id:
        req.authorize("os_compute_api:limits:other_project", {"project_id": project})
    quotas = req.clients.quotas.get(req.ctx, project, usage=True)
    return {"limits": {"rate": [], "absolute": ABSOLUTE.render(quotas, req)}}


# -- quotas of projects and users -----------------------------------------------------------------------
def _usage(name: str) -> Out:
    return Out(name, Object({"limit": INTEGER, "in_use": INTEGER, "reserved": INTEGER}), lambda quotas, req: {
        "limit": _limit(name)(quotas, req), "in_use": _used(name)(quotas, req), "reserved": 0}, until=_until(name))


QUERY = Query({"user_id": STRING}, strict=75)
UPDATE = Object({"quota_set": Field(Object({**{name: Field(LIMIT, until=_until(name)) for name in RESOURCES},
                                            "force": BOOLEAN}), required=True)})
_ID = Out("id", STRING, lambda _quotas, req: req.params["id"])
LIMITS = View([Out(name, INTEGER, _limit(name), until=_until(name)) for name in RESOURCES])
_NAMED_LIMITS = single("quota_set", View([_ID, *LIMITS.keys]))
USAGE = View([_ID, *(_usage(name) for name in RESOURCES)])


def _project(req: Request, operation: str) -> str:
    """Return the project of the URL. Raises PolicyNotAuthorized, UnknownProject."""
    project = req.params["id"]
    req.authorize(POLICY + operation, {"project_id": project})
    if len(project) > LONGEST:
        raise identity.UnknownProject(project_id=project)
    identity.check_project(req, project)
    return project


def _user(req: Request) -> str | None:
    user = req.arg("user_id")
    if user is not None and len(user) > LONGEST:
        raise exception.Invalid(f"user_id is longer than {LONGEST} characters.")
    return user


@accepts(query=QUERY, answer=_NAMED_LIMITS)
def show(req: Request) -> QuotaSet:
    """Show the quotas of a project or of a user in it."""
    return req.clients.quotas.get(req.ctx, _project(req, "show"), _user(req))


@accepts(query=QUERY, answer=single("quota_set", USAGE))
def detail(req: Request) -> QuotaSet:
    """Show the quotas of a project or of a user in it, with usage."""
    return req.clients.quotas.get(req.ctx, _project(req, "detail"), _user(req), usage=True)


@accepts(query=ANY_QUERY, answer=_NAMED_LIMITS)
def defaults(req: Request) -> QuotaSet:
    """Show the default quotas."""
    _project(req, "defaults")
    return req.clients.quotas.defaults(req.ctx)


@accepts(query=QUERY, body=UPDATE, answer=single("quota_set", LIMITS))
def update(req: Request) -> QuotaSet:
    """Change quotas of a project or of a user in it."""
    project, user = _project(req, "update"), _user(req)
    body = req.body["quota_set"]
    wanted = {name: whole(value) for name, value in body.items() if name != "force"}
    return req.clients.quotas.set(req.ctx, project, wanted, user_id=user, force=is_true(body.get("force", False)))


@accepts(query=QUERY)
def delete(req: Request) -> None:
    """Reset the quotas of a project or of a user in it to the defaults."""
    project = req.params["id"]
    req.authorize(POLICY + "delete", {"project_id": project})
    req.clients.quotas.reset(req.ctx, project, req.arg("user_id"))


# -- quota classes ------------------------------------------------------------------------------------
# Resource -> versions that show it. Before 2.50 an update also accepts server_groups and server_group_members.
_SHOWN: dict[str, dict[str, int]] = {
    name: {} if last is None else {"until": 49 if last == 35 else last} for name, last in RESOURCES.items()}
_SHOWN["server_groups"] = _SHOWN["server_group_members"] = {"since": 50}

CLASS_UPDATE = Object({"quota_class_set": Field(Object({
    name: Field(LIMIT, until=versions.get("until", microversion.MAX)) for name, versions in _SHOWN.items()
}), required=True)})
CLASS_LIMITS = View([Out(name, INTEGER, _limit(name), **versions) for name, versions in _SHOWN.items()])


@accepts(answer=single("quota_class_set", View([_ID, *CLASS_LIMITS.keys])))
def show_class(req: Request) -> QuotaSet:
    """Show the quotas of a quota class."""
    return req.clients.quotas.get_class(req.ctx, req.params["id"])


@accepts(body=CLASS_UPDATE, answer=single("quota_class_set", CLASS_LIMITS))
def update_class(req: Request) -> QuotaSet:
    """Change the quotas of a quota class."""
    if len(req.params["id"]) > LONGEST:
        raise exception.Invalid(f"The name of the quota class is longer than {LONGEST} characters.")
    wanted = {name: whole(value) for name, value in req.body["quota_class_set"].items()}
    return req.clients.quotas.set_class(req.ctx, req.params["id"], wanted)
