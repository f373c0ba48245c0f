"""Shares of servers over HTTP, on the fake hypervisor and real directories."""

import json
import os

import pytest
import sqlalchemy as sa

from nova import bus, context, exception
from nova.conductor.background import share_accesses as stale
from nova.conductor.saga import step_executor
from nova.conf import CONF
from nova.db.servers import evictions, servers
from nova.db.sql import clock
from nova.db.volumes import share_accesses, shares
from nova.metadata.settings import MetadataSettings
from nova.metadata.tree import Tree
from nova.objects.base import new_uuid
from nova.objects.volumes.share import Share
from nova.rpcapi.volumes import Shares
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.listening import listen
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import SECOND, newest_action, set_service

VERSION = "2.97"


@pytest.fixture
def books(suite):
    """Return the share API of the conductor, as used by nova-manage."""
    return bus.client(suite.transport, Shares)


@pytest.fixture(autouse=True)
def no_shares_left(suite, books):
    yield
    remove_servers(Client(suite.url))
    for share in books.index(context.admin()):
        books.delete(context.admin(), share.uuid)


def accesses(suite, server):
    return suite.conductor.core.db.read(lambda connection: [
        (access.share_id, access.host, access.leaving) for access in share_accesses.of_instance(connection, server)])


def attach(client, server, share, **values):
    answer = client.post(f"/servers/{server}/shares", {"share": {"share_id": share, **values}}, version=VERSION)
    assert client.answered.status_code == 201
    return answer["share"]


def detach(client, server, share):
    client.delete(f"/servers/{server}/shares/{share}", version=VERSION)
    assert client.answered.status_code == 200


def shares_of(client, server):
    return {item["share_id"]: item for item in client.get(f"/servers/{server}/shares", version=VERSION)["shares"]}


def wait_share(client, server, share, status):
    wait_for(lambda: shares_of(client, server).get(share, {}).get("status") == status,
             reason=f"share {share} is {status}")


def act(client, server, action, status, body=None):
    client.post(f"/servers/{server}/action", {action: body}, expect=202)
    client.wait(server, status)


def refused(call, *args, **values):
    with pytest.raises(Failed) as error:
        call(*args, **values)
    return error.value.code, error.value.message


@pytest.fixture
def server(member, flavor, image_id):
    """Boot a server and stop it."""
    uuid = member.boot(flavor, image_id)
    member.wait(uuid, "ACTIVE")
    act(member, uuid, "os-stop", "SHUTOFF")
    return uuid


@pytest.fixture
def make(suite, books, member, server):
    def make():
        owner = member.server(server)["tenant_id"]
        return books.create(context.admin(), Share(uuid=new_uuid(), project_id=owner, name="data")).uuid

    return make


# --- life cycle ------------------------------------------------------------------------------------------
def test_share_is_attached_used_and_detached(suite, member, server, driver, make):
    share = make()
    assert attach(member, server, share, tag="docs") == {"share_id": share, "status": "attaching", "tag": "docs"}
    wait_share(member, server, share, "inactive")
    assert [access[0] for access in accesses(suite, server)] == [share]
    assert driver.guest(server).shares == ()

    act(member, server, "os-start", "ACTIVE")
    path = os.path.join(CONF.share.pool, share)
    assert driver.guest(server).shares == (("docs", path),)
    assert os.path.isdir(path)
    assert shares_of(member, server) == {share: {"share_id": share, "status": "active", "tag": "docs"}}
    code, message = refused(detach, member, server, share)
    assert (code, "vm_state active" in message) == (409, True)

    act(member, server, "os-stop", "SHUTOFF")
    wait_share(member, server, share, "inactive")
    detach(member, server, share)
    wait_for(lambda: shares_of(member, server) == {})
    wait_for(lambda: accesses(suite, server) == [])
    act(member, server, "os-start", "ACTIVE")
    assert driver.guest(server).shares == ()


