"""Generate doc/routes.md: every operation of the Compute API with its state, module and test.

    python -m tools.route_table           after a change of routes; ``--check``: exit code 1 if it is outdated

The operations are those of tests/data/api_reference.json, their modules come from nova/api/routes.py, and their tests
from the sources of the tests: a function that sends a request to the operation's URL (and, for an action, with its
key). A test named by the table is kept as long as it sends such a request.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

from nova.api import microversion, routes
from nova.api.legacy import routes as legacy_routes
from nova.api.router import Route, Router

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "doc/routes.md"
# Directories of tests that send HTTP requests.
_TESTS = ("tests/functional", "tests/unit/api", "tests/integration")
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
_PREFIX = re.compile(r"^(/v2(\.1)?)?(/\{\})?(?=/[a-z])")
_CELL = re.compile(r"`([^`]*)`")

# Method, path without the names of parameters, action.
_Shape = tuple[str, str, str | None]

SERVED, GONE, MISSING = "Served", "Gone: 410 in every microversion", "Not served yet"
AGAIN = "Optional legacy operations"
_ABOUT = {
    SERVED: "In these microversions; in the others 404, as upstream.",
    AGAIN: "Upstream has removed these operations. With `[api]legacy = true` Nova serves them"
           " in these microversions (404 in other microversions), those of networks only if the networks are embedded;"
           " otherwise they return 410 in every microversion.",
    GONE: "Upstream has removed these operations, too. `tests/unit/api/test_operations.py` requests each operation.",
    MISSING: "404. `tests/unit/test_house.py` lists these operations, and fails when one of them is served.",
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of the reference; ``since`` and ``until`` are minor microversions."""

    method: str
    path: str
    action: str | None
    since: int
    until: int
    gone: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}" + (f" {self.action}" if self.action else "")

    @property
    def shape(self) -> _Shape:
        """Return the key of the operation, independent of parameter names."""
        return self.method, re.sub(r"{\w+}", "{}", self.path), self.action


@functools.cache
def operations() -> tuple[Operation, ...]:
    """Return all operations of the reference, in its order."""
    data = json.loads((ROOT / "tests/data/api_reference.json").read_text())
    return tuple(Operation(
        line["method"], line["path"], line.get("action"), max(_minor(line.get("min"), microversion.MIN), 1),
        _minor(line.get("max"), microversion.MAX), line.get("gone", False)) for line in data["operations"])


def _minor(version: str | None, default: int) -> int:
    return default if version is None else int(version.partition(".")[2])


@functools.cache
def _routes(table: tuple[Route, ...]) -> dict[_Shape, Route]:
    return {(route.method, re.sub(r"{\w+}", "{}", route.path), route.action): route for route in table}


def module_of(operation: Operation) -> str | None:
    """Return the module that serves an operation, or None if it is not served."""
    if operation.path == "/":
        return "nova/api/versions.py"
    route = _routes(routes.ROUTES).get(operation.shape)
    if route is None or route.handler is legacy_routes.no_longer_available:
        route = legacy_route(operation)
    if route is None:
        return None
    return f"{route.handler.__module__.replace('.', '/')}.py"


def legacy_route(operation: Operation) -> Route | None:
    """Return the route that serves an operation if [api]legacy is enabled, or None."""
    return _routes(legacy_routes.SERVED).get(operation.shape)


def state_of(operation: Operation) -> str:
    if legacy_route(operation) is not None:
        return AGAIN
    if module_of(operation) is not None:
        return SERVED
    return GONE if operation.gone else MISSING


# -- tests ---------------------------------------------------------------------------------------------------
@functools.cache
def tests() -> dict[Operation, tuple[str, ...]]:
    """Return the tests ("file::name") of each operation, those that request the fewest operations first."""
    router = Router(Route(operation.method, operation.path, lambda _req: None, action=operation.action)
                    for operation in operations())
    candidates: dict[_Shape, list[tuple[int, str]]] = {operation.shape: [] for operation in operations()}
    for directory in _TESTS:
        for path in sorted((ROOT / directory).rglob("test_*.py")):
            module = _Module(ast.parse(path.read_text()))
            for name in module.tests():
                shapes = {shape for node in module.sources(name) for shape in _requested(node, module, router)}
                for shape in shapes:
                    candidates[shape].append((len(shapes), f"{path.relative_to(ROOT)}::{name}"))
    return {operation: tuple(name for _count, name in sorted(candidates[operation.shape], key=_preference))
            for operation in operations()}


def _preference(candidate: tuple[int, str]) -> tuple[int, int, str]:
    """Return a sort key that prefers tests of successful requests to tests of rejected requests."""
    count, name = candidate
    return int("/test_bad_" in name), count, name


