"""The books of shares: whose they are, where their directories are, and which hosts may reach them for whom."""

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


# --- whose they are ------------------------------------------------------------------------------------
def test_a_share_is_listed_for_its_project_newest_first_and_made_once(core: Books) -> None:
    first, second, other = made(core), made(core), made(core, "p2")
    assert Shares(core).create(ctx(), first).id == first.id
    assert [share.uuid for share in Shares(core).index(ctx(), "p1")] == [second.uuid, first.uuid]
    assert [share.uuid for share in Shares(core).index(ctx(), None, 1, 1)] == [second.uuid]
    with pytest.raises(exception.ShareNotFound):
        Shares(core).get(ctx(), other.uuid, "p1")


def test_a_share_that_a_server_has_is_not_deleted(core: Books) -> None:
    share = made(core)
    assert want(core, share.uuid, "h1", "s1")
    with pytest.raises(exception.ShareInUse, match="s1"):
        Shares(core).delete(ctx(), share.uuid)
    assert leave(core, share.uuid, "h1", "s1")
    gone(core, share.uuid, "h1", "s1")
    assert Shares(core).delete(ctx(), share.uuid).uuid == share.uuid
    with pytest.raises(exception.ShareNotFound):
        Shares(core).delete(ctx(), share.uuid)


def test_a_directory_belongs_to_the_first_host_unless_all_have_the_same(core: Books) -> None:
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
def test_the_last_server_of_a_host_takes_the_access_away(core: Books) -> None:
    assert want(core, "x", "h1", "s1")
    assert want(core, "x", "h1", "s1")
    assert want(core, "x", "h1", "s2")
    assert want(core, "x", "h2", "s1")
    assert not leave(core, "x", "h1", "s1"), "the other one needs it"
    assert not leave(core, "x", "h1", "s1")
    assert leave(core, "x", "h1", "s2")
    assert reaching(core, "s2") == [("h1", True)]
    gone(core, "x", "h1", "s2")
    assert (reaching(core, "s1"), reaching(core, "s2")) == ([("h2", False)], [])


def test_who_wants_an_access_that_is_being_taken_away_waits_and_its_own_server_does_not(core: Books) -> None:
    want(core, "x", "h1", "s1")
    assert leave(core, "x", "h1", "s1")
    assert not want(core, "x", "h1", "s2")
    assert reaching(core, "s2") == []
    assert want(core, "x", "h1", "s1")
    assert want(core, "x", "h1", "s2")
    gone(core, "x", "h1", "s1")
    assert reaching(core, "s1") == [("h1", False)], "it is needed again"


def test_servers_that_somebody_is_at_are_not_looked_at(core: Books) -> None:
    free, held, unknown = server(core), server(core), new_uuid()
    core.db.write(lambda connection: servers.update(connection, held.uuid, {"action_uuid": "a"}))
    for each in (free.uuid, held.uuid, unknown):
        want(core, "x", "h1", each)
        want(core, "y", "h1", each)

    def found(after: str = "", limit: int = 10) -> list[str]:
        return core.db.read(lambda connection: share_accesses.at_rest(connection, utcnow(), after, limit))

    assert found() == sorted([free.uuid, unknown])
    assert found(found(limit=1)[0]) == found()[1:]


# --- at the service ------------------------------------------------------------------------------------
class Asked(EmbeddedShares):
    """Records of requests to the service; ``meanwhile`` is called once during a revocation."""

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
    """Attach the share as an operation that just started."""
    core.db.write(lambda connection: servers.update(connection, instance.uuid, {"shares": [mapping(share)]}))
    ConductorControl(core, ctx(), instance).outside_shares.allow("h1", 0, share)


def test_what_a_server_is_given_while_somebody_looks_for_stale_accesses_stays(core: Books, service: Asked) -> None:
    share = made(core).uuid
    seen = server(core, host="h1")  # as whoever looks has read it
    give(core, seen, share)
    settle(core, seen)
    assert (reaching(core, seen.uuid), service.verbs) == ([("h1", False)], ["allow"])


def test_what_a_server_is_given_while_its_former_access_is_taken_away_is_given_once_more(
        core: Books, service: Asked) -> None:
    share, instance = made(core).uuid, server(core, host="h1")
    want(core, share, "h1", instance.uuid)
    service.meanwhile = lambda: give(core, instance, share)
    settle(core, instance)
    assert (reaching(core, instance.uuid), service.verbs) == ([("h1", False)], ["deny", "allow", "allow"])


def test_what_was_to_be_taken_away_and_is_needed_is_given_once_more(core: Books, service: Asked) -> None:
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


def test_books_that_agree_are_in_order(core: Books) -> None:
    instance = having(core, mapping("x"), mapping("y", status="error"))
    want(core, "x", "h1", instance.uuid)
    assert findings(core) == []


def test_what_is_missing_in_vain_or_forgotten_is_found(core: Books) -> None:
    closed, busy, elsewhere = having(core, mapping("x")), having(core, mapping("x", status=ATTACHING)), having(core)
    want(core, "x", "h1", busy.uuid)
    want(core, "x", "h2", elsewhere.uuid)
    found = findings(core)
    assert len(found) == 3
    assert any(closed.uuid in each and "may not reach" in each for each in found)
    assert any(busy.uuid in each and "nobody is at it" in each for each in found)
    assert any(elsewhere.uuid in each and "in vain" in each for each in found)
    for each in (closed, busy, elsewhere):
        core.db.write(lambda connection, uuid=each.uuid: servers.update(connection, uuid, {"action_uuid": "a"}))
    assert findings(core) == []
