"""Records of shares: project, host of the directory, and accesses of hosts on behalf of servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nova import exception
from nova.conductor.endpoints.volumes import Shares
from nova.conductor.resources.shares import EmbeddedShares
from nova.conductor.saga.control import ConductorControl
from nova.db import audit
from nova.db.servers import servers
from nova.db.volumes import share_accesses, shares
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.instance import Instance
from nova.objects.volumes.share import ATTACHING, INACTIVE, Share, ShareMapping
from tests.unit.conductor.books import Books, ctx, server


def made(core: Books, project: str = "p1") -> Share:
    return Shares(core).create(ctx(), Share(uuid=new_uuid(), project_id=project, name="docs"))


def want(core: Books, share: str, host: str, instance: str) -> bool:
    return core.db.write(lambda connection: share_accesses.want(connection, share, host, instance))


def leave(core: Books, share: str, host: str, instance: str) -> bool:
    return core.db.write(lambda connection: share_accesses.leave(connection, share, host, instance))


def gone(core: Books, share: str, host: str, instance: str) -> None:
    core.db.write(lambda connection: share_accesses.removed(connection, share, host, instance))


def reaching(core: Books, instance: str) -> list[tuple[str, bool]]:
    return core.db.read(lambda connection: [
        (access.host, access.leaving) for access in share_accesses.of_instance(connection, instance)])


# --- ownership -----------------------------------------------------------------------------------------
def test_share_is_listed_for_its_project_and_created_once(core: Books) -> None:
    first, second, other = made(core), made(core), made(core, "p2")
    assert Shares(core).create(ctx(), first).id == first.id
    assert [share.uuid for share in Shares(core).index(ctx(), "p1")] == [second.uuid, first.uuid]
    assert [share.uuid for share in Shares(core).index(ctx(), None, 1, 1)] == [second.uuid]
    with pytest.raises(exception.ShareNotFound):
        Shares(core).get(ctx(), other.uuid, "p1")


def test_share_in_use_cannot_be_deleted(core: Books) -> None:
    share = made(core)
    assert want(core, share.uuid, "h1", "s1")
    with pytest.raises(exception.ShareInUse, match="s1"):
        Shares(core).delete(ctx(), share.uuid)
    assert leave(core, share.uuid, "h1", "s1")
    gone(core, share.uuid, "h1", "s1")
    assert Shares(core).delete(ctx(), share.uuid).uuid == share.uuid
    with pytest.raises(exception.ShareNotFound):
        Shares(core).delete(ctx(), share.uuid)


def test_share_directory_is_bound_to_the_first_host_unless_shared(core: Books) -> None:
    share = made(core)

    def bind(host: str, everywhere: bool = False) -> None:
        core.db.write(lambda connection: shares.bind(connection, share.uuid, host, everywhere))

    bind("h1", everywhere=True)
    assert Shares(core).get(ctx(), share.uuid).host is None
    bind("h1")
    bind("h1")
    with pytest.raises(exception.ShareUnusable, match="h1"):
        bind("h2")
    bind("h2", everywhere=True)
    assert Shares(core).get(ctx(), share.uuid).host == "h1"


# --- accesses ------------------------------------------------------------------------------------------
def test_share_access_is_revoked_with_the_last_server_of_the_host(core: Books) -> None:
    assert want(core, "x", "h1", "s1")
    assert want(core, "x", "h1", "s1")
    assert want(core, "x", "h1", "s2")
    assert want(core, "x", "h2", "s1")
    assert not leave(core, "x", "h1", "s1"), "server s2 still needs the access"
    assert not leave(core, "x", "h1", "s1")
    assert leave(core, "x", "h1", "s2")
    assert reaching(core, "s2") == [("h1", True)]
    gone(core, "x", "h1", "s2")
    assert (reaching(core, "s1"), reaching(core, "s2")) == ([("h2", False)], [])


def test_share_access_waits_for_a_running_revocation(core: Books) -> None:
    want(core, "x", "h1", "s1")
    assert leave(core, "x", "h1", "s1")
    assert not want(core, "x", "h1", "s2")
    assert reaching(core, "s2") == []
    assert want(core, "x", "h1", "s1")
    assert want(core, "x", "h1", "s2")
    gone(core, "x", "h1", "s1")
    assert reaching(core, "s1") == [("h1", False)], "an access that is needed again was removed"


def test_busy_servers_are_skipped_by_share_reconciliation(core: Books) -> None:
    free, held, unknown = server(core), server(core), new_uuid()
    core.db.write(lambda connection: servers.update(connection, held.uuid, {"action_uuid": "a"}))
    for each in (free.uuid, held.uuid, unknown):
        want(core, "x", "h1", each)
        want(core, "y", "h1", each)

    def found(after: str = "", limit: int = 10) -> list[str]:
        return core.db.read(lambda connection: share_accesses.at_rest(connection, utcnow(), after, limit))

    assert found() == sorted([free.uuid, unknown])
    assert found(found(limit=1)[0]) == found()[1:]


# --- service requests ----------------------------------------------------------------------------------
class Asked(EmbeddedShares):
    """A share service that records requests; ``meanwhile`` is called once during a revocation."""

    def __init__(self, core: Books) -> None:
        super().__init__(core.db)
        self.verbs: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def allow(self, *args: Any) -> None:
        super().allow(*args)
        self.verbs.append("allow")

    def deny(self, *args: Any) -> None:
        super().deny(*args)
        self.verbs.append("deny")
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


@pytest.fixture
def service(core: Books, monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked(core)
    monkeypatch.setitem(core.__dict__, "shares", found)
    return found


def settle(core: Books, instance: Instance) -> None:
    ConductorControl(core, ctx(), instance).outside_shares.reconcile()


def give(core: Books, instance: Instance, share: str) -> None:
    """Attach the share to the server in the same way as an operation that has just started."""
    core.db.write(lambda connection: servers.update(connection, instance.uuid, {"shares": [mapping(share)]}))
    ConductorControl(core, ctx(), instance).outside_shares.allow("h1", 0, share)


def test_share_access_granted_during_reconciliation_is_kept(core: Books, service: Asked) -> None:
    share = made(core).uuid
    seen = server(core, host="h1")  # the row as read before the reconciliation
    give(core, seen, share)
    settle(core, seen)
    assert (reaching(core, seen.uuid), service.verbs) == ([("h1", False)], ["allow"])


def test_share_access_granted_during_its_revocation_is_granted_again(core: Books, service: Asked) -> None:
    share, instance = made(core).uuid, server(core, host="h1")
    want(core, share, "h1", instance.uuid)
    service.meanwhile = lambda: give(core, instance, share)
    settle(core, instance)
    assert (reaching(core, instance.uuid), service.verbs) == ([("h1", False)], ["deny", "allow", "allow"])


def test_share_access_still_needed_is_granted_again(core: Books, service: Asked) -> None:
    share = made(core).uuid
    instance = having(core, mapping(share))
    want(core, share, "h1", instance.uuid)
    assert leave(core, share, "h1", instance.uuid)
    settle(core, instance)
    assert (reaching(core, instance.uuid), service.verbs) == ([("h1", False)], ["allow"])


# --- the audit -----------------------------------------------------------------------------------------
def mapping(share: str, **values: Any) -> ShareMapping:
    return ShareMapping(**{"uuid": new_uuid(), "share_id": share, "tag": share, "status": INACTIVE, **values})


def findings(core: Books) -> list[str]:
    return [str(finding) for finding in audit.audit(core.db) if finding.kind == "share"]


def having(core: Books, *mappings: ShareMapping) -> Instance:
    return server(core, host="h1", shares=list(mappings))


def test_audit_accepts_consistent_share_accesses(core: Books) -> None:
    instance = having(core, mapping("x"), mapping("y", status="error"))
    want(core, "x", "h1", instance.uuid)
    assert findings(core) == []


def test_audit_reports_missing_and_unneeded_share_accesses(core: Books) -> None:
    closed, busy, elsewhere = having(core, mapping("x")), having(core, mapping("x", status=ATTACHING)), having(core)
    want(core, "x", "h1", busy.uuid)
    want(core, "x", "h2", elsewhere.uuid)
    found = findings(core)
    assert len(found) == 3
    assert any(closed.uuid in each and "has no access to share x" in each for each in found)
    assert any(busy.uuid in each and "but no operation runs" in each for each in found)
    assert any(elsewhere.uuid in each and "has access to share x without need" in each for each in found)
    for each in (closed, busy, elsewhere):
        core.db.write(lambda connection, uuid=each.uuid: servers.update(connection, uuid, {"action_uuid": "a"}))
    assert findings(core) == []
