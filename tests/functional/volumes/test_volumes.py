"""Volumes over HTTP, on the fake hypervisor and real files."""

import os
import threading

import pytest

from nova import bus, context
from nova.conf import CONF
from nova.db import tables
from nova.objects.base import new_uuid, utcnow
from nova.objects.volumes.volume import VolumeRemoval
from nova.rpcapi.volumes import Volumes
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_servers, remove_volumes
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import refused as refused_to
from tests.unit.conductor.books import set_columns

GIB = 1 << 30


@pytest.fixture
def books(suite):
    """Return the volume API of the conductor, as used by nova-manage."""
    return bus.client(suite.transport, Volumes)


@pytest.fixture(autouse=True)
def no_volumes_left(suite, books):
    yield
    remove_servers(Client(suite.url))
    remove_volumes(suite)
    assert os.listdir(CONF.volume.pool) == []


def make(client, size=1, **values):
    return client.post("/os-volumes", {"volume": {"size": size, **values}}, version="2.35")["volume"]["id"]


def volume_of(client, uuid):
    return client.get(f"/os-volumes/{uuid}", version="2.35")["volume"]


def wait_status(client, uuid, status):
    return wait_for(lambda: (volume := volume_of(client, uuid))["status"] == status and volume,
                    reason=f"volume {uuid} is {status}")


def wait_no_volume(client, uuid):
    wait_for(lambda: client.session.get(f"{client.url}/v2.1/os-volumes/{uuid}").status_code == 404)


def attach(client, server, volume, version="2.96", **values):
    return client.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume, **values}},
                       version=version)


def attached(client, server, **options):
    return client.get(f"/servers/{server}/os-volume_attachments", **options)["volumeAttachments"]


def guest_volumes(driver, server):
    return dict(driver.guest(server).volumes)


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    return uuid


# --- life cycle ------------------------------------------------------------------------------------------
def test_volume_is_created_shown_listed_and_deleted(member):
    uuid = make(member, display_name="data", metadata={"a": "b"})
    shown = volume_of(member, uuid)
    assert (shown["status"], shown["size"], shown["displayName"], shown["metadata"]) == (
        "available", 1, "data", {"a": "b"})
    assert uuid in [volume["id"] for volume in member.get("/os-volumes", version="2.35")["volumes"]]
    member.delete(f"/os-volumes/{uuid}", version="2.35", expect=202)
    wait_no_volume(member, uuid)
    for method in ("get", "delete"):
        with pytest.raises(Failed) as error:
            getattr(member, method)(f"/os-volumes/{uuid}", version="2.35")
        assert error.value.code == 404


def test_volume_is_attached_used_and_detached(member, server, driver):
    uuid = make(member, size=3)
    answer = attach(member, server, uuid, tag="data")["volumeAttachment"]
    assert answer == {"id": uuid, "volumeId": uuid, "serverId": server, "device": "/dev/vdb", "tag": "data",
                      "delete_on_termination": False}
    shown = wait_status(member, uuid, "in-use")
    assert shown["attachments"] == [{"id": uuid, "volumeId": uuid, "serverId": server, "device": "/dev/vdb"}]
    assert guest_volumes(driver, server) == {"/dev/vdb": uuid}
    name, = os.listdir(CONF.volume.pool)
    assert os.stat(os.path.join(CONF.volume.pool, name)).st_size == 3 * GIB
    assert member.server(server)["os-extended-volumes:volumes_attached"] == [
        {"id": uuid, "delete_on_termination": False}]
    assert [item["volumeId"] for item in attached(member, server)] == [uuid]

    member.delete(f"/servers/{server}/os-volume_attachments/{uuid}", expect=202)
    wait_status(member, uuid, "available")
    assert (guest_volumes(driver, server), attached(member, server)) == ({}, [])
    assert os.listdir(CONF.volume.pool) == [name]
    with pytest.raises(Failed) as error:
        member.delete(f"/servers/{server}/os-volume_attachments/{uuid}")
    assert (error.value.code, error.value.message) == (404, f"Instance {server} is not attached to volume {uuid}")


