"""os-quota-sets: limits of projects and their users; os-quota-class-sets: limits of classes (only default is used)."""

from typing import Any

from nova import exception
from nova.api import identity, microversion
from nova.api.request import Request, is_true, whole
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Out, Plain, Query, View
from nova.api.validation.types import ANY_QUERY, BOOLEAN, INTEGER, STRING

POLICY = "os_compute_api:os-quota-sets:"

LIMIT = Plain(type=["integer", "string"], pattern="^-?[0-9]+$", minimum=-1, maximum=2147483647)
# Resource -> last version that shows it (None: all versions).
RESOURCES: dict[str, int | None] = {
    **dict.fromkeys(("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups",
                     "server_group_members"), None),
    **dict.fromkeys(("injected_files", "injected_file_content_bytes", "injected_file_path_bytes"), 56),
    **dict.fromkeys(("fixed_ips", "floating_ips", "security_groups", "security_group_rules"), 35),
}
UNLIMITED = -1
# Maximum number of characters of the name of a project, user or class.
LONGEST = 255

QUERY = Query({"user_id": STRING}, strict=75)


def until(name: str) -> int:
    """Return the last version that shows a resource."""
    return RESOURCES[name] or microversion.MAX


UPDATE = Object({"quota_set": Field(Object({
    **{name: Field(LIMIT, until=until(name)) for name in RESOURCES}, "force": BOOLEAN,
}), required=True)})


def _limit(name: str, since: int = 0, until: int = microversion.MAX) -> Out:
    return Out(name, INTEGER, lambda quotas, _req: quotas.limits.get(name, UNLIMITED), since, until)


def _usage(name: str) -> Out:
    return Out(name, Object({"limit": INTEGER, "in_use": INTEGER, "reserved": INTEGER}), lambda quotas, _req: {
        "limit": quotas.limits.get(name, UNLIMITED), "in_use": quotas.in_use.get(name, 0), "reserved": 0,
    }, until=until(name))


_ID = Out("id", STRING, lambda _quotas, req: req.params["id"])
LIMITS = View([_limit(name, until=until(name)) for name in RESOURCES])
NAMED_LIMITS = View([_ID, *LIMITS.keys])
USAGE = View([_ID, *(_usage(name) for name in RESOURCES)])


def _project(req: Request, operation: str) -> str:
    """Return the project of the URL after checks of policy and existence."""
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


@accepts(query=QUERY, answer=Object({"quota_set": NAMED_LIMITS}))
def show(req: Request) -> dict[str, Any]:
    """Show the quotas of a project or of a user in it."""
    quotas = req.clients.quotas.get(req.ctx, _project(req, "show"), _user(req))
    return {"quota_set": NAMED_LIMITS.render(quotas, req)}


@accepts(query=QUERY, answer=Object({"quota_set": USAGE}))
def detail(req: Request) -> dict[str, Any]:
    """Show the quotas of a project or of a user in it, with usage."""
    quotas = req.clients.quotas.get(req.ctx, _project(req, "detail"), _user(req), usage=True)
    return {"quota_set": USAGE.render(quotas, req)}


@accepts(query=ANY_QUERY, answer=Object({"quota_set": NAMED_LIMITS}))
def defaults(req: Request) -> dict[str, Any]:
    """Show the default quotas."""
    _project(req, "defaults")
    return {"quota_set": NAMED_LIMITS.render(req.clients.quotas.defaults(req.ctx), req)}


@accepts(query=QUERY, body=UPDATE, answer=Object({"quota_set": LIMITS}))
def update(req: Request) -> dict[str, Any]:
    """Change quotas of a project or of a user in it."""
    project, user = _project(req, "update"), _user(req)
    body = req.body["quota_set"]
    wanted = {name: whole(value) for name, value in body.items() if name != "force"}
    changed = req.clients.quotas.set(req.ctx, project, wanted, user_id=user, force=is_true(body.get("force", False)))
    return {"quota_set": LIMITS.render(changed, req)}


@accepts(query=QUERY)
def delete(req: Request) -> None:
    """Reset the quotas of a project or of a user in it to the defaults."""
    project = req.params["id"]
    req.authorize(POLICY + "delete", {"project_id": project})
    req.clients.quotas.reset(req.ctx, project, req.arg("user_id"))


# -- classes ------------------------------------------------------------------------------------------
# Resource -> versions that show it; a change may name more resources before 2.50.
_SHOWN: dict[str, dict[str, int]] = {
    name: {} if last is None else {"until": 49 if last == 35 else last} for name, last in RESOURCES.items()}
_SHOWN["server_groups"] = _SHOWN["server_group_members"] = {"since": 50}

CLASS_UPDATE = Object({"quota_class_set": Field(Object({
    name: Field(LIMIT, until=versions.get("until", microversion.MAX)) for name, versions in _SHOWN.items()
}), required=True)})


CLASS_LIMITS = View([_limit(name, **versions) for name, versions in _SHOWN.items()])
NAMED_CLASS_LIMITS = View([_ID, *CLASS_LIMITS.keys])


@accepts(answer=Object({"quota_class_set": NAMED_CLASS_LIMITS}))
def show_class(req: Request) -> dict[str, Any]:
    """Show the quotas of a class."""
    return {"quota_class_set": NAMED_CLASS_LIMITS.render(req.clients.quotas.get_class(req.ctx, req.params["id"]), req)}


@accepts(body=CLASS_UPDATE, answer=Object({"quota_class_set": CLASS_LIMITS}))
def update_class(req: Request) -> dict[str, Any]:
    """Change the quotas of a class."""
    if len(req.params["id"]) > LONGEST:
        raise exception.Invalid(f"The name of the class is longer than {LONGEST} characters.")
    wanted = {name: whole(value) for name, value in req.body["quota_class_set"].items()}
    changed = req.clients.quotas.set_class(req.ctx, req.params["id"], wanted)
    return {"quota_class_set": CLASS_LIMITS.render(changed, req)}
