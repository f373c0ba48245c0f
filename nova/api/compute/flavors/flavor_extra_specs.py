"""os-extra_specs: the extra specs of a flavor."""

from collections.abc import Mapping
from typing import Any

from nova import exception
from nova.api.errors import RequestMismatch
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation import extra_specs
from nova.api.validation.fields import Field, Object, Plain
from nova.api.validation.types import OPEN

_KEY = "^[a-zA-Z0-9-_:. ]{1,255}$"
_VALUE = Plain(type=["string", "number"], maxLength=255)
CREATE = Object({"extra_specs": Field(Object(patterns={_KEY: _VALUE}), required=True)})

_ANSWER = Object({"extra_specs": OPEN})


def _checked(req: Request, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the specs as strings. From 2.86 specs of known namespaces must be valid."""
    specs = {name: str(value) for name, value in given.items()}
    if req.version >= 86:
        for name, value in specs.items():
            extra_specs.validate(name, value)
    return specs


@accepts(answer=_ANSWER)
def index(req: Request) -> dict[str, Any]:
    """List the extra specs of a flavor."""
    return {"extra_specs": req.clients.flavors.get(req.ctx, req.params["flavor_id"], req.scope).extra_specs}


@accepts(answer=OPEN)
def show(req: Request) -> dict[str, Any]:
    """Show an extra spec of a flavor."""
    flavorid, key = req.params["flavor_id"], req.params["id"]
    specs = req.clients.flavors.get(req.ctx, flavorid, req.scope).extra_specs
    if key not in specs:
        raise exception.FlavorExtraSpecsNotFound(flavor_id=flavorid, key=key)
    return {key: specs[key]}


@accepts(body=CREATE, answer=_ANSWER, errors=(409,))
def create(req: Request) -> dict[str, Any]:
    """Set extra specs of a flavor, besides those that it has."""
    specs = _checked(req, req.body["extra_specs"])
    req.clients.flavors.set_extra_specs(req.ctx, req.params["flavor_id"], specs)
    return {"extra_specs": specs}


@accepts(body=Object(patterns={_KEY: _VALUE}, minProperties=1, maxProperties=1), answer=OPEN, errors=(409,))
def update(req: Request) -> dict[str, Any]:
    """Set one extra spec of a flavor."""
    if req.params["id"] not in req.body:
        raise RequestMismatch()
    specs = _checked(req, req.body)
    req.clients.flavors.set_extra_specs(req.ctx, req.params["flavor_id"], specs)
    return specs


@accepts()
def delete(req: Request) -> None:
    """Delete an extra spec of a flavor."""
    req.clients.flavors.delete_extra_spec(req.ctx, req.params["flavor_id"], req.params["id"])
