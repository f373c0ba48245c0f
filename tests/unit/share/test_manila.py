"""Requests of conductors to Manila, and the handling of responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nova import context, exception
from nova.conf import CONF, register
from nova.objects.base import new_uuid
from nova.objects.volumes.share import ADDRESS, NFS
from nova.share.manila import ManilaShares
from tests.unit.share.manila_server import ManilaServer

_HERE: dict[str, Any] = {ADDRESS: "10.0.0.11"}


@pytest.fixture
def manila() -> Iterator[ManilaServer]:
    register(CONF)
    server = ManilaServer()
    shares = ManilaShares(None)  # registers the options of its group
    CONF.set_override("endpoint_override", server.url, group="manila")
    CONF.set_override("auth_type", "none", group="manila")
    CONF.set_override("share_apply_policy_timeout", 1, group="manila")
    server.api = shares  # type: ignore[attr-defined]
    yield server
    for option in ("endpoint_override", "auth_type", "share_apply_policy_timeout"):
        CONF.clear_override(option, group="manila")
    server.stop()


def ctx() -> context.RequestContext:
    return context.RequestContext(overwrite=False, user_id="u", project_id="p1", auth_token="its-user")


def api(manila: ManilaServer) -> ManilaShares:
    shares: ManilaShares = manila.api  # type: ignore[attr-defined]
    return shares


def test_share_is_read_with_the_credentials_of_its_user(manila: ManilaServer) -> None:
    share = manila.new()
    result = api(manila).get(ctx(), "p1", share, "h1")
    assert (result.uuid, result.protocol, result.export_location, result.project_id) == (
        share, NFS, "10.0.0.50:/first", "p1")
    assert {(version, token) for _method, _path, version, token in manila.requests} == {("2.82", "its-user")}


@pytest.mark.parametrize(("values", "error"), [
    ({"share_proto": "CEPHFS"}, exception.ShareProtocolUnsupported),
    ({"status": "error"}, exception.ShareStatusIncorrect), ({"locations": []}, exception.Conflict)])
def test_unsupported_or_unavailable_share_is_refused(manila: ManilaServer, values: dict[str, Any],
                                                     error: type[exception.NovaException]) -> None:
    with pytest.raises(error) as raised:
        api(manila).get(ctx(), "p1", manila.new(**values), "h1")
    assert raised.value.code in (400, 409)


def test_share_invisible_to_the_user_is_not_found(manila: ManilaServer) -> None:
    with pytest.raises(exception.ShareNotFound):
        api(manila).get(ctx(), "p1", new_uuid(), "h1")


def test_upper_case_share_id_is_not_found(manila: ManilaServer) -> None:
    """Otherwise a server could attach a share twice with different spellings of its id."""
    with pytest.raises(exception.ShareNotFound):
        api(manila).get(ctx(), "p1", manila.new().upper(), "h1")


@pytest.mark.parametrize("owner", ["p2", None])
def test_public_share_of_another_project_is_not_found(manila: ManilaServer, owner: str | None) -> None:
    share = manila.new(project_id=owner, is_public=True)
    with pytest.raises(exception.ShareNotFound):
        api(manila).get(ctx(), "p1", share, "h1")


def test_share_access_is_granted_once_locked_and_revoked(manila: ManilaServer) -> None:
    share, shares = manila.new(), api(manila)
    manila.applies = 1
    for _ in range(2):
        shares.allow(ctx(), share, "h1", _HERE, "s1")
    rule, = manila.rules.values()
    assert {name: rule[name] for name in (
        "access_type", "access_to", "access_level", "lock_visibility", "lock_deletion", "lock_reason", "state")} == {
        "access_type": "ip", "access_to": "10.0.0.11", "access_level": "rw", "lock_visibility": True,
        "lock_deletion": True, "lock_reason": "Lock by nova for instance s1", "state": "active"}
    assert all(token != "its-user" for _method, _path, _version, token in manila.requests), "uses Nova's credentials"
    shares.deny(ctx(), share, "h1", {ADDRESS: "10.0.0.12"})
    assert len(manila.rules) == 1, "the rule of another host was removed"
    for _ in range(2):
        shares.deny(ctx(), share, "h1", _HERE)
    assert manila.rules == {}


def test_share_access_not_granted_in_time_is_an_error(manila: ManilaServer) -> None:
    share, shares = manila.new(), api(manila)
    manila.applies = 1000
    with pytest.raises(exception.ShareAccessGrantError, match="within"):
        shares.allow(ctx(), share, "h1", _HERE, "s1")
    for rule in manila.rules.values():
        rule["state"] = "error"
    with pytest.raises(exception.ShareAccessGrantError, match="state error"):
        shares.allow(ctx(), share, "h1", _HERE, "s1")
    with pytest.raises(exception.ShareAccessGrantError, match="address"):
        shares.allow(ctx(), share, "h1", {}, "s1")
    with pytest.raises(exception.ShareAccessGrantError):
        shares.allow(ctx(), new_uuid(), "h1", _HERE, "s1")
    shares.deny(ctx(), new_uuid(), "h1", _HERE)  # a missing share needs no revocation


@pytest.mark.parametrize("status", [500, 503, 429])
def test_failing_manila_is_reported_as_unavailable(manila: ManilaServer, status: int) -> None:
    share, shares = manila.new(), api(manila)
    manila.broken = status
    for ask in (lambda: shares.get(ctx(), "p1", share, "h1"), lambda: shares.allow(ctx(), share, "h1", _HERE, "s1"),
                lambda: shares.deny(ctx(), share, "h1", _HERE)):
        with pytest.raises(exception.ShareServiceUnavailable):
            ask()
    manila.broken = 403
    with pytest.raises(exception.ShareAccessRemovalError):
        shares.deny(ctx(), share, "h1", _HERE)
