"""Features of the API that some hosts lack during a rolling upgrade."""

import contextlib

import pytest
import sqlalchemy as sa

from nova.conf import CONF
from nova.db import tables
from tests.functional.client import Failed, wait_for
from tests.functional.several_hosts import error_of, newest_action, refused
from tests.functional.volumes.test_swaps import swap
from tests.functional.volumes.test_volumes import attach, make, wait_status

# Features of service version 3.
_NEW = {
    "rebuild": lambda image: {"imageRef": image},
    "rescue": lambda image: {},
    "createImage": lambda image: {"name": "s"},
    "createBackup": lambda image: {"name": "b", "backup_type": "daily", "rotation": 1},
    "shelve": lambda image: None,
    "changePassword": lambda image: {"adminPass": "x"},
    "trigger_crash_dump": lambda image: None,
}


@contextlib.contextmanager
def compute_of(suite, version):
    """Register the compute service with this service version within the block."""
    this = sa.update(tables.services).where(tables.services.c.binary == "nova-compute",
                                            tables.services.c.host == suite.compute.host)
    db = suite.conductor.core.db
    before = db.read(lambda connection: connection.scalar(sa.select(tables.services.c.version).where(
        tables.services.c.binary == "nova-compute", tables.services.c.host == suite.compute.host)))
    db.write(lambda connection: connection.execute(this.values(version=version)))
    try:
        yield before
    finally:
        db.write(lambda connection: connection.execute(this.values(version=before)))


@pytest.fixture
def server(suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    yield uuid
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


@pytest.mark.parametrize("action", _NEW)
def test_action_unsupported_by_an_old_host_is_refused_and_changes_nothing(suite, admin, server, image_id, action):
    images = admin.get("/images", version="2.35")["images"]
    with compute_of(suite, 2) as current:
        assert current >= 3
        with pytest.raises(Failed) as refused:
            admin.action(server, action, _NEW[action](image_id))
    assert refused.value.code == 409
    assert "upgrade" in refused.value.message
    assert suite.compute.host not in refused.value.message
    found = admin.server(server)
    assert (found["status"], found["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    assert admin.get("/images", version="2.35")["images"] == images


def test_action_supported_by_an_old_host_succeeds(suite, admin, server):
    with compute_of(suite, 2):
        admin.action(server, "os-stop")
        admin.wait(server, "SHUTOFF")
        admin.action(server, "os-start")
        admin.wait(server, "ACTIVE")


def test_action_succeeds_after_the_host_upgrade(suite, admin, server):
    with compute_of(suite, 2), pytest.raises(Failed):
        admin.action(server, "rescue")
    admin.action(server, "rescue")
    admin.wait(server, "RESCUE")
    admin.action(server, "unrescue")
    admin.wait(server, "ACTIVE")


def test_soft_delete_on_an_old_host_is_refused_and_changes_nothing(suite, admin, server):
    CONF.set_override("reclaim_instance_interval", 3600)
    try:
        with compute_of(suite, 2):
            code, message = refused(lambda: admin.delete(f"/servers/{server}"))
            assert (code, "upgrade" in message) == (409, True)
            assert admin.wait_idle(server)["status"] == "ACTIVE"
    finally:
        CONF.clear_override("reclaim_instance_interval")


def test_unshelve_does_not_select_an_old_host(suite, admin, server):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    with compute_of(suite, 2):
        admin.action(server, "unshelve", None)
        wait_for(lambda: newest_action(admin, server, "unshelve")["message"] == "Error")
        assert admin.wait_idle(server)["status"] == "SHELVED_OFFLOADED"
        assert "No valid host" in error_of(admin, server, "unshelve")
    admin.action(server, "unshelve", None)
    admin.wait(server, "ACTIVE")


def test_swap_volume_on_an_old_host_is_refused(suite, admin, server):
    CONF.set_override("allow_swap", True, "volume")
    old, new = make(admin), make(admin)
    attach(admin, server, old)
    wait_status(admin, old, "in-use")
    with compute_of(suite, 3):
        code, message = refused(lambda: swap(admin, server, old, new))
    CONF.clear_override("allow_swap", "volume")
    assert (code, "upgrade" in message) == (409, True)
    wait_status(admin, new, "available")
    admin.delete(f"/servers/{server}/os-volume_attachments/{old}")
    for volume in (old, new):
        wait_status(admin, volume, "available")
        admin.delete(f"/os-volumes/{volume}", version="2.35")


def test_assisted_snapshot_on_an_old_host_is_refused(suite, admin, server):
    volume = make(admin)
    attach(admin, server, volume)
    wait_status(admin, volume, "in-use")
    wanted = {"volume_id": volume, "create_info": {"snapshot_id": volume, "type": "qcow2", "new_file": "new"}}
    with compute_of(suite, 3):
        code, message = refused(lambda: admin.post("/os-assisted-volume-snapshots", {"snapshot": wanted}))
    assert (code, "upgrade" in message) == (400, True)
    # Current hosts do not receive the request either: embedded volumes have no snapshots.
    assert refused(lambda: admin.post("/os-assisted-volume-snapshots", {"snapshot": wanted})) == (
        400, "Invalid volume: only volumes of Cinder support snapshots")
    admin.delete(f"/servers/{server}/os-volume_attachments/{volume}")
    wait_status(admin, volume, "available")
    admin.delete(f"/os-volumes/{volume}", version="2.35")
