"""flavors: the sizes of servers; os-flavor-access: the projects that may use a private flavor; os-extra_specs."""

from collections.abc import Mapping
from typing import Any

from oslo_utils import strutils

from nova import exception
from nova.api import identity
from nova.api.errors import RequestMismatch
from nova.api.request import Request, is_true, whole
from nova.api.router import accepts
from nova.api.validation import extra_specs
from nova.api.validation.fields import (
    ABSENT,
    Array,
    Changing,
    Field,
    Object,
    Out,
    Plain,
    Query,
    View,
    enum,
    integer,
    only,
    single,
    string,
)
from nova.api.validation.types import BOOLEAN, INTEGER, LIMIT, LINKS, NAME, NUMBER, OPEN, STRING, STRING_OR_NULL, TRUTH
from nova.objects.accounts.flavor import Flavor, FlavorQuery
from nova.objects.base import new_uuid

SPECS_POLICY = "os_compute_api:os-flavor-extra-specs:index"

_MOST = 2147483647
_POSITIVE = integer(1, _MOST)
_SIZE = integer(0, _MOST)
_ID = Plain(type=["string", "number", "null"], minLength=1, maxLength=255, pattern="^(?! )[a-zA-Z0-9. _-]+(?<! )$")
_RXTX = Plain(type=["number", "string"], pattern=r"^[0-9]+(\.[0-9]+)?$", exclusiveMinimum=0, maximum=3.40282e+38)
_DESCRIPTION = Plain(type=["string", "null"], minLength=0, maxLength=65535, format="printable")
_SORT_KEYS = ["created_at", "description", "disabled", "ephemeral_gb", "flavorid", "id", "is_public", "memory_mb",
              "name", "root_gb", "rxtx_factor", "swap", "updated_at", "vcpu_weight", "vcpus"]

INDEX_QUERY = Query({
    "limit": LIMIT, "marker": STRING, "is_public": STRING, "minRam": STRING, "minDisk": STRING,
    "sort_key": Changing({0: enum(*_SORT_KEYS), 102: enum(*(key for key in _SORT_KEYS if key != "rxtx_factor"))}),
    "sort_dir": enum("asc", "desc"), "name": Field(STRING, since=102),
}, strict=75)

CREATE = Object({"flavor": Field(Object({
    "name": Field(NAME, required=True), "id": _ID, "ram": Field(_POSITIVE, required=True),
    "vcpus": Field(_POSITIVE, required=True), "disk": Field(_SIZE, required=True), "OS-FLV-EXT-DATA:ephemeral": _SIZE,
    "swap": _SIZE, "rxtx_factor": Field(_RXTX, until=101), "os-flavor-access:is_public": BOOLEAN,
    "description": Field(_DESCRIPTION, since=55),
}), required=True)})

UPDATE = Object({"flavor": Field(Object({"description": Field(_DESCRIPTION, required=True)}), required=True)})

_NAMED = [
    Out("id", STRING, "flavorid"), Out("name", STRING),
    Out("links", LINKS, lambda flavor, req: req.links("flavors", flavor.flavorid)),
    Out("description", STRING_OR_NULL, since=55)]
LISTED = View(_NAMED)
FLAVOR = View([
    *_NAMED, Out("ram", INTEGER, "memory_mb"), Out("disk", INTEGER, "root_gb"), Out("vcpus", INTEGER),
    Out("swap", Changing({0: Plain(type=["integer", "string"]), 75: INTEGER}),
        lambda flavor, req: flavor.swap if flavor.swap or req.version >= 75 else ""),
    Out("OS-FLV-EXT-DATA:ephemeral", INTEGER, "ephemeral_gb"),
    Out("OS-FLV-DISABLED:disabled", TRUTH, "disabled", until=101), Out("rxtx_factor", NUMBER, until=101),
    Out("os-flavor-access:is_public", TRUTH, "is_public"),
    Out("extra_specs", OPEN, lambda flavor, req: flavor.extra_specs if req.allowed(SPECS_POLICY) else ABSENT, since=61),
])
_SINGLE_FLAVOR = single("flavor", FLAVOR)


