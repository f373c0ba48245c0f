"""The dispatcher of the Placement API: finds the route of a URL, checks version and policy, and calls the handler."""

import dataclasses
from collections.abc import Callable

from nova.context import RequestContext
from nova.placement import consumers, errors, names, providers, versions
from nova.placement.request import PREFIX, Answer, Request


@dataclasses.dataclass(frozen=True)
class Route:
    """A route. ``policy``: the rule to check (None: the handler checks). ``since``: minor number of first version."""

    method: str
    path: str
    handler: Callable[[Request], Answer]
    policy: str | None
    since: int = 0
    action: str | None = None  # label in metrics


_OF_DOCUMENT = ("GET", "HEAD")
_PROVIDER = "/resource_providers/{uuid}"
_INVENTORY = "placement:resource_providers:inventories:"
ROUTES = (
    Route("GET", "/resource_providers", providers.index, "placement:resource_providers:list"),
    Route("POST", "/resource_providers", providers.create, "placement:resource_providers:create"),
    Route("GET", _PROVIDER, providers.show, "placement:resource_providers:show"),
    Route("PUT", _PROVIDER, providers.update, "placement:resource_providers:update"),
    Route("DELETE", _PROVIDER, providers.delete, "placement:resource_providers:delete"),
    Route("GET", f"{_PROVIDER}/inventories", providers.list_inventories, f"{_INVENTORY}list"),
    Route("POST", f"{_PROVIDER}/inventories", providers.create_inventory, f"{_INVENTORY}create"),
    Route("PUT", f"{_PROVIDER}/inventories", providers.replace_inventories, f"{_INVENTORY}update"),
    Route("DELETE", f"{_PROVIDER}/inventories", providers.delete_inventories, f"{_INVENTORY}delete", 5),
    Route("GET", f"{_PROVIDER}/inventories/{{resource_class}}", providers.show_inventory, f"{_INVENTORY}show"),
    Route("PUT", f"{_PROVIDER}/inventories/{{resource_class}}", providers.update_inventory, f"{_INVENTORY}update"),
    Route("DELETE", f"{_PROVIDER}/inventories/{{resource_class}}", providers.delete_inventory, f"{_INVENTORY}delete"),
    Route("GET", f"{_PROVIDER}/usages", providers.usages, "placement:resource_providers:usages"),
    Route("GET", f"{_PROVIDER}/aggregates", providers.list_aggregates,
          "placement:resource_providers:aggregates:list", 1),
    Route("PUT", f"{_PROVIDER}/aggregates", providers.replace_aggregates,
          "placement:resource_providers:aggregates:update", 1),
    Route("GET", f"{_PROVIDER}/traits", providers.list_traits, "placement:resource_providers:traits:list", 6),
    Route("PUT", f"{_PROVIDER}/traits", providers.replace_traits, "placement:resource_providers:traits:update", 6),
    Route("DELETE", f"{_PROVIDER}/traits", providers.delete_traits, "placement:resource_providers:traits:delete", 6),
    Route("GET", f"{_PROVIDER}/allocations", consumers.of_provider, "placement:resource_providers:allocations:list"),
    Route("GET", "/resource_classes", names.list_classes, "placement:resource_classes:list", 2),
    Route("POST", "/resource_classes", names.create_class, "placement:resource_classes:create", 2),
    Route("GET", "/resource_classes/{name}", names.show_class, "placement:resource_classes:show", 2),
    Route("PUT", "/resource_classes/{name}", names.put_class, "placement:resource_classes:update", 2),
    Route("DELETE", "/resource_classes/{name}", names.delete_class, "placement:resource_classes:delete", 2),
    Route("GET", "/traits", names.list_traits, "placement:traits:list", 6),
    Route("GET", "/traits/{name}", names.show_trait, "placement:traits:show", 6),
    Route("PUT", "/traits/{name}", names.create_trait, "placement:traits:update", 6),
    Route("DELETE", "/traits/{name}", names.delete_trait, "placement:traits:delete", 6),
    Route("POST", "/allocations", consumers.replace_many, "placement:allocations:manage", 13),
    Route("GET", "/allocations/{uuid}", consumers.show, "placement:allocations:list"),
    Route("PUT", "/allocations/{uuid}", consumers.replace, "placement:allocations:update"),
    Route("DELETE", "/allocations/{uuid}", consumers.delete, "placement:allocations:delete"),
    Route("GET", "/usages", consumers.usages, None, 9),
    Route("GET", "/allocation_candidates", consumers.candidates, "placement:allocation_candidates:list", 10),
    Route("POST", "/reshaper", consumers.reshape, "placement:reshaper:reshape", 30),
)


def respond(method: str, segments: list[str], header: str | None, authenticate: Callable[[], RequestContext],
            call: Callable[[RequestContext, int], Request]) -> tuple[Answer, Route | None]:
    """Return the response to a request, and its route for metrics. Never raises.

    ``segments``: components of the path below /placement; [""] for the version document. ``authenticate`` returns the
    caller's context, and ``call`` the request for a context and version; both may raise errors."""
    version, route, request_id = versions.MIN, None, ""
    try:
        version = versions.requested(header)
        if segments == [""]:  # before any authentication: keystonemiddleware lets these requests pass unchecked
            if method not in _OF_DOCUMENT:
                raise errors.MethodNotAllowed(method=method, allowed=", ".join(_OF_DOCUMENT))
            answer = Answer(versions.document())
        else:
            ctx = authenticate()
            request_id = ctx.request_id
            route, params = _find(method, segments, version)
            request = call(ctx, version)
            request.params = params
            if route.policy is not None:
                request.authorize(route.policy)
            answer = route.handler(request)
    except Exception as error:
        status, body, headers = errors.describe(error, version, request_id)
        answer = Answer(body, status, headers)
    shown = {"openstack-api-version": f"{versions.SERVICE} {versions.text(version)}", "vary": "openstack-api-version"}
    return answer._replace(headers={**shown, **answer.headers}), route


def _find(method: str, segments: list[str], version: int) -> tuple[Route, dict[str, str]]:
    """Return the route of a URL and its parameters. Raises UrlNotFound, MethodNotAllowed."""
    allowed = []
    for route, parts in _PARTS:
        if len(parts) == len(segments) and route.since <= version and all(
                part == segment or (part.startswith("{") and segment) for part, segment in zip(
                    parts, segments, strict=True)):
            if route.method == method:
                return route, {part[1:-1]: segment for part, segment in zip(parts, segments, strict=True)
                               if part.startswith("{")}
            allowed.append(route.method)
    if not allowed:
        raise errors.UrlNotFound()
    raise errors.MethodNotAllowed(method=method, allowed=", ".join(allowed))


_PARTS = [(dataclasses.replace(route, path=PREFIX + route.path), route.path.strip("/").split("/")) for route in ROUTES]

