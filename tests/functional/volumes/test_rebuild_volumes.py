"""Rebuild of servers booted from embedded or Cinder volumes, over HTTP."""

import os

import pytest

from nova import bus, context
from nova.conf import CONF
from nova.db.sql import clock
from nova.db.volumes import volumes
from nova.rpcapi.volumes import Volumes
from tests.functional.client import Client, wait_for
from tests.functional.conftest import remove_servers, remove_volumes
from tests.functional.several_hosts import error_of, refused
from tests.functional.volumes.test_cinder import MEMBER, cinder, from_volume, outside  # noqa: F401 (fixtures)


@pytest.fixture
def books(suite):
    """Return the volume API of the conductor; check that no volume remains."""
    books = bus.client(suite.transport, Volumes)
    yield books
    remove_servers(Client(suite.url))
    remove_volumes(suite)
    assert os.listdir(CONF.volume.pool) == []


@pytest.fixture
def server(books, admin, flavor, image_id):
    device = {"source_type": "image", "uuid": image_id, "destination_type": "volume", "volume_size": 1,
              "boot_index": 0}
    uuid = admin.boot(flavor, "", block_device_mapping_v2=[device])
    admin.wait(uuid, "ACTIVE")
    return uuid


def volume_of(books):
    volume, = books.index(context.admin())
    return volume


def data(volume):
    """Return the path of the data file of the volume."""
    return os.path.join(CONF.volume.pool, f"{volume.uuid}.{volume.generation}")


def rebuild(client, server, image, version="2.93", **values):
    return client.action(server, "rebuild", {"imageRef": image, **values}, version=version, expect=202)["server"]


# --- embedded volumes ------------------------------------------------------------------------------------
def test_rebuild_recreates_the_root_volume_from_the_image(admin, server, books, driver, image_id, new_image):
    before, image = volume_of(books), new_image()
    assert rebuild(admin, server, image)["image"] == ""
    shown = admin.wait(server, "ACTIVE")
    after = volume_of(books)
    assert (after.uuid, after.image.id, after.status) == (before.uuid, image, "in-use")
    assert after.generation != before.generation
    assert shown["os-extended-volumes:volumes_attached"][0]["id"] == after.uuid
    assert dict(driver.guest(server).volumes) == {"/dev/vda": after.uuid}
    assert os.path.exists(data(after))
    wait_for(lambda: not os.path.exists(data(before)), reason="the old data are removed")
    rebuild(admin, server, image)  # The same image: the volume is recreated nevertheless.
    admin.wait(server, "ACTIVE")
    assert volume_of(books).generation != after.generation


def test_rebuild_keeps_data_volumes(admin, server, books, driver, image_id):
    other = admin.post("/os-volumes", {"volume": {"size": 1}}, version="2.35")["volume"]["id"]
    admin.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": other}})
    wait_for(lambda: len(driver.guest(server).volumes) == 2)
    before = {volume.uuid: (volume.generation, volume.attachment_id) for volume in books.index(context.admin())}
    rebuild(admin, server, image_id)
    admin.wait(server, "ACTIVE")
    after = {volume.uuid: (volume.generation, volume.attachment_id) for volume in books.index(context.admin())}
    assert {uuid for uuid in before if before[uuid] != after[uuid]} == before.keys() - {other}
    assert dict(driver.guest(server).volumes)["/dev/vdb"] == other


def test_rebuild_before_2_93_keeps_the_root_volume(admin, server, books, image_id, new_image):
    before = volume_of(books)
    code, message = refused(lambda: rebuild_at(admin, server, new_image(), "2.92"))
    assert (code, message) == (400, "Unable to rebuild with a different image for a volume-backed server.")
    rebuild(admin, server, image_id, version="2.92", name="again")
    assert admin.wait(server, "ACTIVE")["name"] == "again"
    assert volume_of(books).generation == before.generation


def rebuild_at(client, server, image, version, **values):
    return client.action(server, "rebuild", {"imageRef": image, **values}, version=version)


def test_rebuild_with_a_too_large_image_or_certificates_is_refused(admin, server, new_image, image_id):
    code, message = refused(lambda: rebuild_at(admin, server, new_image(min_disk=2), "2.93"))
    assert (code, "too small" in message) == (400, True)
    code, message = refused(lambda: rebuild_at(admin, server, image_id, "2.93", trusted_image_certificates=["a"]))
    assert (code, "boot from volumes" in message) == (400, True)