def test_share_tag_defaults_to_the_share_id(member, server, make):
    share = make()
    assert attach(member, server, share)["tag"] == share
    wait_share(member, server, share, "inactive")


def test_export_location_is_shown_to_administrators_only(admin, member, server, make):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    path = f"/servers/{server}/shares/{share}"
    assert set(admin.get(path, version=VERSION)["share"]) == {
        "uuid", "share_id", "status", "tag", "export_location"}
    assert set(member.get(path, version=VERSION)["share"]) == {"share_id", "status", "tag"}


# --- refusals --------------------------------------------------------------------------------------------
def test_duplicate_share_or_tag_is_refused(member, server, make):
    first, second = make(), make()
    attach(member, server, first, tag="a")
    wait_share(member, server, first, "inactive")
    assert refused(attach, member, server, first)[0] == 409
    assert refused(attach, member, server, second, tag="a")[0] == 409
    assert refused(attach, member, server, second, tag="x" * 37)[0] == 400
    assert list(shares_of(member, server)) == [first]


def test_shares_that_do_not_exist_return_404(suite, member, server, books):
    nothing = new_uuid()
    others = books.create(context.admin(), Share(uuid=new_uuid(), project_id="somebody-else")).uuid
    assert refused(attach, member, server, nothing)[0] == 404
    assert refused(attach, member, server, others)[0] == 404
    assert refused(detach, member, server, nothing)[0] == 404
    assert refused(member.get, f"/servers/{server}/shares/{nothing}", version=VERSION)[0] == 404
    assert refused(member.get, f"/servers/{nothing}/shares", version=VERSION)[0] == 404
    assert refused(member.get, f"/servers/{server}/shares", version="2.96")[0] == 404
    assert refused(attach, member, server, "no-uuid")[0] == 400


def test_attach_share_to_a_running_server_is_refused(member, server, make):
    act(member, server, "os-start", "ACTIVE")
    code, message = refused(attach, member, server, make())
    assert (code, "vm_state active" in message) == (409, True)


@pytest.mark.parametrize(("action", "body"), [
    ("rebuild", {"imageRef": "11111111-2222-3333-4444-555555555555"}), ("shelve", None), ("suspend", None),
    ("os-migrateLive", {"host": None, "block_migration": "auto"}), ("evacuate", {})])
def test_unsupported_actions_on_a_server_with_shares_are_refused(admin, member, server, make, action, body):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    code, message = refused(admin.post, f"/servers/{server}/action", {action: body})
    assert (code, "while it has shares" in message) == (409, True)


def test_delete_share_in_use_is_refused(member, server, make, books):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    assert refused_by(books.delete, context.admin(), share) == "ShareInUse"


def refused_by(call, *args):
    try:
        call(*args)
    except Exception as error:
        return type(error).__name__
    return None


# --- share accesses --------------------------------------------------------------------------------------
def test_delete_server_revokes_share_access(suite, member, server, make):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    member.delete(f"/servers/{server}")
    wait_for(lambda: accesses(suite, server) == [])


def test_eviction_of_a_guest_disconnects_its_shares_once(suite, member, server, make,
                                                                                 monkeypatch):
    share, let_go = make(), []
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    db, host = suite.conductor.core.db, suite.compute.host
    monkeypatch.setattr(suite.compute.machine.shares, "disconnect_guest", let_go.append)
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    let_go.clear()
    db.write(lambda connection: evictions.add(connection, server, host, False))
    suite.compute.reconciler.compare()
    assert let_go.count(server) == 1  # Guests of other tests may be removed at the same time.