@accepts(query=INDEX_QUERY, answer=Object({"flavors": Array(LISTED), "flavors_links": LINKS}))
def index(req: Request) -> dict[str, Any]:
    """List flavors."""
    return _list(req, LISTED, "flavors")


@accepts(query=INDEX_QUERY, answer=Object({"flavors": Array(FLAVOR), "flavors_links": LINKS}))
def detail(req: Request) -> dict[str, Any]:
    """List flavors with details."""
    return _list(req, FLAVOR, "flavors/detail")


def _list(req: Request, view: View, path: str) -> dict[str, Any]:
    limit, marker = req.page()
    flavors = req.clients.flavors.index(req.ctx, FlavorQuery(
        project_id=req.ctx.project_id, is_public=_is_public(req), min_ram=_least(req, "minRam"),
        min_disk=_least(req, "minDisk"), name=req.expression("name"), sort_key=req.arg("sort_key") or "flavorid",
        sort_dir=req.arg("sort_dir") or "asc", limit=limit, marker=marker))
    answer = {"flavors": [view.render(flavor, req) for flavor in flavors]}
    return req.with_next(answer, "flavors_links", path, flavors, limit, "flavorid")


def _is_public(req: Request) -> bool | None:
    """Return the filter is_public, or None for all flavors. Only administrators may list private flavors."""
    given = req.arg("is_public")
    if given is None or not req.ctx.is_admin:
        return True
    if given.strip().lower() == "none":
        return None
    try:
        return strutils.bool_from_string(given, strict=True)
    except ValueError:
        raise exception.Invalid(f"Invalid is_public filter [{given}]") from None


def _least(req: Request, name: str) -> int:
    given = req.arg(name)
    if given is None:
        return 0
    try:
        return max(0, min(int(given), _MOST))
    except ValueError:
        raise exception.Invalid(f"Invalid {name} filter [{given}]") from None


@accepts(answer=_SINGLE_FLAVOR)
def show(req: Request) -> Flavor:
    """Show a flavor."""
    return req.clients.flavors.get(req.ctx, req.params["id"], req.scope)


@accepts(body=CREATE, answer=_SINGLE_FLAVOR, errors=(409,))
def create(req: Request) -> Flavor:
    """Create a flavor."""
    wanted = req.body["flavor"]
    ident = wanted.get("id")
    return req.clients.flavors.create(req.ctx, Flavor(
        flavorid=new_uuid() if ident is None else str(ident), name=wanted["name"],
        memory_mb=whole(wanted["ram"]), vcpus=whole(wanted["vcpus"]), root_gb=whole(wanted["disk"]),
        ephemeral_gb=whole(wanted.get("OS-FLV-EXT-DATA:ephemeral", 0)), swap=whole(wanted.get("swap", 0)),
        rxtx_factor=float(wanted.get("rxtx_factor", 1.0)),
        is_public=is_true(wanted.get("os-flavor-access:is_public", True)), description=wanted.get("description")))


@accepts(body=UPDATE, answer=_SINGLE_FLAVOR)
def update(req: Request) -> Flavor:
    """Change the description of a flavor."""
    return req.clients.flavors.update(req.ctx, req.params["id"], req.body["flavor"]["description"])


@accepts()
def delete(req: Request) -> None:
    """Delete a flavor; servers keep their copy of it."""
    req.clients.flavors.delete(req.ctx, req.params["id"])


# -- access to private flavors ----------------------------------------------------------------------------
_TENANT = Object({"tenant": Field(string(minLength=1, maxLength=255), required=True)})
_ACCESS = Object({"flavor_access": Array(View([Out("flavor_id", STRING), Out("tenant_id", STRING)]))})


