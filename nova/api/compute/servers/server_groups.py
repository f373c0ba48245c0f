"""os-server-groups: groups of servers with an affinity or anti-affinity policy."""

from nova import exception
from nova.api.request import Request, whole
from nova.api.router import accepts
from nova.api.validation.fields import Array, Changing, Field, Object, Out, Plain, Query, View, enum, listed, single
from nova.api.validation.types import LIMIT, OPEN, STRICT_NAME, STRING, UUID
from nova.objects.base import new_uuid
from nova.objects.servers.server_group import ServerGroup

INDEX_QUERY = Query({"all_projects": STRING, "limit": LIMIT, "offset": LIMIT}, strict=75)

_HARD = ["anti-affinity", "affinity"]
_ALL = [*_HARD, "soft-anti-affinity", "soft-affinity"]
_LIMITED = "anti-affinity"


def _policies(names: list[str]) -> Plain:
    """Return the schema of a list with exactly one item, which is one of the policies ``names``."""
    return Plain(type="array", prefixItems=[{"type": "string", "enum": names}], uniqueItems=True, minItems=1,
                 maxItems=1, additionalItems=False)


CREATE = Object({"server_group": Field(Object({
    "name": Field(STRICT_NAME, required=True),
    "policies": Field(Changing({0: _policies(_HARD), 15: _policies(_ALL)}), until=63, required=True),
    "policy": Field(enum(*_ALL), since=64, required=True),
    "rules": Field(Object({"max_server_per_host": Plain(
        type=["integer", "string"], pattern="^[0-9]*$", minimum=1, minLength=1)}), since=64),
}), required=True)})

GROUP = View([
    Out("id", UUID, "uuid"), Out("name", STRING),
    Out("policies", Array(STRING), lambda group, _req: [group.policy], until=63), Out("policy", STRING, since=64),
    Out("rules", OPEN, since=64), Out("members", Array(UUID)), Out("metadata", OPEN, lambda _group, _req: {}, until=63),
    Out("project_id", STRING, since=13), Out("user_id", STRING, since=13)])
_SINGLE_GROUP = single("server_group", GROUP)


@accepts(query=INDEX_QUERY, answer=listed("server_groups", GROUP))
def index(req: Request) -> list[ServerGroup]:
    """List server groups."""
    everywhere = "all_projects" in req.query and req.allowed("os_compute_api:os-server-groups:index:all_projects")
    return req.clients.server_groups.index(req.ctx, None if everywhere else req.ctx.project_id, *req.offset_page())


@accepts(answer=_SINGLE_GROUP)
def show(req: Request) -> ServerGroup:
    """Show a server group."""
    return req.clients.server_groups.get(req.ctx, req.uuid(exception.ServerGroupNotFound, "group_uuid"), req.scope)


@accepts(body=CREATE, answer=_SINGLE_GROUP, errors=(409,))
def create(req: Request) -> ServerGroup:
    """Create a server group."""
    wanted = req.body["server_group"]
    policy = wanted["policy"] if req.version >= 64 else wanted["policies"][0]
    rules = {name: whole(value) for name, value in wanted.get("rules", {}).items()}
    if rules and policy != _LIMITED:
        raise exception.Invalid(f"Only the policy {_LIMITED} supports rules.")
    return req.clients.server_groups.create(req.ctx, ServerGroup(
        uuid=new_uuid(), name=wanted["name"], project_id=req.ctx.project_id or "", user_id=req.ctx.user_id or "",
        policy=policy, rules=rules))


@accepts()
def delete(req: Request) -> None:
    """Delete a server group; its servers stay where they are."""
    req.clients.server_groups.delete(req.ctx, req.uuid(exception.ServerGroupNotFound, "group_uuid"), req.scope)