def test_share_whose_access_grant_fails_is_in_error_and_can_be_detached(suite, member, server, make, books,
                                                                         monkeypatch):
    share = make()
    def fails(*_args):
        raise exception.ShareAccessGrantError(share_id=share, reason="no")

    monkeypatch.setattr(type(suite.conductor.core.shares), "allow", fails)
    attach(member, server, share)
    wait_share(member, server, share, "error")
    assert accesses(suite, server) == []
    act(member, server, "os-start", "ACTIVE")  # The guest starts without the share.
    act(member, server, "os-stop", "SHUTOFF")
    detach(member, server, share)
    wait_for(lambda: shares_of(member, server) == {})


def test_stale_share_accesses_are_revoked(suite, member, server, make):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    core, other = suite.conductor.core, new_uuid()
    core.db.write(lambda connection: share_accesses.want(connection, other, "elsewhere", server))
    core.db.write(lambda connection: share_accesses.want(connection, share, "elsewhere", server))
    assert len(accesses(suite, server)) == 3
    wait_for(lambda: (stale.reconcile(core), len(accesses(suite, server)))[1] == 1, 20)
    assert accesses(suite, server)[0][0] == share


# --- moves -----------------------------------------------------------------------------------------------
def test_share_accesses_left_by_the_previous_release_are_revoked(suite, member, server, make):
    """Check accesses that the previous release leaves, as it deletes servers without their accesses."""
    first, second = make(), make()
    for share in (first, second):
        attach(member, server, share)
        wait_share(member, server, share, "inactive")
    left = accesses(suite, server)
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    core, attached_at = suite.conductor.core, clock.after(-60)
    for share, host, *_rest in left:
        core.db.write(lambda connection, share=share, host=host: share_accesses.want(connection, share, host, server))
    core.db.write(lambda connection: connection.execute(sa.update(share_accesses.TABLE).where(
        share_accesses.TABLE.c.instance_uuid == server).values(updated_at=attached_at)))
    wait_for(lambda: accesses(suite, server) == [], 20)


@pytest.fixture
def on_all_hosts(monkeypatch):
    CONF.set_override("shared", True, "share")
    yield
    CONF.clear_override("shared", "share")


@pytest.fixture
def moving(suite, admin, pair, books, on_all_hosts):
    """Boot a server with a share on the first of two hosts; return the ids of both."""
    server = pair.boot()
    act(admin, server, "os-stop", "SHUTOFF")
    share = books.create(context.admin(), Share(
        uuid=new_uuid(), project_id=admin.server(server)["tenant_id"])).uuid
    attach(admin, server, share)
    wait_share(admin, server, share, "inactive")
    act(admin, server, "os-start", "ACTIVE")
    return server, share


def hosts_of(suite, server):
    return sorted(host for _share, host, _leaving in accesses(suite, server))


def test_cold_migration_moves_share_access_to_the_new_host(suite, admin, pair, moving):
    server, share = moving
    admin.action(server, "migrate", expect=202)
    admin.wait(server, "VERIFY_RESIZE")
    assert hosts_of(suite, server) == sorted([pair.first.host, SECOND])
    path = os.path.join(CONF.share.pool, share)
    assert pair.second.machine.driver.guest(server).shares == ((share, path),)
    admin.action(server, "confirmResize", expect=204)
    admin.wait(server, "ACTIVE")
    admin.wait_idle(server)
    assert hosts_of(suite, server) == [SECOND]


def test_reverted_migration_keeps_share_access_on_the_source_only(suite, admin, pair, moving):
    server, share = moving
    admin.action(server, "migrate", expect=202)
    admin.wait(server, "VERIFY_RESIZE")
    admin.action(server, "revertResize", expect=202)
    admin.wait(server, "ACTIVE")
    admin.wait_idle(server)
    assert hosts_of(suite, server) == [pair.first.host]
    assert [tag for tag, _path in pair.first.machine.driver.guest(server).shares] == [share]