def _access(flavorid: str, projects: list[str]) -> dict[str, Any]:
    return {"flavor_access": [{"flavor_id": flavorid, "tenant_id": project} for project in projects]}


@accepts(answer=_ACCESS)
def list_access(req: Request) -> dict[str, Any]:
    """List the projects with access to a private flavor."""
    flavorid = req.params["id"]
    if req.clients.flavors.get(req.ctx, flavorid).is_public:
        raise exception.NotFound("Access list not available for public flavors.")
    return _access(flavorid, req.clients.flavors.access(req.ctx, flavorid))


@accepts(body=only("addTenantAccess", _TENANT), answer=_ACCESS, errors=(409,))
def add_access(req: Request) -> dict[str, Any]:
    """Give a project access to a private flavor."""
    flavorid, project = req.params["id"], req.body["addTenantAccess"]["tenant"]
    identity.check_project(req, project)
    if req.version >= 7 and req.clients.flavors.get(req.ctx, flavorid).is_public:
        raise exception.Conflict("Can not add access to a public flavor.")
    return _access(flavorid, req.clients.flavors.add_access(req.ctx, flavorid, project))


@accepts(body=only("removeTenantAccess", _TENANT), answer=_ACCESS)
def remove_access(req: Request) -> dict[str, Any]:
    """Revoke the access of a project to a private flavor."""
    flavorid, project = req.params["id"], req.body["removeTenantAccess"]["tenant"]
    identity.check_project(req, project)
    return _access(flavorid, req.clients.flavors.remove_access(req.ctx, flavorid, project))


# -- extra specs --------------------------------------------------------------------------------------------
_SPEC = {"^[a-zA-Z0-9-_:. ]{1,255}$": Plain(type=["string", "number"], maxLength=255)}
_SPECS = Object({"extra_specs": OPEN})


def _set_specs(req: Request, given: Mapping[str, Any]) -> dict[str, str]:
    """Set extra specs and return them as strings. From 2.86 specs of known namespaces must be valid."""
    specs = {name: str(value) for name, value in given.items()}
    if req.version >= 86:
        for name, value in specs.items():
            extra_specs.validate(name, value)
    req.clients.flavors.set_extra_specs(req.ctx, req.params["flavor_id"], specs)
    return specs


@accepts(answer=_SPECS)
def list_specs(req: Request) -> dict[str, Any]:
    """List the extra specs of a flavor."""
    return {"extra_specs": req.clients.flavors.get(req.ctx, req.params["flavor_id"], req.scope).extra_specs}


@accepts(answer=OPEN)
def show_spec(req: Request) -> dict[str, Any]:
    """Show an extra spec of a flavor."""
    flavorid, key = req.params["flavor_id"], req.params["id"]
    existing = req.clients.flavors.get(req.ctx, flavorid, req.scope).extra_specs
    if key not in existing:
        raise exception.FlavorExtraSpecsNotFound(flavor_id=flavorid, key=key)
    return {key: existing[key]}


@accepts(body=Object({"extra_specs": Field(Object(patterns=_SPEC), required=True)}), answer=_SPECS, errors=(409,))
def create_specs(req: Request) -> dict[str, Any]:
    """Add or change extra specs of a flavor; its other extra specs are kept."""
    return {"extra_specs": _set_specs(req, req.body["extra_specs"])}


@accepts(body=Object(patterns=_SPEC, minProperties=1, maxProperties=1), answer=OPEN, errors=(409,))
def update_spec(req: Request) -> dict[str, Any]:
    """Set one extra spec of a flavor."""
    if req.params["id"] not in req.body:
        raise RequestMismatch()
    return _set_specs(req, req.body)


@accepts()
def delete_spec(req: Request) -> None:
    """Delete an extra spec of a flavor."""
    req.clients.flavors.delete_extra_spec(req.ctx, req.params["flavor_id"], req.params["id"])
