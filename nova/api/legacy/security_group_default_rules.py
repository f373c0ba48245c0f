"""os-security-group-default-rules: ingress rules of the default group of a new project (2.1 to 2.35)."""

from nova import exception
from nova.api.compute.networks.security_groups import EVERYBODY, number, text
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Out, View, listed, single
from nova.api.validation.types import ANY, ANY_QUERY, INTEGER, INTEGER_OR_NULL, OPEN, STRING_OR_NULL
from nova.objects.networks.network import DefaultRule

CREATE = Object({"security_group_default_rule": Field(Object({
    "ip_protocol": ANY, "from_port": ANY, "to_port": ANY, "cidr": ANY,
}, additional=True), required=True)}, additional=True)

RULE = View([
    Out("id", INTEGER), Out("ip_protocol", STRING_OR_NULL, "protocol"), Out("from_port", INTEGER_OR_NULL),
    Out("to_port", INTEGER_OR_NULL), Out("ip_range", OPEN, lambda rule, _req: {"cidr": rule.cidr} if rule.cidr else {}),
])
_SINGLE_RULE = single("security_group_default_rule", RULE)


def _id(req: Request) -> int:
    shown = req.params["id"]
    if not (shown.isascii() and shown.isdecimal()) or len(shown) > 18:
        raise exception.Invalid(f"Security group default rule id should be an integer, not '{shown[:255]}'.")
    return int(shown)


@accepts(query=ANY_QUERY, answer=listed("security_group_default_rules", RULE))
def index(req: Request) -> list[DefaultRule]:
    """List the rules of new default security groups."""
    return req.clients.security_group_default_rules.index(req.ctx)


@accepts(query=ANY_QUERY, answer=_SINGLE_RULE)
def show(req: Request) -> DefaultRule:
    """Show a rule of new default security groups."""
    return req.clients.security_group_default_rules.get(req.ctx, _id(req))


@accepts(body=CREATE, answer=_SINGLE_RULE, errors=(409,))
def create(req: Request) -> DefaultRule:
    """Add a rule to default security groups that are created from now on."""
    given = req.body["security_group_default_rule"]
    return req.clients.security_group_default_rules.create(req.ctx, DefaultRule(
        protocol=text(given, "ip_protocol"), from_port=number(given, "from_port"), to_port=number(given, "to_port"),
        cidr=text(given, "cidr") or EVERYBODY))


@accepts()
def delete(req: Request) -> None:
    """Remove a rule of new default security groups; existing groups keep it."""
    req.clients.security_group_default_rules.delete(req.ctx, _id(req))
