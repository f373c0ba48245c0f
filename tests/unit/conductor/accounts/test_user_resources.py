"""Key pairs and server groups."""

from __future__ import annotations

import threading

import pytest

from nova import exception
from nova.conductor.endpoints.accounts import Keypairs, Quotas
from nova.conductor.endpoints.servers import ServerGroups
from nova.db.servers import servers
from nova.objects.accounts.keypair import Keypair
from nova.objects.base import new_uuid
from nova.objects.servers.server_group import ServerGroup
from tests.unit.conductor.books import Books, ctx, server


def _key(name: str, user: str = "u1") -> Keypair:
    return Keypair(user_id=user, name=name, public_key="ssh-ed25519 AAAA " + name, fingerprint="aa:bb")


def _group(project: str = "p1", user: str = "u1", **changes: object) -> ServerGroup:
    return ServerGroup(**{"uuid": "", "name": "g", "project_id": project, "user_id": user,  # type: ignore[arg-type]
                          "policy": "anti-affinity", "rules": {"max_server_per_host": 2}, **changes})


# --- key pairs -------------------------------------------------------------------------------
def test_keypair_is_visible_only_to_its_user(core: Books) -> None:
    keypairs = Keypairs(core)
    made = keypairs.create(ctx(), _key("mine"))
    assert made.created_at is not None
    assert keypairs.get(ctx(), "u1", "mine") == made
    for call in (lambda: keypairs.get(ctx(), "u2", "mine"), lambda: keypairs.get(ctx(), "u1", "MINE"),
                 lambda: keypairs.delete(ctx(), "u2", "mine")):
        with pytest.raises(exception.KeypairNotFound):
            call()
    keypairs.create(ctx(), _key("mine", "u2"))
    with pytest.raises(exception.KeyPairExists, match="Key pair 'mine' already exists"):
        keypairs.create(ctx(), _key("mine"))
    keypairs.delete(ctx(), "u1", "mine")
    assert [one.user_id for one in keypairs.index(ctx(), "u2")] == ["u2"]
    assert keypairs.index(ctx(), "u1") == []


def test_keypair_pages_follow_a_marker(core: Books) -> None:
    keypairs = Keypairs(core)
    for name in ("c", "a", "B", "b"):
        keypairs.create(ctx(), _key(name))
    everything = [one.name for one in keypairs.index(ctx(), "u1")]
    assert sorted(everything) == ["B", "a", "b", "c"]
    paged: list[str] = []
    while page := keypairs.index(ctx(), "u1", 3, paged[-1] if paged else None):
        paged += [one.name for one in page]
    assert paged == everything
    with pytest.raises(exception.MarkerNotFound, match=r"Marker gone could not be found\."):
        keypairs.index(ctx(), "u1", marker="gone")


def test_keypair_quota_holds_for_concurrent_requests(core: Books) -> None:
    keypairs = Keypairs(core)
    Quotas(core).set(ctx(), "p1", {"key_pairs": 3})
    refused: list[Exception] = []

    def create(name: str) -> None:
        try:
            keypairs.create(ctx(), _key(name))
        except Exception as error:
            refused.append(error)

    threads = [threading.Thread(target=create, args=(f"k{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [str(error) for error in refused] == ["Quota exceeded, too many key pairs."] * 3
    assert len(keypairs.index(ctx(), "u1")) == 3
    keypairs.create(ctx(user="u2"), _key("other", "u2"))


# --- server groups ---------------------------------------------------------------------------
def test_server_group_members_exclude_deleted_servers(core: Books) -> None:
    groups = ServerGroups(core)
    made = groups.create(ctx(), _group())
    assert (made.policy, made.rules, made.members) == ("anti-affinity", {"max_server_per_host": 2}, [])
    one, two = server(core, server_group=made.uuid), server(core, server_group=made.uuid)
    core.db.write(lambda connection: servers.update(connection, two.uuid, {"deleted": True}))
    assert groups.get(ctx(), made.uuid).members == [one.uuid]
    groups.delete(ctx(), made.uuid)
    with pytest.raises(exception.ServerGroupNotFound):
        groups.get(ctx(), made.uuid)


def test_server_group_of_another_project_is_not_found(core: Books) -> None:
    groups = ServerGroups(core)
    made = groups.create(ctx(), _group())
    assert groups.get(ctx(), made.uuid, "p1").uuid == made.uuid
    for call in (lambda: groups.get(ctx(), made.uuid, "p2"), lambda: groups.delete(ctx(), made.uuid, "p2"),
                 lambda: groups.delete(ctx(), new_uuid())):
        with pytest.raises(exception.ServerGroupNotFound):
            call()
    assert groups.index(ctx(), "p2") == []


def test_server_group_list_is_paged_and_takes_two_statements(core: Books) -> None:
    groups = ServerGroups(core)
    made = [groups.create(ctx(), _group(project)).uuid for project in ("p1", "p1", "p2", "p1")]
    assert [one.uuid for one in groups.index(ctx(), None)] == made
    assert [one.uuid for one in groups.index(ctx(), "p1", 2, 1)] == [made[1], made[3]]
    assert [one.uuid for one in groups.index(ctx(), "p1", None, 1)] == [made[1], made[3]]
    core.statements()
    groups.index(ctx(), None)
    assert len(core.statements()) == 2


def test_server_group_quota_applies_to_project_and_user(core: Books) -> None:
    groups, quotas = ServerGroups(core), Quotas(core)
    quotas.set(ctx(), "p1", {"server_groups": 2})
    quotas.set(ctx(), "p1", {"server_groups": 1}, user_id="u1")
    groups.create(ctx(), _group())
    with pytest.raises(exception.QuotaLimit, match=r"Quota exceeded, too many server groups\."):
        groups.create(ctx(), _group())
    groups.create(ctx(), _group(user="u2"))
    with pytest.raises(exception.QuotaLimit):
        groups.create(ctx(), _group(user="u3"))
    groups.create(ctx(), _group("p2", "u1"))