def test_failed_migration_revokes_share_access_on_the_destination(suite, admin, pair, moving):
    server, share = moving
    pair.second.machine.driver.behaviour.failure["finish_move"] = 1.0
    admin.action(server, "migrate", expect=202)
    wait_for(lambda: newest_action(admin, server, "migrate")["message"] == "Error", 30)
    admin.wait_idle(server)
    assert hosts_of(suite, server) == [pair.first.host]
    assert admin.server(server)["status"] == "ACTIVE"
    assert [tag for tag, _path in pair.first.machine.driver.guest(server).shares] == [share]


def test_server_with_a_host_local_share_is_not_migrated(suite, admin, pair, moving):
    server, _share = moving
    CONF.set_override("shared", False, "share")
    core = suite.conductor.core
    core.db.write(lambda connection: shares.bind(connection, _share, pair.first.host, False))
    admin.action(server, "migrate", expect=202)
    wait_for(lambda: newest_action(admin, server, "migrate")["message"] == "Error", 30)
    admin.wait_idle(server)
    assert hosts_of(suite, server) == [pair.first.host]
    other = admin.boot(pair.flavor, pair.image_id, availability_zone=f"nova:{SECOND}")
    admin.wait(other, "ACTIVE")
    act(admin, other, "os-stop", "SHUTOFF")
    assert refused(attach, admin, other, _share)[0] == 409


def test_detach_share_from_a_server_on_a_failed_host_and_evacuate(suite, admin, pair, moving):
    server, share = moving
    assert refused(detach, admin, server, share)[0] == 409
    set_service(admin, pair.first.host, forced_down=True)
    try:
        assert refused(admin.action, server, "evacuate", {})[0] == 409
        admin.action(server, "os-resetState", {"state": "error"}, expect=202)
        admin.wait(server, "ERROR")
        admin.wait_idle(server)
        detach(admin, server, share)
        wait_for(lambda: shares_of(admin, server) == {}, 30)
        admin.wait_idle(server)
        assert hosts_of(suite, server) == []
        admin.action(server, "evacuate", {})
        assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == SECOND
    finally:
        pair.first.reconciler.compare()  # The host is up again: evacuated guests are removed.
        set_service(admin, pair.first.host, forced_down=False)


def test_share_access_is_revoked_with_the_last_server_on_a_host(suite, member, server, make, flavor, image_id):
    share = make()
    other = member.boot(flavor, image_id)
    member.wait(other, "ACTIVE")
    act(member, other, "os-stop", "SHUTOFF")
    for uuid in (server, other):
        attach(member, uuid, share)
        wait_share(member, uuid, share, "inactive")
    denied = []
    service = suite.conductor.core.shares
    service.deny = lambda ctx, share_id, host, connector: denied.append(share_id)
    try:
        detach(member, server, share)
        wait_for(lambda: accesses(suite, server) == [])
        assert denied == []
        detach(member, other, share)
        wait_for(lambda: accesses(suite, other) == [])
        assert denied == [share]
    finally:
        del service.deny


# --- notifications, metadata and costs -------------------------------------------------------------------
def test_share_service_outage_does_not_block_delete_and_is_retried(suite, member, server, make, monkeypatch):
    monkeypatch.setattr(step_executor, "MAX_TRIES", 1)
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    service = suite.conductor.core.shares

    def away(*_args):
        raise exception.ShareServiceUnavailable(reason="it is away")

    service.deny = away
    try:
        member.delete(f"/servers/{server}")
        member.wait_gone(server, 60)
        assert [access[0] for access in accesses(suite, server)] == [share]
    finally:
        del service.deny
    wait_for(lambda: accesses(suite, server) == [], 60)


@pytest.fixture
def refusing(suite):
    """Make the share service refuse all revocations."""
    service = suite.conductor.core.shares

    def refuses(_ctx, share_id, *_args):
        raise exception.ShareAccessRemovalError(share_id=share_id, reason="the share is in error")

    service.deny = refuses
    yield
    if "deny" in vars(service):
        del service.deny


