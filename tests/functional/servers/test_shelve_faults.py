"""Shelving during image service outages, host failures and state resets."""

import threading

import pytest

from nova import bus, context, exception
from nova.conductor.saga import step_executor
from nova.db.servers import evictions
from nova.image.directory import DirectoryStore
from nova.objects.servers.guest import password_items
from nova.rpcapi.by_hosts import Guests
from tests.functional.client import wait_for
from tests.functional.servers.test_shelve import images, kept, nothing_left, server, shelved_image  # noqa: F401
from tests.functional.several_hosts import SECOND, events_of, refused, set_service, wait_scheduler


def evicted_from(suite, uuid):
    return suite.conductor.core.db.read(lambda connection: evictions.hosts(connection, uuid))


def test_leftover_shelved_image_is_deleted_at_the_next_shelve(admin, server, monkeypatch, nothing_left):  # noqa: F811
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    with monkeypatch.context() as patch:
        def broken(*_args, **_more):
            raise RuntimeError("no")

        patch.setattr(DirectoryStore, "delete", broken)
        admin.action(server, "unshelve")
        admin.wait(server, "ACTIVE")
        admin.wait_idle(server)
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    admin.wait_idle(server)
    assert len(images() - nothing_left) == 1
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


def test_delete_of_offloaded_server_with_image_in_use_succeeds(admin, server, monkeypatch):  # noqa: F811
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    with monkeypatch.context() as patch:
        def used(*_args, **_more):
            raise exception.Conflict("Image is in use.")

        patch.setattr(DirectoryStore, "delete", used)
        admin.delete(f"/servers/{server}")
        admin.wait_gone(server)
    DirectoryStore().delete(None, shelved_image(admin)["id"])


def test_password_posted_by_the_guest_during_unshelve_is_stored(suite, admin, server, monkeypatch):  # noqa: F811
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    real, begun, go = DirectoryStore.delete, threading.Event(), threading.Event()

    def slow(*args, **named):
        begun.set()
        go.wait(20)
        return real(*args, **named)

    monkeypatch.setattr(DirectoryStore, "delete", slow)
    admin.action(server, "unshelve")
    assert begun.wait(20)
    bus.client(suite.transport, Guests).set_password(context.admin(), server, password_items("secret"))
    go.set()
    admin.wait_idle(server)
    assert admin.get(f"/servers/{server}/os-server-password") == {"password": "secret"}


@pytest.mark.parametrize("how", ["delete", "unshelve"])
def test_image_service_outage_defers_the_deletion_of_the_shelved_image(admin, server, monkeypatch, nothing_left, how):  # noqa: F811
    monkeypatch.setattr(step_executor, "MAX_TRIES", 1)
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    with monkeypatch.context() as patch:
        def away(*_args, **_more):
            raise exception.ImageBackendUnavailable(reason="it is away")

        patch.setattr(DirectoryStore, "delete", away)
        if how == "delete":
            admin.delete(f"/servers/{server}")
            admin.wait_gone(server)
        else:
            admin.action(server, "unshelve")
            admin.wait_idle(server)
            assert events_of(admin, server, "unshelve")
        assert len(images() - nothing_left) == 1
    wait_for(lambda: images() == nothing_left, 30)


def test_unshelve_on_a_host_that_is_down_keeps_the_server_shelved(suite, admin, pair, kept):  # noqa: F811
    uuid = admin.boot(pair.flavor, pair.image_id, name="web", availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED")
    set_service(admin, SECOND, forced_down=True)
    wait_scheduler(suite, SECOND, False)
    admin.action(uuid, "unshelve")
    assert admin.wait_idle(uuid)["status"] == "SHELVED"
    assert evicted_from(suite, uuid) == []
    set_service(admin, SECOND, forced_down=False)
    admin.action(uuid, "unshelve")
    admin.wait(uuid, "ACTIVE")


@pytest.mark.parametrize("state", ["active", "error"])
@pytest.mark.parametrize("verb", ["guests.destroy", "guests.spawn"])
def test_server_reset_without_a_host_can_be_unshelved(suite, admin, server, driver, hold, verb, state):  # noqa: F811
    if verb == "guests.spawn":
        admin.action(server, "shelve")
        admin.wait(server, "SHELVED_OFFLOADED")
    held = hold(verb)
    admin.action(server, "unshelve" if verb == "guests.spawn" else "shelve")
    held.wait_until_begun()
    admin.action(server, "os-resetState", {"state": state})
    held.let_go()
    wait_for(lambda: admin.server(server)["OS-EXT-SRV-ATTR:host"] is None)
    assert admin.wait_idle(server)["status"] == state.upper()
    wait_for(lambda: driver.guests.all() == [], reason="the guest is removed")
    assert shelved_image(admin)["status"] == "ACTIVE"
    # The host may not have confirmed yet that the old guest is gone: unshelving orders it to.
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")
    assert [guest.uuid for guest in driver.guests.all()] == [server]
    assert refused(lambda: admin.action(server, "unshelve")) == (
        409, f"Cannot 'unshelve' instance {server} while it is in vm_state active")