class _Module:
    """The source of a module of tests."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._values: dict[str, ast.expr] = {}
        self.texts: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if (text := _text(node.value, self.texts)) is not None:
                    self.texts[name] = text
                elif node in tree.body:
                    self._values[name] = node.value

    def tests(self) -> list[str]:
        return [name for name in self._functions if name.startswith("test_")]

    def sources(self, name: str) -> list[ast.AST]:
        """Return the nodes of a function and of the functions and values of the module that it uses."""
        reached, waiting = {name}, [name]
        nodes: list[ast.AST] = []
        while waiting:
            node = self._functions.get(current := waiting.pop()) or self._values[current]
            nodes.append(node)
            used = {child.id if isinstance(child, ast.Name) else child.arg for child in ast.walk(node)
                    if isinstance(child, ast.Name | ast.arg)}
            more = (used & (self._functions.keys() | self._values.keys())) - reached
            reached |= more
            waiting += sorted(more)
        return nodes


def _text(node: ast.AST, constants: dict[str, str]) -> str | None:
    """Return the text of an expression with {} for values unknown before the run, or None if it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant)
                       else (isinstance(part, ast.FormattedValue) and _text(part.value, constants)) or "{}"
                       for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, constants), _text(node.right, constants)
        return None if left is None and right is None else f"{left or '{}'}{right or '{}'}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "url":
        return "/" + "/".join(_text(part, constants) or "{}" for part in node.args)
    return None


def _requested(source: ast.AST, module: _Module, router: Router) -> Iterator[_Shape]:
    """Yield the operations that a source requests: calls and tuples with a method and a path."""
    for node in ast.walk(source):
        if isinstance(node, ast.Call):
            parts, verb = [*node.args, *(word.value for word in node.keywords)], _verb(node.func)
        elif isinstance(node, ast.Tuple):
            parts, verb = node.elts, ""
        else:
            continue
        texts = [text for part in parts if (text := _text(part, module.texts)) is not None]
        if verb == "ACTION":  # client.action(server, "name")
            yield from _match(router, "POST", "/servers/{}/action", texts)
        method = verb if verb in _METHODS else next((text for text in texts if text in _METHODS), None)
        path = next((text for text in texts if text.startswith("/")), None)
        if method is not None and path is not None:
            yield from _match(router, method, path, [*texts, *_keys(parts)])


def _verb(called: ast.expr) -> str:
    return called.attr.upper() if isinstance(called, ast.Attribute) else ""


def _keys(parts: Iterable[ast.AST]) -> list[str]:
    return [key.value for part in parts if isinstance(part, ast.Dict) for key in part.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _match(router: Router, method: str, path: str, names: list[str]) -> Iterator[_Shape]:
    path = _PREFIX.sub("", path.partition("?")[0])
    match = router.find(method, path.split("/")[1:])
    if match is None:
        return
    leaf, _values = match
    for action, lines in leaf.actions.items():
        if action is None or action in names:
            route = lines[0]
            yield method, re.sub(r"{\w+}", "{}", route.path), action


# -- the table -----------------------------------------------------------------------------------------------
def document(before: str = "") -> str:
    """Return the page; ``before``: the existing page, whose tests are kept if possible."""
    named = {cells[0]: cells[-1] for line in before.splitlines() if len(cells := _CELL.findall(line)) == 3}
    by_state: dict[str, list[Operation]] = {SERVED: [], AGAIN: [], GONE: [], MISSING: []}
    for operation in operations():
        by_state[state_of(operation)].append(operation)
    parts = ["# Operations", "",
             f"The {len(operations())} operations of the Compute API. Written by `python -m tools.route_table`; "
             "`tests/unit/test_house.py` keeps it true.", ""]
    for state, lines in by_state.items():
        if lines:
            parts += [f"## {state}", "", _ABOUT[state], "", *_rows(state, lines, named), ""]
    return "\n".join(parts)


def _rows(state: str, lines: list[Operation], named: dict[str, str]) -> list[str]:
    if state not in (SERVED, AGAIN):
        return ["| operation | microversions |", "|---|---|",
                *(f"| `{operation.name}` | {_versions(operation)} |" for operation in lines)]
    return ["| operation | microversions | module | test |", "|---|---|---|---|",
            *(f"| `{operation.name}` | {_versions(operation)} | `{module_of(operation)}` | {_test(operation, named)} |"
              for operation in lines)]


def _versions(operation: Operation) -> str:
    last = min(operation.until, (legacy_route(operation) or operation).until)
    since, until = microversion.text(operation.since), microversion.text(last)
    if last == microversion.MAX:
        return "all" if operation.since == microversion.MIN else f"from {since}"
    return f"until {until}" if operation.since == microversion.MIN else f"{since} to {until}"


def _test(operation: Operation, named: dict[str, str]) -> str:
    """Return the test named in the existing table if it still requests the operation, else the first test."""
    candidates = tests()[operation]
    if not candidates:
        return "none"
    return f"`{previous if (previous := named.get(operation.name)) in candidates else candidates[0]}`"


def main(arguments: list[str]) -> int:
    before = TABLE.read_text() if TABLE.exists() else ""
    after = document(before)
    if "--check" in arguments:
        return int(before != after)
    TABLE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
