"""os-security-groups and os-security-group-rules: security groups and their rules (2.1 to 2.35), and the groups of a
server (all versions)."""

import contextlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nova import exception
from nova.api.compute.servers.servers import authorized_get
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation import formats
from nova.api.validation.fields import Array, Field, Object, Out, Plain, Query, View, listed, single, string
from nova.api.validation.types import ANY, ANY_QUERY, INTEGER_OR_NULL, LIMIT, OPEN, STRING, STRING_OR_NULL, UUID
from nova.objects.networks.network import SecurityGroup, SecurityGroupRule

_TEXT = string(minLength=0, maxLength=255)
GROUP_BODY = Object({"security_group": Field(Object({
    "name": Field(_TEXT, required=True), "description": Field(_TEXT, required=True),
}, additional=True), required=True)}, additional=True)

Groups = Mapping[str, SecurityGroup]


def _shown_id(ident: int) -> str:
    """Return the public id (a UUID) for the internal number of a group or rule."""
    return str(uuid.UUID(int=ident))


def _id_of(item: SecurityGroup | SecurityGroupRule) -> str:
    return item.uuid or _shown_id(item.id)


def _inner_id(shown: str) -> int:
    """Return the number of a public id (a uuid), or 0 if no group or rule has this number."""
    ident = uuid.UUID(shown).int
    return ident if ident < 2**63 else 0


class Shown(NamedTuple):
    """A group or rule, with the remote groups that rules may name."""

    item: Any
    groups: Groups


def _group(shown: Shown, _req: Request) -> dict[str, str]:
    rule: SecurityGroupRule = shown.item
    group = shown.groups.get(rule.group_uuid or _shown_id(rule.group_id or 0))
    return {} if group is None else {"name": group.name, "tenant_id": group.project_id}


RULE = View([
    Out("id", UUID, lambda shown, _req: _id_of(shown.item)),
    Out("parent_group_id", UUID,
        lambda shown, _req: shown.item.parent_uuid or _shown_id(shown.item.parent_group_id)),
    Out("ip_protocol", STRING_OR_NULL, "item.protocol"), Out("from_port", INTEGER_OR_NULL, "item.from_port"),
    Out("to_port", INTEGER_OR_NULL, "item.to_port"), Out("group", OPEN, _group),
    Out("ip_range", OPEN, lambda shown, _req: {"cidr": shown.item.cidr} if shown.item.cidr else {})])
GROUP = View([
    Out("id", UUID, lambda shown, _req: _id_of(shown.item)), Out("name", STRING, "item.name"),
    Out("description", STRING, "item.description"), Out("tenant_id", STRING, "item.project_id"),
    Out("rules", Array(RULE), lambda shown, req: [
        RULE.render(Shown(rule, shown.groups), req) for rule in shown.item.rules])])
_SINGLE_GROUP, _MANY = single("security_group", GROUP), listed("security_groups", GROUP)


def _by_id(groups: Sequence[SecurityGroup]) -> Groups:
    return {_id_of(group): group for group in groups}


def _get(req: Request, shown: str) -> SecurityGroup:
    """Return a group. Raises SecurityGroupNotFound with the public id, or 400 for an invalid id."""
    if not formats.is_uuid(shown):
        raise exception.Invalid(f"Security group id should be uuid, not '{shown}'.")
    with contextlib.suppress(exception.SecurityGroupNotFound):
        return req.clients.security_groups.get(req.ctx, _inner_id(shown), req.scope, shown)
    raise exception.SecurityGroupNotFound(security_group_id=shown)


def _with_peers(req: Request, group: SecurityGroup) -> Shown:
    """Return a group with the remote groups that its rules name. Groups are read only if a rule names one."""
    peers: Groups = {}
    if any(rule.group_id or rule.group_uuid for rule in group.rules):
        peers = _by_id(req.clients.security_groups.index(req.ctx, group.project_id))
    return Shown(group, peers)


@accepts(query=Query({"limit": LIMIT, "offset": LIMIT, "all_tenants": STRING}, strict=None), answer=_MANY)
def index(req: Request) -> list[Shown]:
    """List security groups."""
    everywhere = req.ctx.is_admin and req.arg("all_tenants", "0") in ("", "1", "True", "true")
    groups = req.clients.security_groups.index(req.ctx, None if everywhere else req.ctx.project_id)
    groups_by_id = _by_id(groups)
    limit, offset = req.offset_page()
    return [Shown(group, groups_by_id) for group in groups[offset:offset + limit]]


