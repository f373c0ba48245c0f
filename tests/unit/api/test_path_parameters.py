"""URL decoding of the path parameters of all routes. Request lines are parsed as by the API's server."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any
from urllib.parse import quote

import h11
import pytest

from nova.api import app, rates, routes, service
from nova.api.legacy import routes as legacy_routes
from nova.api.request import Request
from nova.http import messages
from tests.unit.api.conftest import Behind

assert service  # importing the module registers its options
_NAME = re.compile(r"{(\w+)}")
VALUES = ["a/b", "/", "a/", "/a", "..", "../../x", "a b", "é/ü", "%2F", "a%2Fb/c", "100%", "?a=b&c", "#x", "a;b", "a+b",
          "😀",
          "a\nb", "x.json", "."]


def _read(method: str, target: str, raw: bytes = b"") -> dict[str, Any]:
    request = h11.Request(method=method, target=target, headers=[("Host", "api"), ("Content-Length", str(len(raw)))])
    return {**messages.environ_of(request, b""), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(raw),
            "wsgi.errors": io.StringIO(), "SERVER_NAME": "api", "SERVER_PORT": "80", "REMOTE_ADDR": "127.0.0.1"}


def _answer(application: Any, method: str, target: str, raw: bytes = b"") -> int:
    status, _headers, _body = messages.call(application, _read(method, target, raw))
    return int(status.split()[0])


def test_path_parameters_may_contain_any_url_encoded_character(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def handle(req: Request) -> None:
        seen.append(req.params)

    real = [route for route in (*routes.ROUTES, *legacy_routes.SERVED) if "{" in route.path and route.action is None]
    table = tuple(dataclasses.replace(route, handler=handle, policy=None, since=1, until=104, success=200)
                  for route in real)
    monkeypatch.setattr(routes, "table", lambda: table)
    application = app.create_app(clients=Behind(), limits=rates.Rates())
    tried = set()
    for route in real:
        for name in _NAME.findall(route.path):
            for value in VALUES:
                params = {other: value if other == name else "one" for other in _NAME.findall(route.path)}
                path = _NAME.sub(lambda match, params=params: quote(params[match[1]], safe=""), route.path)
                seen.clear()
                status = _answer(application, route.method, f"/v2.1{path}")
                assert status == 200, (route.path, value)
                assert value in seen[0].values(), (route.path, value, seen)
            tried.add((route.path, name))
    print(f"{len(tried)} parameters of {len(real)} routes with {len(VALUES)} values each: {sorted(tried)[:5]}, …")
    assert len(tried) > 60
