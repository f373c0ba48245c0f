"""os-flavor-access: the projects that may use a private flavor."""

from typing import Any

from nova import exception
from nova.api import identity
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, View, only, string
from nova.api.validation.types import STRING

_TENANT = Object({"tenant": Field(string(minLength=1, maxLength=255), required=True)})
REMOVE = only("removeTenantAccess", _TENANT)

_ANSWER = Object({"flavor_access": Array(View([Out("flavor_id", STRING), Out("tenant_id", STRING)]))})


def _shown(flavorid: str, projects: list[str]) -> dict[str, Any]:
    return {"flavor_access": [{"flavor_id": flavorid, "tenant_id": project} for project in projects]}


@accepts(answer=_ANSWER)
def index(req: Request) -> dict[str, Any]:
    """List the projects with access to a private flavor."""
    flavorid = req.params["id"]
    if req.clients.flavors.get(req.ctx, flavorid).is_public:
        raise exception.NotFound("Access list not available for public flavors.")
    return _shown(flavorid, req.clients.flavors.access(req.ctx, flavorid))


@accepts(body=only("addTenantAccess", _TENANT), answer=_ANSWER, errors=(409,))
def add(req: Request) -> dict[str, Any]:
    """Give a project access to a private flavor."""
    flavorid, project = req.params["id"], req.body["addTenantAccess"]["tenant"]
    identity.check_project(req, project)
    if req.version >= 7 and req.clients.flavors.get(req.ctx, flavorid).is_public:
        raise exception.Conflict("Can not add access to a public flavor.")
    return _shown(flavorid, req.clients.flavors.add_access(req.ctx, flavorid, project))


@accepts(body=REMOVE, answer=_ANSWER)
def remove(req: Request) -> dict[str, Any]:
    """Revoke the access of a project to a private flavor."""
    flavorid, project = req.params["id"], req.body["removeTenantAccess"]["tenant"]
    identity.check_project(req, project)
    return _shown(flavorid, req.clients.flavors.remove_access(req.ctx, flavorid, project))