def test_attach_volume_returns_no_body_since_2_101(member, server):
    uuid = make(member)
    path = f"/servers/{server}/os-volume_attachments"
    assert member.post(path, {"volumeAttachment": {"volumeId": uuid}}, version="2.101", expect=202) is None
    wait_status(member, uuid, "in-use")


def test_attach_volume_is_shown_in_instance_actions(admin, member, server):
    uuid = make(member)
    attach(member, server, uuid)
    wait_status(member, uuid, "in-use")
    action = admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]
    assert action["action"] == "attach_volume"
    shown = admin.get(f"/servers/{server}/os-instance-actions/{action['request_id']}")["instanceAction"]
    assert [(event["event"], event["result"]) for event in shown["events"]] == [("compute_attach_volume", "Success")]


@pytest.mark.parametrize("state", ["ACTIVE", "SHUTOFF", "PAUSED"])
def test_attached_volume_survives_server_actions(admin, server, driver, state):
    if state == "SHUTOFF":
        admin.action(server, "os-stop")
    elif state == "PAUSED":
        admin.action(server, "pause")
    admin.wait(server, state)
    uuid = make(admin)
    attach(admin, server, uuid)
    wait_status(admin, uuid, "in-use")
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    assert guest_volumes(driver, server) == {"/dev/vdb": uuid}


# --- refusals --------------------------------------------------------------------------------------------
def refused(client, server, volume, **values):
    with pytest.raises(Failed) as error:
        attach(client, server, volume, **values)
    return error.value.code, error.value.message


def test_a_volume_cannot_be_attached_twice(admin, server, flavor, image_id):
    uuid = make(admin)
    attach(admin, server, uuid)
    wait_status(admin, uuid, "in-use")
    other = admin.boot(flavor, image_id)
    admin.wait(other, "ACTIVE")
    message = f"Invalid volume: volume {uuid} is already attached to instances: {server}"
    assert refused(admin, server, uuid) == (400, message)
    assert refused(admin, other, uuid) == (400, message)
    with pytest.raises(Failed) as error:
        admin.delete(f"/os-volumes/{uuid}", version="2.35")
    assert error.value.code == 400


def test_concurrent_attachments_of_an_embedded_volume_one_succeeds(admin, suite, flavor, image_id):
    servers = [admin.boot(flavor, image_id) for _ in range(4)]
    for uuid in servers:
        admin.wait(uuid, "ACTIVE")
    uuid, outcomes = make(admin), []

    def want(server):
        try:
            attach(Client(suite.url), server, uuid)
            outcomes.append(200)
        except Failed as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=want, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [200, 400, 400, 400]
    wait_status(admin, uuid, "in-use")


def test_attach_of_a_missing_or_foreign_volume_returns_404(admin, suite, server, member):
    nobody = new_uuid()
    assert refused(admin, server, nobody) == (404, f"Volume {nobody} could not be found.")
    theirs = make(Client(suite.url, project="q"))
    assert refused(member, server, theirs)[0] == 404
    mine = make(member)
    with pytest.raises(Failed) as error:
        attach(member, nobody, mine)
    assert error.value.code == 404


def test_boot_with_a_volume_of_another_project_is_refused(suite, member, flavor, image_id):
    other = Client(suite.url, project="q")
    theirs = make(other)
    with pytest.raises(Failed) as error:
        member.boot(flavor, image_id, block_device_mapping_v2=[
            {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image_id},
            {"source_type": "volume", "destination_type": "volume", "boot_index": -1, "uuid": theirs,
             "delete_on_termination": True}])
    assert (error.value.code, theirs in error.value.message) == (400, True)
    assert volume_of(other, theirs)["status"] == "available"


def test_duplicate_device_name_is_refused(admin, server):
    first, second, third = (make(admin) for _ in range(3))
    assert attach(admin, server, first, device="/dev/vdc")["volumeAttachment"]["device"] == "/dev/vdc"
    assert refused(admin, server, second, device="/dev/vdc")[0] == 409
    assert refused(admin, server, second, device="/dev/vda")[0] == 409
    assert attach(admin, server, second)["volumeAttachment"]["device"] == "/dev/vdb"
    assert attach(admin, server, third)["volumeAttachment"]["device"] == "/dev/vdd"
    for uuid in (first, second, third):
        wait_status(admin, uuid, "in-use")


