"""os-quota-class-sets: the limits of quota classes. Only the class ``default`` is used."""

from __future__ import annotations

from typing import Any

from nova import exception
from nova.api import microversion
from nova.api.compute.accounts.quota_sets import LIMIT, LONGEST, RESOURCES, UNLIMITED
from nova.api.request import Request, whole
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Out, View
from nova.api.validation.types import INTEGER, STRING

# Resource -> versions that show it; a change may name more resources before 2.50.
_SHOWN: dict[str, dict[str, int]] = {
    name: {} if last is None else {"until": 49 if last == 35 else last} for name, last in RESOURCES.items()}
_SHOWN["server_groups"] = _SHOWN["server_group_members"] = {"since": 50}

UPDATE = Object({"quota_class_set": Field(Object({
    name: Field(LIMIT, until=versions.get("until", microversion.MAX)) for name, versions in _SHOWN.items()
}), required=True)})


def _limit(name: str) -> Out:
    return Out(name, INTEGER, lambda quotas, _req: quotas.limits.get(name, UNLIMITED), **_SHOWN[name])


LIMITS = View([_limit(name) for name in _SHOWN])
NAMED_LIMITS = View([Out("id", STRING, lambda _quotas, req: req.params["id"]), *LIMITS.keys])


@accepts(answer=Object({"quota_class_set": NAMED_LIMITS}))
def show(req: Request) -> dict[str, Any]:
    """Show the quotas of a class."""
    return {"quota_class_set": NAMED_LIMITS.render(req.clients.quotas.get_class(req.ctx, req.params["id"]), req)}


@accepts(body=UPDATE, answer=Object({"quota_class_set": LIMITS}))
def update(req: Request) -> dict[str, Any]:
    """Change the quotas of a class."""
    if len(req.params["id"]) > LONGEST:
        raise exception.Invalid(f"The name of the class is longer than {LONGEST} characters.")
    wanted = {name: whole(value) for name, value in req.body["quota_class_set"].items()}
    return {"quota_class_set": LIMITS.render(req.clients.quotas.set_class(req.ctx, req.params["id"], wanted), req)}
