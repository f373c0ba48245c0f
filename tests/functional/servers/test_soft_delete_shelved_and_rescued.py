"""Soft delete of shelved and rescued servers."""

import pytest

from nova.conf import CONF
from nova.image.directory import DirectoryStore
from nova.objects.servers import states
from tests.functional.client import wait_for
from tests.functional.servers.test_soft_delete import age, charged, look, patient, server, soft_deleted  # noqa: F401


@pytest.fixture(params=[0, -1], ids=["offloaded", "on-its-host"])
def shelved(admin, server, request):  # noqa: F811
    """Yield (server id, status) of a shelved server."""
    CONF.set_override("shelved_offload_time", request.param)
    admin.action(server, "shelve")
    status = "SHELVED" if request.param else "SHELVED_OFFLOADED"
    admin.wait(server, status)
    yield server, status
    CONF.clear_override("shelved_offload_time")


def images():
    return len(DirectoryStore().index(None, {}))


def test_restored_server_returns_to_its_shelved_state(admin, driver, shelved):
    uuid, status = shelved
    saved = images()
    before = charged(admin)
    soft_deleted(admin, uuid)
    assert charged(admin) == [0, 0, 0]
    admin.action(uuid, "restore", expect=202)
    assert admin.wait(uuid, status)["OS-EXT-STS:power_state"] == states.SHUTDOWN
    assert charged(admin) == before
    admin.action(uuid, "unshelve")
    admin.wait(uuid, "ACTIVE")
    assert [guest.uuid for guest in driver.guests.all()] == [uuid]
    assert images() == saved - 1


def test_server_soft_deleted_during_offload_is_restored_as_offloaded(admin, driver, server, hold):  # noqa: F811
    held = hold("guests.destroy")
    admin.action(server, "shelve")
    held.wait_until_begun()
    admin.delete(f"/servers/{server}", expect=204)
    held.let_go()
    admin.wait(server, "SOFT_DELETED")
    admin.action(server, "restore", expect=202)
    admin.wait(server, "SHELVED_OFFLOADED")
    wait_for(lambda: driver.guests.all() == [])
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


def test_reclaim_of_a_shelved_server_deletes_its_image(suite, admin, driver, shelved):
    uuid, _status = shelved
    saved = images()
    soft_deleted(admin, uuid)
    age(suite, uuid, 3601)
    look(suite)
    admin.wait_gone(uuid)
    assert images() == saved - 1
    assert driver.guests.all() == []


def test_server_reset_from_shelved_to_active_is_restored_as_active(admin, driver, server):  # noqa: F811
    CONF.set_override("shelved_offload_time", -1)
    try:
        admin.action(server, "shelve")
        admin.wait(server, "SHELVED")
    finally:
        CONF.clear_override("shelved_offload_time")
    admin.action(server, "os-resetState", {"state": "active"})
    admin.wait_idle(server)
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    soft_deleted(admin, server)
    admin.action(server, "restore", expect=202)
    admin.wait(server, "ACTIVE")
    assert driver.guests.power_state(server) == states.RUNNING


def test_restored_rescued_server_runs_from_its_own_disk(admin, driver, server):  # noqa: F811
    admin.action(server, "rescue", expect=200)
    admin.wait(server, "RESCUE")
    soft_deleted(admin, server)
    admin.action(server, "restore", expect=202)
    admin.wait(server, "ACTIVE")
    assert driver.guest(server).rescued == ""
    assert driver.guests.power_state(server) == states.RUNNING