def test_detach_root_volume_is_refused(admin, flavor, image_id):
    server = boot_from(admin, flavor, image_id, boot_index=0)
    root, = attached(admin, server, version="2.88")
    with pytest.raises(Failed) as error:
        admin.delete(f"/servers/{server}/os-volume_attachments/{root['volumeId']}")
    assert (error.value.code, error.value.message) == (400, "Cannot detach a root device volume")


# --- failures --------------------------------------------------------------------------------------------
def test_failed_attach_in_the_hypervisor_frees_the_volume(admin, server, driver):
    uuid = make(admin)
    driver.behaviour.failure["attach_volume"] = 1.0
    attach(admin, server, uuid)
    wait_status(admin, uuid, "available")
    driver.behaviour.failure.clear()
    assert (attached(admin, server), guest_volumes(driver, server)) == ([], {})
    shown = admin.server(server)
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    attach(admin, server, uuid)
    wait_status(admin, uuid, "in-use")


def test_failed_detach_in_the_hypervisor_keeps_the_attachment(admin, server, driver):
    uuid = make(admin)
    attach(admin, server, uuid)
    wait_status(admin, uuid, "in-use")
    driver.behaviour.failure["detach_volume"] = 1.0
    admin.delete(f"/servers/{server}/os-volume_attachments/{uuid}")
    wait_for(lambda: admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]["message"] == "Error")
    driver.behaviour.failure.clear()
    wait_status(admin, uuid, "in-use")
    assert guest_volumes(driver, server) == {"/dev/vdb": uuid}
    assert [item["volumeId"] for item in attached(admin, server)] == [uuid]


def test_delete_server_during_attach_frees_the_volume(admin, server, hold):
    uuid, held = make(admin), hold("volumes.attach")
    attach(admin, server, uuid)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_status(admin, uuid, "available")


def test_attachments_to_a_server_run_one_at_a_time(admin, server, driver, hold):
    held = hold("volumes.attach")
    uuids = [make(admin) for _ in range(3)]
    for uuid in uuids:
        attach(admin, server, uuid)
    held.wait_until_begun()
    assert held.calls == 1
    held.let_go()
    for uuid in uuids:
        wait_status(admin, uuid, "in-use")
    assert guest_volumes(driver, server) == dict(zip(("/dev/vdb", "/dev/vdc", "/dev/vdd"), uuids, strict=True))


# --- volumes attached from boot to delete ----------------------------------------------------------------
def boot_from(client, flavor, image, source="image", size=1, **values):
    device = {"source_type": source, "destination_type": "volume", "volume_size": size, **values}
    if source == "image":
        device["uuid"] = image
    server = client.boot(flavor, "", block_device_mapping_v2=[device])
    client.wait(server, "ACTIVE", "ERROR")
    return server


@pytest.mark.parametrize("source", ["image", "blank", "volume"])
def test_boot_from_volume_ignores_the_data_of_imageref(
        admin, flavor, image_id, driver, source):
    ident = {"image": image_id, "volume": make(admin) if source == "volume" else None}.get(source)
    device = {"source_type": source, "destination_type": "volume", "volume_size": 1, "boot_index": "0",
              "delete_on_termination": "true", **({"uuid": ident} if ident else {})}
    server = admin.boot(flavor, image_id, block_device_mapping_v2=[device])
    admin.wait(server, "ACTIVE")
    assert (admin.server(server)["image"], list(guest_volumes(driver, server))) == ("", ["/dev/vda"])


def test_boot_from_volume_uses_the_properties_of_imageref(admin, flavor, new_image):
    device = {"source_type": "volume", "uuid": make(admin), "boot_index": 0}

    def boot(image):
        return admin.boot(flavor, image, block_device_mapping_v2=[device])

    for image, text in ((new_image(min_ram=1 << 20), "memory"), (new_uuid(), "Can not find requested image")):
        with pytest.raises(Failed) as error:
            boot(image)
        assert (error.value.code, text in error.value.message) == (400, True), error.value.message
    server = boot(new_image(min_disk=50, disk_format="iso", hw_disk_bus="scsi"))
    admin.wait(server, "ACTIVE")
    attached, = admin.get(f"/servers/{server}/os-volume_attachments")["volumeAttachments"]
    assert attached["device"] == "/dev/sda"


