"""Shares of servers over HTTP, on the fake hypervisor and real directories."""

import os

import pytest

from nova import bus, context
from nova.conductor.background import share_accesses as stale
from nova.conf import CONF
from nova.db import share_accesses
from nova.objects.base import new_uuid
from nova.objects.share import Share
from nova.rpcapi.shares import Shares
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_servers

VERSION = "2.97"


@pytest.fixture
def books(suite):
    """The conductor's shares, as nova-manage sees them."""
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
             reason=f"share {share} is not {status}")


def act(client, server, action, status, body=None):
    client.post(f"/servers/{server}/action", {action: body}, expect=202)
    client.wait(server, status)


def refused(call, *args, **values):
    with pytest.raises(Failed) as error:
        call(*args, **values)
    return error.value.code, error.value.message


@pytest.fixture
def server(member, flavor, image_id):
    """A server that is off."""
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


# --- life ------------------------------------------------------------------------------------------------
def test_a_share_is_given_used_and_taken_away(suite, member, server, driver, make):
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


def test_the_tag_is_the_id_unless_one_is_given(member, server, make):
    share = make()
    assert attach(member, server, share)["tag"] == share
    wait_share(member, server, share, "inactive")


def test_administrators_see_where_it_is(admin, member, server, make):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    path = f"/servers/{server}/shares/{share}"
    assert set(admin.get(path, version=VERSION)["share"]) == {
        "uuid", "share_id", "status", "tag", "export_location"}
    assert set(member.get(path, version=VERSION)["share"]) == {"share_id", "status", "tag"}


# --- refusals --------------------------------------------------------------------------------------------
def test_a_share_is_given_once_and_a_tag_too(member, server, make):
    first, second = make(), make()
    attach(member, server, first, tag="a")
    wait_share(member, server, first, "inactive")
    assert refused(attach, member, server, first)[0] == 409
    assert refused(attach, member, server, second, tag="a")[0] == 409
    assert refused(attach, member, server, second, tag="x" * 37)[0] == 400
    assert list(shares_of(member, server)) == [first]


def test_what_is_not_there_is_not_found(suite, member, server, books):
    nothing = new_uuid()
    others = books.create(context.admin(), Share(uuid=new_uuid(), project_id="somebody-else")).uuid
    assert refused(attach, member, server, nothing)[0] == 404
    assert refused(attach, member, server, others)[0] == 404
    assert refused(detach, member, server, nothing)[0] == 404
    assert refused(member.get, f"/servers/{server}/shares/{nothing}", version=VERSION)[0] == 404
    assert refused(member.get, f"/servers/{nothing}/shares", version=VERSION)[0] == 404
    assert refused(member.get, f"/servers/{server}/shares", version="2.96")[0] == 404
    assert refused(attach, member, server, "no-uuid")[0] == 400


def test_a_server_that_runs_gets_none(member, server, make):
    act(member, server, "os-start", "ACTIVE")
    code, message = refused(attach, member, server, make())
    assert (code, "vm_state active" in message) == (409, True)


@pytest.mark.parametrize(("action", "body"), [
    ("rebuild", {"imageRef": "11111111-2222-3333-4444-555555555555"}), ("shelve", None), ("suspend", None),
    ("os-migrateLive", {"host": None, "block_migration": "auto"}), ("evacuate", {})])
def test_what_cannot_be_done_with_shares_is_refused(admin, member, server, make, action, body):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    code, message = refused(admin.post, f"/servers/{server}/action", {action: body})
    assert (code, "while it has shares" in message) == (409, True)


def test_a_share_that_a_server_has_stays(member, server, make, books):
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


# --- what becomes of the accesses ----------------------------------------------------------------------------
def test_a_deleted_server_has_no_access(suite, member, server, make):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    member.delete(f"/servers/{server}")
    wait_for(lambda: accesses(suite, server) == [])


def test_a_share_that_cannot_be_opened_is_an_error_and_can_be_taken_away(suite, member, server, make, books,
                                                                         monkeypatch):
    share = make()
    from nova import exception

    def fails(*_args):
        raise exception.ShareAccessGrantError(share_id=share, reason="no")

    monkeypatch.setattr(type(suite.conductor.core.shares), "allow", fails)
    attach(member, server, share)
    wait_share(member, server, share, "error")
    assert accesses(suite, server) == []
    act(member, server, "os-start", "ACTIVE")  # without it
    act(member, server, "os-stop", "SHUTOFF")
    detach(member, server, share)
    wait_for(lambda: shares_of(member, server) == {})


def test_stale_accesses_are_taken_away(suite, member, server, make):
    share = make()
    attach(member, server, share)
    wait_share(member, server, share, "inactive")
    core, other = suite.conductor.core, new_uuid()
    core.db.write(lambda connection: share_accesses.want(connection, other, "elsewhere", server))
    core.db.write(lambda connection: share_accesses.want(connection, share, "elsewhere", server))
    assert len(accesses(suite, server)) == 3
    wait_for(lambda: (stale.reconcile(core), len(accesses(suite, server)))[1] == 1, 20)
    assert accesses(suite, server)[0][0] == share