@accepts(query=ANY_QUERY, answer=_SINGLE_GROUP)
def show(req: Request) -> Shown:
    """Show a security group."""
    shown = req.params["id"]
    if not formats.is_uuid(shown):
        # Clients first send a name as the id. After a 404 they search the list for the name, after a 400 they fail.
        raise exception.SecurityGroupNotFound(security_group_id=shown)
    return _with_peers(req, _get(req, shown))


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
def create(req: Request) -> Shown:
    """Create a security group."""
    name, description = _texts(req)
    return Shown(req.clients.security_groups.create(req.ctx, name, description), {})


@accepts(body=GROUP_BODY, answer=_SINGLE_GROUP)
def update(req: Request) -> Shown:
    """Change the name and description of a security group."""
    name, description = _texts(req)
    group = _get(req, req.params["id"])
    return _with_peers(req, req.clients.security_groups.update(
        req.ctx, group.id, name, description, req.scope, group.uuid))


@accepts()
def delete(req: Request) -> None:
    """Delete a security group that has no servers."""
    group = _get(req, req.params["id"])
    req.clients.security_groups.delete(req.ctx, group.id, req.scope, group.uuid)


@accepts(answer=_MANY)
def of_server(req: Request) -> list[Shown]:
    """List the security groups of a server."""
    server = authorized_get(req, "os_compute_api:os-security-groups:list")
    groups = req.clients.security_groups.index(req.ctx, server.project_id)
    groups_by_id = _by_id(groups)
    return [Shown(group, groups_by_id) for group in groups
            if group.name in server.security_groups or group.uuid in server.security_groups]


# -- rules ------------------------------------------------------------------------------------------------
RULE_BODY = Object({"security_group_rule": Field(Object({
    "parent_group_id": Field(UUID, required=True), "group_id": Plain(type=["string", "null"], format="uuid"),
    "ip_protocol": ANY, "from_port": ANY, "to_port": ANY, "cidr": ANY,
}, additional=True), required=True)}, additional=True)

EVERYBODY = "0.0.0.0/0"
# The API refuses port numbers from this value on. The conductor checks the valid range.
_HUGE = 1_000_000


@accepts(body=RULE_BODY, answer=single("security_group_rule", RULE))
def create_rule(req: Request) -> Shown:
    """Add a rule that allows ingress to the servers of a group."""
    wanted = req.body["security_group_rule"]
    parent = _get(req, wanted["parent_group_id"])
    rule = SecurityGroupRule(
        parent_group_id=parent.id, parent_uuid=parent.uuid, protocol=text(wanted, "ip_protocol"),
        from_port=number(wanted, "from_port"), to_port=number(wanted, "to_port"), cidr=text(wanted, "cidr"))
    if rule.protocol is None and (rule.from_port, rule.to_port) == (-1, -1):
        rule.from_port = rule.to_port = None
    peers: Groups = {}
    if wanted.get("group_id"):
        peer = _get(req, wanted["group_id"])
        rule.group_id, rule.group_uuid = (None if peer.uuid else peer.id), peer.uuid
        peers = _by_id([peer])
    elif rule.cidr is None:
        rule.cidr = EVERYBODY
    return Shown(req.clients.security_groups.add_rule(req.ctx, rule, req.scope), peers)


def text(wanted: dict[str, Any], name: str) -> str | None:
    """Parse an optional text. Raises Invalid naming the field."""
    value = wanted.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise exception.Invalid(f"Invalid {name} {value}: a string is expected.")
    return value


def number(wanted: dict[str, Any], name: str) -> int | None:
    """Parse an optional number, which may be a string. Raises Invalid naming the field."""
    value = wanted.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _HUGE:
        return value
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,6}", value):
        return int(value)
    raise exception.Invalid(f"Invalid {name} {value}: a port is expected.")


@accepts(errors=(409,))
def delete_rule(req: Request) -> None:
    """Delete a security group rule."""
    shown = req.params["id"]
    if not formats.is_uuid(shown):
        raise exception.Invalid(f"Rule id should be uuid, not '{shown}'.")
    try:
        req.clients.security_groups.delete_rule(req.ctx, _inner_id(shown), req.scope, shown)
    except exception.SecurityGroupRuleNotFound:
        raise exception.SecurityGroupRuleNotFound(rule_id=shown) from None