@pytest.mark.parametrize("source", ["image", "blank"])
@pytest.mark.parametrize("gone", [True, False])
def test_server_boots_from_a_new_volume(admin, flavor, image_id, driver, source, gone):
    server = boot_from(admin, flavor, image_id, source, boot_index=0, delete_on_termination=gone)
    shown = admin.server(server)
    assert (shown["status"], shown["image"]) == ("ACTIVE", "")
    (device, uuid), = guest_volumes(driver, server).items()
    assert device == "/dev/vda"
    assert shown["os-extended-volumes:volumes_attached"] == [{"id": uuid, "delete_on_termination": gone}]
    assert volume_of(admin, uuid)["status"] == "in-use"
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    if gone:
        wait_no_volume(admin, uuid)
    else:
        assert wait_status(admin, uuid, "available")["attachments"] == [{}]


def test_volume_of_a_deleted_server_boots_another_server(admin, flavor, image_id, driver):
    first = boot_from(admin, flavor, image_id, boot_index=0)
    uuid, = guest_volumes(driver, first).values()
    admin.delete(f"/servers/{first}")
    admin.wait_gone(first)
    data = os.listdir(CONF.volume.pool)
    second = admin.boot(flavor, "", block_device_mapping_v2=[
        {"source_type": "volume", "uuid": uuid, "boot_index": 0, "destination_type": "volume"}])
    admin.wait(second, "ACTIVE")
    assert (guest_volumes(driver, second), os.listdir(CONF.volume.pool)) == ({"/dev/vda": uuid}, data)


def test_volumes_are_attached_after_local_disks(admin, image_id, driver):
    flavor = admin.flavor(**{"OS-FLV-EXT-DATA:ephemeral": 1, "swap": 64})
    uuid = make(admin)
    server = admin.boot(flavor, image_id, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": uuid, "delete_on_termination": True},
        {"source_type": "blank", "destination_type": "volume", "volume_size": 2, "boot_index": -1}])
    admin.wait(server, "ACTIVE")
    assert sorted(guest_volumes(driver, server)) == ["/dev/vdd", "/dev/vde"]
    assert guest_volumes(driver, server)["/dev/vdd"] == uuid


def test_delete_on_termination_can_be_changed(admin, server):
    uuid = make(admin)
    attach(admin, server, uuid)
    wait_status(admin, uuid, "in-use")
    admin.put(f"/servers/{server}/os-volume_attachments/{uuid}",
              {"volumeAttachment": {"volumeId": uuid, "delete_on_termination": True}}, version="2.85", expect=202)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    wait_no_volume(admin, uuid)


def test_failed_build_frees_or_deletes_its_volumes(admin, flavor, image_id, driver):
    uuid = make(admin)
    driver.behaviour.failure["spawn"] = 1.0
    server = admin.boot(flavor, image_id, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": uuid},
        {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "boot_index": -1,
         "delete_on_termination": True}])
    admin.wait(server, "ERROR")
    driver.behaviour.failure.clear()
    wait_status(admin, uuid, "available")
    wait_for(lambda: [volume["id"] for volume in admin.get("/os-volumes", version="2.35")["volumes"]] == [uuid])
    wait_for(lambda: os.listdir(CONF.volume.pool) == [])


@pytest.mark.parametrize(("device", "code", "message"), [
    ({"source_type": "volume", "uuid": new_uuid()}, 400, "could not be found"),
    ({"source_type": "image", "destination_type": "volume", "volume_size": 1, "boot_index": 0,
      "uuid": new_uuid()}, 400, "Can not find requested image"),
    ({"source_type": "blank", "destination_type": "volume", "volume_size": 2000, "boot_index": -1}, 403, "Quota")])
