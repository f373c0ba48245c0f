"""Requests from the OpenAPI document of each microversion: valid, invalid, and with ids of existing resources."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any
from urllib.parse import quote

import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from nova.api import microversion, openapi, routes
from tests.functional.refusals import NIL, SHARED
from tests.fuzz.world import PERSONAS, Persona, World

_LEFT_OUT = SHARED | {("PUT", "/os-services/disable"), ("PUT", "/os-services/force-down")}
_UNSET = "NotSet"

_TEXT = st.one_of(st.text(max_size=20), st.sampled_from([
    "", "0", "-1", "9" * 30, "1e400", "null", "../../etc/passwd", "%00", "a" * 5000, "é", "{}", "' OR 1=1 --", "${x}",
    "javascript:alert(1)", "2026-13-45T99:99:99Z", "[" * 500, "(a+)+$", "(?x)#[\n(a+)+$\n#]", "😀", "\ufeff"]))
_HEADERS = st.dictionaries(
    st.sampled_from(["OpenStack-API-Version", "X-OpenStack-Nova-API-Version", "Content-Type", "Accept", "Host",
                     "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Prefix", "Forwarded",
                     "X-OpenStack-Request-ID", "Idempotency-Key", "Accept-Language", "Content-Encoding", "Range",
                     "If-None-Match", "Cookie", "X-HTTP-Method-Override", "X-Project-Domain-Id"]),
    st.one_of(st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40), st.sampled_from([
        "compute 2.1", "compute latest", "compute 2.9999999999999", "compute", "volume 3.1", "javascript:alert(1)",
        "application/json", "text/xml", "multipart/form-data", "gzip", "bytes=0-", "a" * 5000])), max_size=3)
_BODIES = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"null", b"[]", b"{}", b'""', b"[" * 5000, b'{"a":' * 2000,
                                             b'{"server": 1e999}', b"\xff\xfe", b'{"server": {"name": "\\ud800"}}']))
# A part of a request is replaced by junk in a tenth of the requests.
_SOMETIMES = st.integers(0, 9).map(lambda number: number == 0)


@dataclasses.dataclass
class Sent:
    """A request; ``template`` is its path in the document."""

    persona: Persona
    method: str
    template: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes | None

    @property
    def key(self) -> str:
        return f"{self.method} {self.template}"


@functools.cache
def _operations(version: int) -> st.SearchStrategy[Any]:
    document = openapi.document(routes.ROUTES, version, "http://nova")
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    chosen = [one for one in found if (one.method.upper(), one.path) not in _LEFT_OUT]
    weighed = [one for one in chosen for _again in range(_weight(one))]
    return st.one_of([one.as_strategy(generation_mode=mode) for one in weighed
                      for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)])


def _weight(operation: Any) -> int:
    """Return the weight of a route: bodies have more kinds of errors, and a path may have many actions."""
    if operation.method.upper() not in ("POST", "PUT"):
        return 1
    return {"/servers": 8, "/servers/{server_id}/action": 16}.get(operation.path, 3)


@st.composite
def requests(draw: Any, world: World, versions: tuple[int, ...]) -> Sent:
    """Return requests of these microversions."""
    version = draw(st.sampled_from(versions))
    case = draw(_operations(version))
    persona = draw(st.sampled_from(PERSONAS))
    things = world.things["owner" if persona.victim and draw(st.booleans()) else "fuzz"]
    if persona.name == "admin":
        things = {**things, "images": NIL}  # the image is public, and only an administrator may delete it
    fill = _Fill(world, things, draw)
    path = "".join(fill.segment(case, part) for part in _parts(case.path))
    query = [(name, item) for name, value in _mapping(case.query).items()
             for item in fill.values(name, value if isinstance(value, list) else [value])]
    if draw(_SOMETIMES):
        query.append((draw(st.sampled_from(["limit", "marker", "sort_key", "name", "changes-since", "all_tenants", "ip",
                                            "tags", "is_public", "x"])), draw(_TEXT)))
    headers = {"Content-Type": "application/json", "OpenStack-API-Version": f"compute 2.{version}"}
    if draw(_SOMETIMES):
        headers |= draw(_HEADERS)
    body = None if type(case.body).__name__ == _UNSET else case.body
    if case.path == "/servers" and draw(st.booleans()):
        body = _likely(body, draw)
    data = body if body is None or isinstance(body, bytes) else json.dumps(fill.body(body)).encode()
    if draw(_SOMETIMES) and draw(st.booleans()):
        data = draw(_BODIES)
    return Sent(persona, case.method.upper(), case.path, path, query, {**headers, **persona.headers,
                "X-Auth-Token": world.secrets[1]}, data)


def _likely(body: Any, draw: Any) -> Any:
    """Return a body that is likely accepted: the required fields are valid, and few of the other fields are set."""
    server = _mapping(_mapping(body).get("server"))
    least = {"name": "fuzz", "flavorRef": "", "imageRef": "", "networks": "none"}
    return {"server": least | {name: value for name, value in server.items()
                               if name not in least and not draw(st.integers(0, 9))}}


def all_versions() -> tuple[int, ...]:
    return tuple(range(microversion.MIN, microversion.MAX + 1))


def _parts(path: str) -> list[str]:
    return [f"/{segment}" for segment in path.split("/")[1:]]


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


class _Fill:
    """Replaces most ids in requests by ids of existing resources."""

    def __init__(self, world: World, things: dict[str, str], draw: Any) -> None:
        self._things, self._draw, self._before = things, draw, ""
        self._known = {
            "flavorRef": things["flavors"], "imageRef": world.image_id, "key_name": things["os-keypairs"],
            "group": things["os-server-groups"], "adminPass": world.secrets[0], "user_data": world.user_data,
            "networks": "none", "same_host": things["servers"], "security_group_id": things["os-security-groups"],
        }

    def segment(self, case: Any, part: str) -> str:
        name = part[2:-1] if part.startswith("/{") else ""
        before, self._before = self._before, part[1:]
        if not name:
            return part
        known = self._things.get(before)
        if known is not None and self._draw(st.integers(0, 4)):
            return f"/{quote(known, safe='')}"
        if self._draw(_SOMETIMES):
            return f"/{quote(self._draw(_TEXT), safe='')}"
        return f"/{_mapping(case.path_parameters).get(name, '0')}"

    def values(self, name: str, values: list[Any]) -> list[str]:
        if name == "marker" and self._draw(st.booleans()):
            return [self._draw(st.sampled_from(sorted(self._things.values())))]
        return [value if isinstance(value, str) else json.dumps(value) for value in values]

    def body(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self.body(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.body(item) for item in value]
        return self._known[name] if name in self._known and self._draw(st.integers(0, 9)) else value
