"""A new API with a conductor or compute service of the previous release: a missing method is a 503, no client error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_messaging.rpc.dispatcher import NoSuchMethod

from nova.api.clients import INTERFACES
from nova.operations import REGISTRY
from nova.rpcapi import CONDUCTOR
from tests.functional.api.test_policy_matrix import _LEFT_OUT, _ROUTES, _ask, _operation, owners  # noqa: F401 (fixture)
from tests.functional.client import Client, Failed

# Maximum number of missing methods per request.
_MOST = 12
_NAMESPACES = {declared.namespace for declared in INTERFACES.values() if declared.topic == CONDUCTOR}


class OldConductor:
    """A conductor that has only the methods in ``known`` of those that the API calls."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.missed: list[str] = []

    def handler(self, name: str, original: Callable[..., Any]) -> Any:
        def handle(ctx: Any, p: str) -> Any:
            if name not in self.known:
                self.missed.append(name)
                raise NoSuchMethod(name)
            return original(ctx, p)

        return staticmethod(handle)


@contextlib.contextmanager
def old_conductor(suite: Any) -> Iterator[OldConductor]:
    """Replace the conductor of the suite by an older release within the block."""
    old, replaced = OldConductor(), []
    for server in suite.conductor._servers:
        for endpoint in server.dispatcher.endpoints:
            namespace = endpoint.target.namespace
            for name, original in list(vars(type(endpoint)).items()):
                if namespace in _NAMESPACES and isinstance(original, staticmethod):
                    replaced.append((type(endpoint), name, original))
                    setattr(type(endpoint), name, old.handler(f"{namespace}.{name}", original.__func__))
    try:
        yield old
    finally:
        for kind, name, original in replaced:
            setattr(kind, name, original)


def test_method_missing_in_an_old_conductor_returns_503(
        suite: Any, owners: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    things = owners["matrix"]
    wrong, lacked, asked = [], set(), 0
    for route in _ROUTES:
        if (route.method, route.path) in _LEFT_OUT:
            continue
        known: set[str] = set()
        for _number in range(_MOST):
            with old_conductor(suite) as old:
                old.known = known
                answer = _ask(suite.url, things, route, project="matrix", user="matrix", roles="admin")
            asked += 1
            missed = set(old.missed) - known
            if not missed:
                break
            if answer.status_code != 503 and not answer.ok:
                wrong.append((_operation(route), sorted(missed), answer.status_code, answer.text[:200]))
            known |= missed
        lacked |= known
        if answer.ok and route.method != "GET" and route.path.startswith(("/servers/", "/os-volumes_boot/")):
            with contextlib.suppress(Failed):  # The resource is deleted.
                things.owner.delete(f"/servers/{things.server}")
            things.owner.wait_gone(things.server)
            things.boot()
    with capsys.disabled():
        print(f"\n{asked} requests to {len(_ROUTES)} routes; {len(lacked)} methods of conductors were lacking in turn")
    assert wrong == []
    assert len(lacked) > 50


@pytest.mark.parametrize(("method", "path", "body"), [
    ("console_output", "action", {"os-getConsoleOutput": {}}), ("diagnostics", "diagnostics", None)])
def test_method_missing_in_an_old_compute_service_returns_503(
        suite: Any, admin: Client, flavor: str, image_id: str, monkeypatch: pytest.MonkeyPatch, method: str, path: str,
        body: dict[str, Any] | None) -> None:
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    [endpoint] = [each for each in suite.compute._server.dispatcher.endpoints if each.target.namespace == "compute"]
    old = OldConductor()
    with monkeypatch.context() as patch:
        patch.setattr(type(endpoint), method, old.handler(method, lambda _ctx, _p: ""))
        with pytest.raises(Failed) as failed:
            admin.call("GET" if body is None else "POST", f"/servers/{uuid}/{path}", body)
    assert (failed.value.code, old.missed) == (503, [method])
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_share_requests_to_an_old_conductor_return_503(
        suite: Any, admin: Client, flavor: str, image_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    for name in ("attach_share", "detach_share"):
        monkeypatch.delitem(REGISTRY, name)
    for method, path, body in (("POST", "shares", {"share": {"share_id": uuid}}), ("DELETE", f"shares/{uuid}", None)):
        with pytest.raises(Failed) as failed:
            admin.call(method, f"/servers/{uuid}/{path}", body, version="2.97")
        assert failed.value.code == 503
        assert failed.value.response.headers["Retry-After"]
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