def test_boot_with_invalid_volumes_is_refused(admin, flavor, image_id, device, code, message):
    image = "" if device.get("boot_index") == 0 else image_id
    with pytest.raises(Failed) as error:
        admin.boot(flavor, image, block_device_mapping_v2=[device])
    assert error.value.code == code
    assert message in error.value.message
    assert admin.get("/os-volumes", version="2.35")["volumes"] == []


def test_boot_from_a_volume_that_is_not_bootable_is_refused(admin, flavor):
    uuid = make(admin)
    with pytest.raises(Failed) as error:
        admin.boot(flavor, "", block_device_mapping_v2=[{"source_type": "volume", "uuid": uuid, "boot_index": 0}])
    assert (error.value.code, error.value.message) == (400, f"Invalid volume: volume {uuid} is not bootable")


# --- data location ---------------------------------------------------------------------------------------
def test_volume_local_to_another_host_cannot_be_attached_or_scheduled(admin, suite, books, server,
                                                                                  flavor, image_id):
    uuid = make(admin)
    set_columns(suite.conductor.core, tables.volumes, tables.volumes.c.uuid == uuid, host="elsewhere", generation=1,
                written_at=utcnow())
    code, message = refused(admin, server, uuid)
    assert code == 400
    assert "cannot be reached" in message
    wanted = admin.boot(flavor, image_id, block_device_mapping_v2=[{"source_type": "volume", "uuid": uuid}])
    assert admin.wait(wanted, "ERROR")["fault"]["message"].startswith("No valid host was found.")
    wait_status(admin, uuid, "available")
    # The host is down, so the data are not removed.
    admin.delete(f"/os-volumes/{uuid}", version="2.35")
    assert volume_of(admin, uuid)["status"] == "deleting"
    books.removed(context.admin(), [VolumeRemoval(volume_uuid=uuid, generation=1, host="elsewhere")])
    wait_no_volume(admin, uuid)


def test_revert_with_a_host_local_volume_is_refused_until_detached(pair, admin):
    server, volume = pair.boot(), make(admin)
    admin.action(server, "migrate")
    admin.wait(server, "VERIFY_RESIZE")
    attach(admin, server, volume)
    wait_status(admin, volume, "in-use")
    code, message = refused_to(lambda: admin.action(server, "revertResize"))
    assert (code, volume in message) == (400, True)
    assert admin.server(server)["status"] == "VERIFY_RESIZE"
    admin.delete(f"/servers/{server}/os-volume_attachments/{volume}")
    wait_status(admin, volume, "available")
    admin.action(server, "revertResize")
    admin.wait(server, "ACTIVE")
    assert pair.only_on(server, pair.first)
    admin.delete(f"/os-volumes/{volume}", version="2.35")
    wait_no_volume(admin, volume)


def test_revert_moves_a_shared_volume_attached_after_the_migration(pair, admin, driver):
    CONF.set_override("shared", True, group="volume")
    try:
        server, volume = pair.boot(), make(admin)
    finally:
        CONF.clear_override("shared", group="volume")
    admin.action(server, "migrate")
    admin.wait(server, "VERIFY_RESIZE")
    attach(admin, server, volume)
    wait_status(admin, volume, "in-use")
    admin.action(server, "revertResize")
    admin.wait(server, "ACTIVE")
    assert pair.only_on(server, pair.first)
    assert guest_volumes(driver, server) == {"/dev/vdb": volume}


# --- costs -----------------------------------------------------------------------------------------------
def test_attach_and_detach_volume_stay_within_their_budgets(suite, admin, server):
    uuid = make(admin)
    _answer, messages, statements = measured(suite, admin, lambda: attach(admin, server, uuid))
    assert volume_of(admin, uuid)["status"] == "in-use"
    assert sum(messages.values()) <= 8, messages
    assert len(statements) <= 24, statements
    _answer, messages, statements = measured(
        suite, admin, lambda: admin.delete(f"/servers/{server}/os-volume_attachments/{uuid}"))
    assert volume_of(admin, uuid)["status"] == "available"
    assert sum(messages.values()) <= 8, messages
    assert len(statements) <= 24, statements
