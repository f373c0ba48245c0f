"""Traits and resource classes."""

from nova import exception
from nova.objects.hosts.placement import RESOURCE_CLASS, TRAIT
from nova.placement import bodies, queries
from nova.placement.request import PREFIX, Answer, Request


def list_traits(req: Request) -> Answer:
    values = queries.parameters(req.query, {"name", "associated"})
    associated = None
    if "associated" in values:
        value = values["associated"][0].lower()
        if value not in ("true", "false"):
            raise queries.bad_value("associated", value, "true or false")
        associated = value == "true"
    names = req.conductor.list_names(req.ctx, TRAIT, associated)
    if "name" in values:
        kind, _, text = values["name"][0].partition(":")
        if kind == "startswith":
            names = [name for name in names if name.startswith(text)]
        elif kind == "in":
            wanted = set(text.split(","))
            names = [name for name in names if name in wanted]
        else:
            raise queries.bad_value("name", values["name"][0], "startswith:TEXT or in:NAME,NAME")
    return req.shown({"traits": names})


def show_trait(req: Request) -> Answer:
    if not req.conductor.has_name(req.ctx, TRAIT, req.params["name"]):
        raise exception.NotFound(f"No such trait: {req.params['name']}.")
    return req.shown(None, 204)


def create_trait(req: Request) -> Answer:
    made = req.conductor.add_name(req.ctx, TRAIT, _custom(req))
    return req.shown(None, 201 if made else 204, req.location(f"/traits/{req.params['name']}"))


def delete_trait(req: Request) -> Answer:
    req.conductor.remove_name(req.ctx, TRAIT, req.params["name"])
    return Answer(None, 204)


def list_classes(req: Request) -> Answer:
    return req.shown({"resource_classes": [_class(name) for name in req.conductor.list_names(req.ctx, RESOURCE_CLASS)]})


def show_class(req: Request) -> Answer:
    if not req.conductor.has_name(req.ctx, RESOURCE_CLASS, req.params["name"]):
        raise exception.NotFound(f"No such resource class: {req.params['name']}.")
    return req.shown(_class(req.params["name"]))


def create_class(req: Request) -> Answer:
    name = bodies.parse(req.body, bodies.ClassBody).name
    if not req.conductor.add_name(req.ctx, RESOURCE_CLASS, name):
        raise exception.PlacementConflict(f"Conflicting resource class already exists: {name}.")
    return Answer(None, 201, req.location(f"/resource_classes/{name}"))


def put_class(req: Request) -> Answer:
    """Rename a resource class or, from 1.7, create it unless it exists."""
    if req.version < 7:
        new = bodies.parse(req.body, bodies.ClassBody).name
        req.conductor.rename_class(req.ctx, req.params["name"], new)
        return req.shown(_class(new))
    made = req.conductor.add_name(req.ctx, RESOURCE_CLASS, _custom(req))
    return Answer(None, 201 if made else 204, req.location(f"/resource_classes/{req.params['name']}"))


def delete_class(req: Request) -> Answer:
    req.conductor.remove_name(req.ctx, RESOURCE_CLASS, req.params["name"])
    return Answer(None, 204)


def _class(name: str) -> dict[str, object]:
    return {"name": name, "links": [{"rel": "self", "href": f"{PREFIX}/resource_classes/{name}"}]}


def _custom(req: Request) -> str:
    """Return the name in the URL. Raises Invalid unless it is a valid custom name."""
    try:
        return bodies.parse(req.params["name"], bodies.CustomName)
    except exception.Invalid:
        raise exception.Invalid(f"The name {req.params['name'][:100]!a} is invalid: expected CUSTOM_ and capital "
                                f"letters, digits or underscores, at most 255 characters.") from None