@pytest.mark.parametrize("verb", ["rebuild", "spawn"])
def test_failed_rebuild_keeps_the_data_of_the_root_volume(admin, server, books, driver, image_id, new_image, verb):
    before = volume_of(books)
    driver.behaviour.failure[verb] = 1.0
    rebuild(admin, server, new_image())
    assert f"configured to fail at {verb}" in admin.wait(server, "ERROR")["fault"]["message"]
    after = volume_of(books)
    assert (after.image.id, after.generation, after.written_at, after.status) == (
        image_id, before.generation, before.written_at, "in-use")
    wait_for(lambda: os.listdir(CONF.volume.pool) == [os.path.basename(data(before))],
             reason="only the data of the volume are left")
    driver.behaviour.failure.clear()
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    rebuild(admin, server, image_id)
    admin.wait(server, "ACTIVE")
    assert volume_of(books).generation != before.generation


def test_delete_server_during_a_rebuild_removes_the_new_volume_data(suite, admin, server, books, hold, image_id):
    held, before = hold("disks.replace"), volume_of(books)
    rebuild(admin, server, image_id)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    wait_for(lambda: volume_of(books).generation == before.generation and not suite.conductor.core.db.read(
        lambda connection: volumes.forgotten(connection, clock.after(60), 1)), reason="the new data are removed")
    held.let_go()
    admin.wait_gone(server)


# --- Cinder volumes --------------------------------------------------------------------------------------
@pytest.fixture
def theirs(admin, member, flavor, cinder):  # noqa: F811
    volume = cinder.new(MEMBER, bootable=True, size=2, image={"image_id": "i"})
    uuid = member.boot(flavor, "", block_device_mapping_v2=[from_volume(volume)])
    admin.wait(uuid, "ACTIVE")
    wait_for(lambda: cinder.count("complete_attachment") == 1)
    return uuid, volume


def tell(admin, service, server, volume, status="completed"):
    """Report the volume as reimaged, as Cinder does."""
    wait_for(lambda: service.volumes[volume].status == "downloading", reason="the volume is written")
    service.volumes[volume].status = "reserved" if status == "completed" else "error"
    admin.post("/os-server-external-events", {"events": [{
        "name": "volume-reimaged", "server_uuid": server, "tag": volume, "status": status}]}, version="2.93")


def test_cinder_reimages_the_detached_root_volume_on_rebuild(admin, theirs, cinder, driver, image_id):  # noqa: F811
    server, volume = theirs
    rebuild(admin, server, image_id)
    wait_for(lambda: cinder.volumes[volume].status == "downloading")
    assert admin.server(server)["OS-EXT-STS:task_state"] == "rebuilding"
    assert driver.guest(server).power_state == 4
    tell(admin, cinder, server, volume)
    admin.wait(server, "ACTIVE")
    assert (cinder.volumes[volume].status, cinder.volumes[volume].image, cinder.servers_of(volume)) == (
        "in-use", {"image_id": image_id}, [server])
    assert dict(driver.guest(server).volumes) == {"/dev/vda": volume}


@pytest.mark.parametrize(("verb", "how"), [
    ("os-reimage", "silence after"), ("os-reimage", "error"), ("create_attachment", "silence after"),
    ("delete_attachment", "error"), ("update_attachment", "silence after"), ("complete_attachment", "error after")])
def test_cinder_failure_during_a_reimage_is_retried(admin, theirs, cinder, image_id, verb, how):  # noqa: F811
    server, volume = theirs
    cinder.fail(verb, how)
    rebuild(admin, server, image_id)
    tell(admin, cinder, server, volume)
    admin.wait(server, "ACTIVE", seconds=40)
    assert (cinder.volumes[volume].status, cinder.servers_of(volume)) == ("in-use", [server])


@pytest.mark.parametrize("how", ["it refuses", "it fails", "it says nothing"])
def test_failed_reimage_sets_error_and_can_be_repaired(
        admin, theirs, cinder, image_id, how):  # noqa: F811
    server, volume = theirs
    CONF.set_override("reimage_timeout_per_gb", 1)
    try:
        if how == "it refuses":
            cinder.fail("os-reimage", "refuse")
        rebuild(admin, server, image_id)
        if how == "it fails":
            tell(admin, cinder, server, volume, "failed")
        admin.wait(server, "ERROR", seconds=40)
    finally:
        CONF.clear_override("reimage_timeout_per_gb")
    reasons = {"it refuses": "told to refuse", "it fails": "did not reimage", "it says nothing": "the time limit"}
    assert reasons[how] in error_of(admin, server, "rebuild")
    cinder.volumes[volume].status = "in-use"
    rebuild(admin, server, image_id)
    tell(admin, cinder, server, volume)
    admin.wait(server, "ACTIVE", seconds=40)


def test_delete_server_during_a_reimage_leaves_no_attachments(admin, theirs, cinder, image_id):  # noqa: F811
    server, volume = theirs
    rebuild(admin, server, image_id)
    wait_for(lambda: cinder.volumes[volume].status == "downloading")
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert (cinder.attachments, cinder.volumes[volume].status) == ({}, "available")
