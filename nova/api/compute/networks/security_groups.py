"""os-security-groups: security groups (2.1 to 2.35), and the groups of a server (all versions)."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nova import exception
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation import formats
from nova.api.validation.fields import Array, Field, Object, Out, Query, View, string
from nova.api.validation.types import ANY_QUERY, INTEGER_OR_NULL, LIMIT, OPEN, STRING, STRING_OR_NULL, UUID
from nova.objects.networks.network import SecurityGroup

_TEXT = string(minLength=0, maxLength=255)
GROUP_BODY = Object({"security_group": Field(Object({
    "name": Field(_TEXT, required=True), "description": Field(_TEXT, required=True),
}, additional=True), required=True)}, additional=True)

Groups = Mapping[int, SecurityGroup]


def shown_id(ident: int) -> str:
    """Return the public id (a uuid) of a group or rule, which has a number internally."""
    return str(uuid.UUID(int=ident))


def inner_id(shown: str) -> int | None:
    """Return the number of a public id, or None if it is not the id of a group or rule."""
    if not formats.is_uuid(shown):
        return None
    number = uuid.UUID(shown).int
    return number if number < 2**63 else None


class Shown(NamedTuple):
    """A group or rule, with the remote groups that rules may name."""

    item: Any
    groups: Groups


def _group(shown: Shown, _req: Request) -> dict[str, str]:
    group = shown.groups.get(shown.item.group_id or 0)
    return {} if group is None else {"name": group.name, "tenant_id": group.project_id}


RULE = View([
    Out("id", UUID, lambda shown, _req: shown_id(shown.item.id)),
    Out("parent_group_id", UUID, lambda shown, _req: shown_id(shown.item.parent_group_id)),
    Out("ip_protocol", STRING_OR_NULL, "item.protocol"), Out("from_port", INTEGER_OR_NULL, "item.from_port"),
    Out("to_port", INTEGER_OR_NULL, "item.to_port"), Out("group", OPEN, _group),
    Out("ip_range", OPEN, lambda shown, _req: {"cidr": shown.item.cidr} if shown.item.cidr else {}),
])
GROUP = View([
    Out("id", UUID, lambda shown, _req: shown_id(shown.item.id)), Out("name", STRING, "item.name"),
    Out("description", STRING, "item.description"), Out("tenant_id", STRING, "item.project_id"),
    Out("rules", Array(RULE), lambda shown, req: [
        RULE.render(Shown(rule, shown.groups), req) for rule in shown.item.rules]),
])
_SINGLE_GROUP = Object({"security_group": GROUP})
_MANY = Object({"security_groups": Array(GROUP)})


def by_id(groups: Sequence[SecurityGroup]) -> Groups:
    return {group.id: group for group in groups}


def group_id(shown: str) -> int:
    """Return the number of a group. Raises SecurityGroupNotFound, or 400 for an invalid id."""
    if not formats.is_uuid(shown):
        raise exception.Invalid(f"Security group id should be uuid, not '{shown}'.")
    ident = inner_id(shown)
    if ident is None:
        raise exception.SecurityGroupNotFound(security_group_id=shown)
    return ident


def get(req: Request, shown: str) -> SecurityGroup:
    """Return a group. Raises SecurityGroupNotFound with the public id."""
    try:
        return req.clients.security_groups.get(req.ctx, group_id(shown), req.scope)
    except exception.SecurityGroupNotFound:
        raise exception.SecurityGroupNotFound(security_group_id=shown) from None


def _with_peers(req: Request, group: SecurityGroup) -> dict[str, Any]:
    """Render a group; remote groups of its rules are read if there are any."""
    peers: Groups = {}
    if any(rule.group_id for rule in group.rules):
        peers = by_id(req.clients.security_groups.index(req.ctx, group.project_id))
    return {"security_group": GROUP.render(Shown(group, peers), req)}


@accepts(query=Query({"limit": LIMIT, "offset": LIMIT, "all_tenants": STRING}, strict=None), answer=_MANY)
def index(req: Request) -> dict[str, Any]:
    """List security groups."""
    everywhere = req.ctx.is_admin and req.arg("all_tenants", "0") in ("", "1", "True", "true")
    groups = req.clients.security_groups.index(req.ctx, None if everywhere else req.ctx.project_id)
    groups_by_id = by_id(groups)
    limit, offset = req.offset_page()
    return {"security_groups": [
        GROUP.render(Shown(group, groups_by_id), req) for group in groups[offset:offset + limit]]}


@accepts(query=ANY_QUERY, answer=_SINGLE_GROUP)
def show(req: Request) -> dict[str, Any]:
    """Show a security group."""
    shown = req.params["id"]
    if not formats.is_uuid(shown):
        # Clients that were given a name search the list after a 404, but not after a 400.
        raise exception.SecurityGroupNotFound(security_group_id=shown)
    return _with_peers(req, get(req, shown))


def _texts(req: Request) -> tuple[str, str]:
    wanted = req.body["security_group"]
    name, description = wanted["name"], wanted["description"]
    for field, value in (("name", name), ("description", description)):
        if not formats.printable(value):
            raise exception.Invalid(f"Security group {field} has characters that are not printable.")
    if not name.strip():
        raise exception.Invalid("Security group name cannot be empty.")
    return name, description


@accepts(body=GROUP_BODY, answer=_SINGLE_GROUP)
def create(req: Request) -> dict[str, Any]:
    """Create a security group."""
    name, description = _texts(req)
    made = req.clients.security_groups.create(req.ctx, name, description)
    return {"security_group": GROUP.render(Shown(made, {}), req)}


@accepts(body=GROUP_BODY, answer=_SINGLE_GROUP)
def update(req: Request) -> dict[str, Any]:
    """Change the name and description of a security group."""
    name, description = _texts(req)
    ident = get(req, req.params["id"]).id
    return _with_peers(req, req.clients.security_groups.update(req.ctx, ident, name, description, req.scope))


@accepts()
def delete(req: Request) -> None:
    """Delete a security group that no server is in."""
    req.clients.security_groups.delete(req.ctx, get(req, req.params["id"]).id, req.scope)


@accepts(answer=_MANY)
def of_server(req: Request) -> dict[str, Any]:
    """List the security groups of a server."""
    server = req.clients.servers.get(req.ctx, req.params["server_id"], project_id=req.scope)
    req.authorize("os_compute_api:os-security-groups:list",
                  {"project_id": server.project_id, "user_id": server.user_id})
    groups = req.clients.security_groups.index(req.ctx, server.project_id)
    groups_by_id = by_id(groups)
    return {"security_groups": [
        GROUP.render(Shown(group, groups_by_id), req) for group in groups if group.name in server.security_groups]}