def test_refused_share_access_revocation_does_not_block_delete(
        suite, member, server, make, refusing):
    first, second = make(), make()
    for share in (first, second):
        attach(member, server, share)
        wait_share(member, server, share, "inactive")
    member.delete(f"/servers/{server}")
    member.wait_gone(server, 60)
    assert [access[2] for access in accesses(suite, server)] == [True, True]
    del suite.conductor.core.shares.deny
    wait_for(lambda: (stale.reconcile(suite.conductor.core), accesses(suite, server))[1] == [], 20)


@pytest.mark.parametrize(("word", "code"), [("confirmResize", 204), ("revertResize", 202)])
def test_refused_share_access_revocation_does_not_block_a_move(
        suite, admin, pair, moving, refusing, word, code):
    server, _share = moving
    admin.action(server, "migrate", expect=202)
    admin.wait(server, "VERIFY_RESIZE")
    admin.action(server, word, expect=code)
    admin.wait(server, "ACTIVE")
    admin.wait_idle(server)
    assert newest_action(admin, server, word)["message"] is None
    assert sorted(access[2] for access in accesses(suite, server)) == [False, True]
    del suite.conductor.core.shares.deny
    wait_for(lambda: (stale.reconcile(suite.conductor.core), len(accesses(suite, server)))[1] == 1, 20)


def test_share_notifications_are_sent(suite, admin, member, server, make):
    share = make()
    CONF.set_override("include_share_mapping", True, "notifications")
    try:
        with listen(suite) as listener:
            attach(member, server, share, tag="docs")
            told = listener.wait(server, "share_attach.end")
            assert told["share_id"] == share
            wait_share(member, server, share, "inactive")
            act(member, server, "os-start", "ACTIVE")
            shown = listener.wait(server, "power_on.end")["shares"]
            data = shown[0]["nova_object.data"]
            assert (shown[0]["nova_object.name"], data["share_id"], data["status"], data["tag"]) == (
                "SharePayload", share, "active", "docs")
            act(member, server, "os-stop", "SHUTOFF")
            detach(member, server, share)
            assert listener.wait(server, "share_detach.end")["share_id"] == share
            by = {message["publisher_id"] for message in listener.of(server) if "share_" in message["event_type"]}
            assert by == {f"nova-api:{suite.compute.host}"}
    finally:
        CONF.clear_override("include_share_mapping", "notifications")


def test_guest_metadata_lists_attached_shares(suite, member, server, make):
    share = make()
    attach(member, server, share, tag="docs")
    wait_share(member, server, share, "inactive")
    act(member, server, "os-start", "ACTIVE")
    instance = suite.conductor.core.db.read(lambda connection: servers.get(connection, server))
    told = {"type": "share", "share_id": share, "tag": "docs", "bus": "pci", "address": "0000:00:03.0"}
    tree = Tree(instance, MetadataSettings())

    def devices(version):
        return json.loads(tree.lookup(f"/openstack/{version}/meta_data.json").body)["devices"]

    assert devices("2025-04-04") == devices("latest") == [told]
    assert devices("2020-10-14") == []


def test_start_with_a_share_costs_the_same_as_without(suite, member, server, make):
    share = make()
    counted = {}
    for with_share in (False, True):
        if with_share:
            attach(member, server, share)
            wait_share(member, server, share, "inactive")
            member.wait_idle(server)
        _answer, messages, statements = measured(suite, member, lambda: member.post(
            f"/servers/{server}/action", {"os-start": None}, expect=202))
        counted[with_share] = (sum(messages.values()), len(statements))
        assert min(counted[with_share]) > 2
        member.wait(server, "ACTIVE")
        act(member, server, "os-stop", "SHUTOFF")
    assert counted[False] == counted[True]
    detach(member, server, share)
    wait_for(lambda: shares_of(member, server) == {})
    member.wait_idle(server)
    _answer, _messages, statements = measured(suite, member, lambda: member.delete(f"/servers/{server}"))
    assert not [statement for statement in statements if "share_accesses" in str(statement)]
