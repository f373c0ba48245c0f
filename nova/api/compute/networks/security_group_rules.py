"""os-security-group-rules: rules of security groups (2.1 to 2.35)."""

import re
from typing import Any

from nova import exception
from nova.api.compute.networks import security_groups
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation import formats
from nova.api.validation.fields import Field, Object, Plain
from nova.api.validation.types import ANY, UUID
from nova.objects.networks.network import SecurityGroupRule

RULE_BODY = Object({"security_group_rule": Field(Object({
    "parent_group_id": Field(UUID, required=True), "group_id": Plain(type=["string", "null"], format="uuid"),
    "ip_protocol": ANY, "from_port": ANY, "to_port": ANY, "cidr": ANY,
}, additional=True), required=True)}, additional=True)

EVERYBODY = "0.0.0.0/0"
# The conductor checks port numbers; this limit only bounds messages.
_HUGE = 1_000_000


@accepts(body=RULE_BODY, answer=Object({"security_group_rule": security_groups.RULE}))
def create(req: Request) -> dict[str, Any]:
    """Add a rule that allows ingress to the servers of a group."""
    wanted = req.body["security_group_rule"]
    parent = security_groups.get(req, wanted["parent_group_id"])
    rule = SecurityGroupRule(
        parent_group_id=parent.id, protocol=text(wanted, "ip_protocol"), from_port=number(wanted, "from_port"),
        to_port=number(wanted, "to_port"), cidr=text(wanted, "cidr"))
    if rule.protocol is None and (rule.from_port, rule.to_port) == (-1, -1):
        rule.from_port = rule.to_port = None
    peers: security_groups.Groups = {}
    if wanted.get("group_id"):
        peer = security_groups.get(req, wanted["group_id"])
        rule.group_id = peer.id
        peers = security_groups.by_id([peer])
    elif rule.cidr is None:
        rule.cidr = EVERYBODY
    made = req.clients.security_groups.add_rule(req.ctx, rule, req.scope)
    return {"security_group_rule": security_groups.RULE.render(security_groups.Shown(made, peers), req)}


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
def delete(req: Request) -> None:
    """Delete a rule."""
    shown = req.params["id"]
    if not formats.is_uuid(shown):
        raise exception.Invalid(f"Rule id should be uuid, not '{shown}'.")
    ident = security_groups.inner_id(shown)
    if ident is None:
        raise exception.SecurityGroupRuleNotFound(rule_id=shown)
    try:
        req.clients.security_groups.delete_rule(req.ctx, ident, req.scope)
    except exception.SecurityGroupRuleNotFound:
        raise exception.SecurityGroupRuleNotFound(rule_id=shown) from None
