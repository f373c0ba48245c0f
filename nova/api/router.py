"""The table of routes, and the search for the route of a request."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova.api import microversion
from nova.api.validation import fields

Handler = Callable[[Any], Any]

# A first path segment of this form is a project id; no collection of the API has such a name.
PROJECT = re.compile(r"[0-9a-f-]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """The schemas of a handler's query, body and response (None: not validated, not described)."""

    query: fields.Query | None = None
    body: fields.Type | None = None
    answer: fields.Type | None = None
    errors: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    located: int = 0


NOTHING = Spec()
_NO_QUERY = fields.Query()


def accepts(query: fields.Query | None = None, body: fields.Type | None = None, answer: fields.Type | None = None,
            errors: tuple[int, ...] = (), headers: tuple[str, ...] = (), statuses: tuple[int, ...] = (),
            located: int = 0) -> Callable[[Handler], Handler]:
    """Declare the query parameters, the body and the headers that a handler accepts, and its response.

    For OpenAPI: ``errors`` are its error statuses besides 400, 401, 403 and 404. ``statuses`` are its success statuses,
    if there are several. ``located`` is the last version in which the response has the header Location."""
    def mark(handler: Handler) -> Handler:
        handler.spec = Spec(query, body, answer, errors, headers, statuses, located)  # type: ignore[attr-defined]
        return handler

    return mark


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A line of the table of routes.

    ``policy`` is checked before the handler with the caller's own project as target; None: the handler checks it.
    ``since`` and ``until``: outside of these versions the route is 404. ``success``: the success status, or a mapping
    from first version to success status. ``action``: for POST .../action, the key in the body, which selects the route.
    """

    method: str
    path: str
    handler: Handler
    policy: str | None = None
    since: int = microversion.MIN
    until: int = microversion.MAX
    success: int | Mapping[int, int] = 200
    action: str | None = None

    @property
    def spec(self) -> Spec:
        return getattr(self.handler, "spec", NOTHING)

    @property
    def query(self) -> fields.Query | None:
        """Return the declared query; a GET without one takes no parameters (unknown ones are 400 from 2.102)."""
        return self.spec.query or (_NO_QUERY if self.method == "GET" else None)

    def status(self, version: int) -> int:
        if isinstance(self.success, int):
            return self.success
        return self.success[max(since for since in self.success if since <= version)]


@dataclasses.dataclass(slots=True)
class Leaf:
    """The routes of a path template and method, by action name (None: not an action)."""

    names: tuple[str, ...]
    actions: dict[str | None, list[Route]] = dataclasses.field(default_factory=dict)
    has_actions: bool = False

    def pick(self, action: str | None, version: int) -> Route | None:
        for route in self.actions.get(action, ()):
            if route.since <= version <= route.until:
                return route
        return None


class _Node:
    __slots__ = ("any", "leaves", "named")

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.leaves: dict[str, Leaf] = {}


class Router:
    """A tree of path segments; ``{name}`` matches any one segment, literal segments win."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.path.strip("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.any = node = node.any or _Node()
            else:
                node = node.named.setdefault(segment, _Node())
        leaf = node.leaves.setdefault(route.method, Leaf(tuple(names)))
        leaf.actions.setdefault(route.action, []).append(route)
        leaf.has_actions = leaf.has_actions or route.action is not None

    def find(self, method: str, segments: list[str]) -> tuple[Leaf, dict[str, str]] | None:
        """Return the leaf of a path (without version and project) and its parameters; None: no such URL."""
        values: list[str] = []
        match = self._walk(self._root, method, segments, 0, values)
        return None if match is None else (match, dict(zip(match.names, values, strict=True)))

    def _walk(self, node: _Node, method: str, segments: list[str], at: int, values: list[str]) -> Leaf | None:
        if at == len(segments):
            return node.leaves.get(method)
        child = node.named.get(segments[at])
        if child is not None and (match := self._walk(child, method, segments, at + 1, values)) is not None:
            return match
        if node.any is not None and segments[at]:
            values.append(segments[at])
            if (match := self._walk(node.any, method, segments, at + 1, values)) is not None:
                return match
            values.pop()
        return None
