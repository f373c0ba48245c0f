"""Servers with Cinder volumes over HTTP: no failure of Cinder leaves volumes or attachments behind."""

import pytest
import sqlalchemy as sa

from nova.compute.disk_tools import QemuTools
from nova.conf import CONF, register_external_services
from nova.db import tables
from nova.volume.cinder.host import CinderVolumes
from tests.cinder_service import CinderService
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import newest_action, refused

MEMBER = "p"


@pytest.fixture(scope="module")
def outside(suite):
    """Configure the suite to use Cinder."""
    service = CinderService()
    service.start()
    core, machine, compute = suite.conductor.core, suite.compute.machine, suite.compute
    before = machine.volumes
    CONF.set_override("driver", "cinder", group="volume")
    CONF.set_override("block_device_allocate_retries_interval", 1)
    from keystoneauth1 import loading

    register_external_services()
    loading.register_auth_conf_options(CONF, "cinder")
    CONF.register_opts(loading.get_auth_plugin_conf_options("password"), group="cinder")
    CONF.set_default("auth_url", "http://unused.invalid", group="cinder")  # The option stays required.
    for name, value in service.options().items():
        CONF.set_override(name, value, group="cinder")
    vars(core).pop("attachments", None)
    machine.volumes = CinderVolumes(QemuTools())
    machine.volumes.start()
    compute.returned()
    yield service
    machine.volumes = before
    vars(core).pop("attachments", None)
    for name in service.options():
        CONF.clear_override(name, group="cinder")
    CONF.clear_override("driver", group="volume")
    CONF.clear_override("block_device_allocate_retries_interval")
    compute.returned()
    service.stop()


@pytest.fixture
def cinder(suite, outside):
    yield outside
    remove_servers(Client(suite.url))
    # The attachment of an attach that a delete has superseded is deleted after the request that creates it ends.
    wait_for(lambda: outside.attachments == {}, 30, lambda: f"no attachments are left: {outside.attachments}")
    assert {volume.status for volume in outside.volumes.values()} <= {"available", "error"}
    outside.volumes.clear()
    outside.asked.clear()
    outside._failures.clear()
    outside.looks, outside.outcome = 0, "available"


@pytest.fixture
def server(admin, flavor, image_id, cinder):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    return uuid


def attach(client, server, volume, **values):
    return client.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume, **values}})


def detach(client, server, volume):
    return client.delete(f"/servers/{server}/os-volume_attachments/{volume}", expect=202)


def attached(client, server):
    return [item["volumeId"] for item in
            client.get(f"/servers/{server}/os-volume_attachments", version="2.88")["volumeAttachments"]]


def wait_status(cinder, volume, status):
    wait_for(lambda: cinder.volumes[volume].status == status, 30, f"volume {volume} is {status}")


def ended(admin, server, name, message=None):
    """Wait until the newest action of this name has ended and return its events."""
    def look():
        action = newest_action(admin, server, name)
        events = action["events"]
        return events and all(event["finish_time"] for event in events) and action["message"] == message and action

    return wait_for(look, 60, f"{name} has ended with {message}")


def holds_nothing(cinder, driver, client, server):
    assert cinder.attachments == {}
    assert dict(driver.guest(server).volumes) == {}
    wait_for(lambda: attached(client, server) == [], 10)


# --- attach and detach -----------------------------------------------------------------------------------
def test_cinder_volume_is_attached_and_detached(suite, admin, member, server, cinder, driver):
    volume = cinder.new(MEMBER, size=3)
    answer, messages, _statements = measured(suite, member, lambda: attach(member, server, volume))
    assert answer["volumeAttachment"] == {"id": volume, "volumeId": volume, "serverId": server, "device": "/dev/vdb",
                                          "tag": None, "delete_on_termination": False}
    assert sum(messages.values()) <= 8, messages
    assert (cinder.volumes[volume].status, cinder.servers_of(volume)) == ("in-use", [server])
    assert dict(driver.guest(server).volumes) == {"/dev/vdb": volume}
    attachment, = cinder.attachments.values()
    assert (attachment.connector["host"], attachment.connector["mountpoint"]) == (suite.compute.host, "/dev/vdb")
    shown = member.get(f"/servers/{server}/os-volume_attachments/{volume}", version="2.89")["volumeAttachment"]
    assert shown["attachment_id"] == attachment.id
    told = newest_action(admin, server, "attach_volume")
    assert [(event["event"], event["result"]) for event in told["events"]] == [("compute_attach_volume", "Success")]

    _none, messages, _statements = measured(suite, member, lambda: detach(member, server, volume))
    assert sum(messages.values()) <= 8, messages
    assert cinder.volumes[volume].status == "available"
    holds_nothing(cinder, driver, member, server)


def test_attach_volume_of_another_project_returns_404(member, server, cinder, driver):
    for volume in (cinder.new("other"), "11111111-2222-4333-8444-555555555555"):
        assert refused(lambda volume=volume: attach(member, server, volume)) == (
            404, f"Volume {volume} could not be found.")
    assert {project for verb, project in cinder.asked if verb == "show_volume"} == {MEMBER}
    holds_nothing(cinder, driver, member, server)


def test_attach_volume_by_an_upper_case_id_returns_404(member, server, cinder, driver):
    """An attachment has the real id, so Nova would not find the attachment again to delete it."""
    volume = cinder.new(MEMBER, id="aaaaaaaa-2222-4333-8444-555555555555").upper()
    assert refused(lambda: attach(member, server, volume)) == (404, f"Volume {volume} could not be found.")
    holds_nothing(cinder, driver, member, server)


def test_attach_volume_in_use_or_in_error_is_refused(member, server, cinder):
    volume = cinder.new(MEMBER)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    code, message = refused(lambda: attach(member, server, volume))
    assert (code, message) == (400, f"Invalid volume: volume {volume} is already attached to instances: {server}")
    broken = cinder.new(MEMBER, status="error")
    assert refused(lambda: attach(member, server, broken)) == (
        400, f"Invalid volume: the status of volume {broken} must be available, but is error")


def test_attach_volume_while_cinder_is_unavailable_returns_503(member, server, cinder, driver):
    volume = cinder.new(MEMBER)
    cinder.fail("show_volume", "error", times=5)
    assert refused(lambda: attach(member, server, volume))[0] == 503
    holds_nothing(cinder, driver, member, server)


def test_concurrent_cinder_attachments_one_succeeds(admin, member, flavor, image_id, server, cinder, driver):
    other = admin.boot(flavor, image_id)
    admin.wait(other, "ACTIVE")
    volume = cinder.new(MEMBER)
    asked, release = cinder.hold("create_attachment")
    attach(member, server, volume)
    assert asked.wait(20)
    attach(member, other, volume)
    wait_status(cinder, volume, "in-use")
    release()
    ended(admin, server, "attach_volume", "Error")
    assert cinder.servers_of(volume) == [other]
    assert (dict(driver.guest(server).volumes), attached(member, server)) == ({}, [])


@pytest.mark.parametrize("verb", ["create_attachment", "update_attachment", "complete_attachment"])
def test_attachment_refused_by_cinder_leaves_no_resources(admin, member, server, cinder, driver, verb):
    volume = cinder.new(MEMBER)
    cinder.fail(verb, "refuse")
    attach(member, server, volume)
    told = ended(admin, server, "attach_volume", "Error")
    assert "it was told to refuse" in str(told["events"])
    holds_nothing(cinder, driver, member, server)
    assert cinder.volumes[volume].status == "available"


@pytest.mark.parametrize("change", [
    lambda _answer: {}, lambda _answer: None, lambda _answer: {"volume": None}, lambda _answer: {"volume": {}},
    lambda answer: {"volume": {**answer["volume"], "size": "much"}},
    lambda answer: {"volume": {**answer["volume"], "attachments": "x"}},
    lambda answer: {"volume": {**answer["volume"], "volume_image_metadata": [1]}}])
def test_malformed_volume_response_of_cinder_returns_503(member, server, cinder, driver, change):
    volume = cinder.new(MEMBER)
    cinder.twist("show_volume", change)
    code, message = refused(lambda: attach(member, server, volume))
    assert (code, "its response is malformed" in message) == (503, True)
    holds_nothing(cinder, driver, member, server)


@pytest.mark.parametrize(("verb", "change"), [
    ("list_attachments", lambda _answer: {"attachments": [1]}), ("create_attachment", lambda _answer: {}),
    ("create_attachment", lambda answer: {"attachment": {**answer["attachment"], "id": 7}}),
    ("update_attachment", lambda _answer: {"attachment": {"connection_info": None}})])
def test_malformed_attachment_response_of_cinder_is_retried(member, server, cinder, driver, verb, change):
    volume = cinder.new(MEMBER)
    cinder.twist(verb, change)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    assert cinder.servers_of(volume) == [server]
    assert list(driver.guest(server).volumes) == [("/dev/vdb", volume)]
    assert attached(member, server) == [volume]


@pytest.mark.parametrize("how", ["error after", "silence", "silence after"])
@pytest.mark.parametrize("verb", ["create_attachment", "update_attachment", "complete_attachment"])
def test_cinder_failure_during_attach_is_retried_and_attaches_once(member, server, cinder, driver, verb, how):
    volume = cinder.new(MEMBER)
    cinder.fail(verb, how)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: cinder.servers_of(volume) == [server])
    assert list(driver.guest(server).volumes) == [("/dev/vdb", volume)]


def test_failed_attach_in_the_guest_deletes_the_attachment(admin, member, server, cinder, driver):
    volume = cinder.new(MEMBER)
    driver.behaviour.failure["attach_volume"] = 1.0
    attach(member, server, volume)
    ended(admin, server, "attach_volume", "Error")
    holds_nothing(cinder, driver, member, server)


def test_failed_attach_is_compensated_despite_cinder_failures(admin, member, server, cinder, driver):
    volume = cinder.new(MEMBER)
    driver.behaviour.failure["attach_volume"] = 1.0
    cinder.fail("delete_attachment", "error")
    cinder.fail("delete_attachment", "silence after")
    attach(member, server, volume)
    ended(admin, server, "attach_volume", "Error")
    holds_nothing(cinder, driver, member, server)


def test_delete_server_while_cinder_hangs_in_create_attachment(admin, member, server, cinder):
    volume = cinder.new(MEMBER)
    asked, release = cinder.hold("create_attachment", after=True)
    attach(member, server, volume)
    assert asked.wait(20)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    release()
    wait_for(lambda: cinder.attachments == {}, 20, "the late attachment is deleted")
    assert cinder.volumes[volume].status == "available"


@pytest.mark.parametrize(("verb", "how"), [
    ("os-begin_detaching", "silence after"), ("os-begin_detaching", "error"), ("delete_attachment", "silence after"),
    ("delete_attachment", "error"), ("list_attachments", "silence")])
def test_cinder_failure_during_detach_is_retried(member, server, cinder, driver, verb, how):
    volume = cinder.new(MEMBER)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: cinder.count("complete_attachment") == 1)
    cinder.fail(verb, how)
    detach(member, server, volume)
    wait_status(cinder, volume, "available")
    holds_nothing(cinder, driver, member, server)


def test_failed_detach_in_the_guest_keeps_the_attachment(admin, member, server, cinder, driver):
    volume = cinder.new(MEMBER)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    driver.behaviour.failure["detach_volume"] = 1.0
    detach(member, server, volume)
    ended(admin, server, "detach_volume", "Error")
    assert (cinder.volumes[volume].status, cinder.servers_of(volume)) == ("in-use", [server])
    assert (dict(driver.guest(server).volumes), attached(member, server)) == ({"/dev/vdb": volume}, [volume])
    driver.behaviour.failure.clear()
    detach(member, server, volume)
    wait_status(cinder, volume, "available")


@pytest.mark.parametrize("how", ["gone", "error", "error_extending", "error, and its attachment too"])
def test_volume_deleted_or_in_error_in_cinder_is_detached(member, server, cinder, driver, how):
    volume = cinder.new(MEMBER)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: driver.guest(server).volumes and cinder.count("complete_attachment") == 1)
    if how == "gone":
        cinder.volumes.pop(volume)
        cinder.attachments.clear()
    else:
        cinder.volumes[volume].status = how.partition(",")[0]
    if "attachment" in how:
        cinder.fail("delete_attachment", "refuse")
    detach(member, server, volume)
    wait_for(lambda: attached(member, server) == [], 20)
    assert dict(driver.guest(server).volumes) == {}
    if "attachment" in how:
        assert cinder.servers_of(volume) == [server]
        cinder.attachments.clear()
    assert cinder.attachments == {}


def test_detach_of_a_volume_hidden_from_the_caller_returns_404(admin, member, server, cinder, driver):
    volume = cinder.new(MEMBER)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    wait_for(lambda: cinder.count("complete_attachment") == 1)
    cinder.volumes[volume].project = "somebody else's"
    assert refused(lambda: member.delete(f"/servers/{server}/os-volume_attachments/{volume}"))[0] == 404
    assert (cinder.volumes[volume].status, attached(member, server)) == ("in-use", [volume])
    cinder.volumes[volume].project = MEMBER
    detach(member, server, volume)
    wait_status(cinder, volume, "available")


def test_hard_reboot_during_delete_attachment_completes_the_detach(admin, member, server, cinder, driver):
    volume = cinder.new(MEMBER)
    attach(member, server, volume)
    wait_status(cinder, volume, "in-use")
    asked, release = cinder.hold("delete_attachment", after=True)
    detach(member, server, volume)
    assert asked.wait(20)
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE", seconds=40)
    release()
    wait_for(lambda: attached(member, server) == [], 20)
    holds_nothing(cinder, driver, member, server)


# --- boot from volume ------------------------------------------------------------------------------------
def boot(client, flavor, *devices, image="", **values):
    return client.boot(flavor, image, block_device_mapping_v2=list(devices), **values)


def from_volume(volume, **values):
    return {"source_type": "volume", "uuid": volume, "boot_index": 0, "destination_type": "volume", **values}


def new_disk(**values):
    return {"source_type": "blank", "destination_type": "volume", "volume_size": 2, **values}


def from_image(image_id, **values):
    return {"source_type": "image", "uuid": image_id, "destination_type": "volume", "volume_size": 2, "boot_index": 0,
            **values}


def test_server_boots_from_a_cinder_volume(admin, member, flavor, cinder, driver):
    volume = cinder.new(MEMBER, bootable=True, image={"image_id": "i", "min_ram": "0", "hw_disk_bus": "scsi"})
    uuid = boot(member, flavor, from_volume(volume))
    admin.wait(uuid, "ACTIVE")
    assert (cinder.volumes[volume].status, cinder.servers_of(volume)) == ("in-use", [uuid])
    assert dict(driver.guest(uuid).volumes) == {"/dev/vda": volume}
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    assert (cinder.attachments, cinder.volumes[volume].status) == ({}, "available")


def test_server_boots_from_new_cinder_root_and_data_volumes(admin, member, flavor, image_id, cinder, driver):
    cinder.looks = 2
    uuid = boot(member, flavor, from_image(image_id), new_disk(delete_on_termination=True, volume_type="fast"))
    admin.wait(uuid, "ACTIVE", seconds=60)
    system, = [volume for volume in cinder.volumes.values() if volume.bootable]
    other, = [volume for volume in cinder.volumes.values() if not volume.bootable]
    assert (system.project, system.size, system.name, other.name) == (MEMBER, 2, "", f"{uuid}-blank-vol")
    assert other.volume_type == "fast"
    assert dict(driver.guest(uuid).volumes) == {"/dev/vda": system.id, "/dev/vdb": other.id}
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    assert list(cinder.volumes) == [system.id]


@pytest.mark.parametrize("how", ["error after", pytest.param("silence", marks=pytest.mark.slow),
                                 pytest.param("silence after", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["create_volume", "create_attachment", "update_attachment", "complete_attachment"])
def test_boot_creates_a_cinder_volume_once_despite_failures(admin, member, flavor, image_id, cinder, driver, verb, how):
    cinder.fail(verb, how)
    uuid = boot(member, flavor, from_image(image_id))
    admin.wait(uuid, "ACTIVE", seconds=60)
    volume, = cinder.volumes
    assert (dict(driver.guest(uuid).volumes), cinder.servers_of(volume)) == ({"/dev/vda": volume}, [uuid])


def test_boot_fails_when_cinder_cannot_create_a_volume_with_the_user_token(admin, member, flavor, image_id, cinder):
    cinder.fail("create_volume", "error", times=CONF.cinder.http_retries + 1)
    uuid = boot(member, flavor, from_image(image_id))
    assert "create the server again" in admin.wait(uuid, "ERROR", seconds=60)["fault"]["message"]
    assert (cinder.volumes, cinder.attachments) == ({}, {})


@pytest.mark.parametrize("verb", ["create_volume", "create_attachment", "update_attachment", "complete_attachment"])
def test_boot_refused_by_cinder_leaves_no_volumes_or_attachments(admin, member, flavor, image_id, cinder, verb):
    kept = cinder.new(MEMBER)
    cinder.fail(verb, "refuse", times=4)
    uuid = boot(member, flavor, from_image(image_id), from_volume(kept, boot_index=None))
    assert "it was told to refuse" in admin.wait(uuid, "ERROR", seconds=60)["fault"]["message"]
    assert (list(cinder.volumes), cinder.attachments) == ([kept], {})
    assert cinder.volumes[kept].status == "available"
    assert attached(member, uuid) == []


def test_boot_fails_when_the_new_volume_goes_to_error(admin, member, flavor, image_id, cinder):
    cinder.outcome = "error"
    uuid = boot(member, flavor, from_image(image_id))
    assert "is in status error" in admin.wait(uuid, "ERROR", seconds=60)["fault"]["message"]
    assert (cinder.volumes, cinder.attachments) == ({}, {})


def test_failed_spawn_deletes_the_volume_attachment(suite, admin, member, flavor, cinder, driver):
    volume = cinder.new(MEMBER, bootable=True)
    driver.behaviour.failure["spawn"] = 1.0
    uuid = boot(member, flavor, from_volume(volume))
    admin.wait(uuid, "ERROR", seconds=60)
    assert (cinder.attachments, cinder.volumes[volume].status) == ({}, "available")


def test_delete_server_while_cinder_creates_its_volume(admin, member, flavor, image_id, cinder):
    cinder.looks = 1000
    uuid = boot(member, flavor, from_image(image_id))
    wait_for(lambda: cinder.volumes, 20)
    made, = cinder.volumes.values()
    made.looks = 0
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid, 40)
    assert (cinder.volumes, cinder.attachments) == ({}, {})


@pytest.mark.parametrize(("status", "bootable", "text"), [
    ("in-use", True, "must be available"), ("available", False, "is not bootable")])
def test_boot_from_an_invalid_volume_is_refused(member, flavor, cinder, status, bootable, text):
    volume = cinder.new(MEMBER, status=status, bootable=bootable)
    with pytest.raises(Failed) as failed:
        boot(member, flavor, from_volume(volume))
    assert (failed.value.code, text in failed.value.message) == (400, True)
    cinder.volumes.clear()


@pytest.mark.parametrize("protocol", ["nfs", "rbd"])
def test_device_type_lun_is_refused_for_every_cinder_back_end_without_leftovers(member, flavor, cinder, protocol):
    """No host connects volumes by a protocol that takes SCSI commands, so the request is refused, not the build."""
    volume = cinder.new(MEMBER, bootable=True, kind=protocol)
    code, message = refused(lambda: boot(member, flavor, from_volume(volume, device_type="lun")))
    assert (code, "device_type=lun" in message) == (400, True), message
    assert (cinder.attachments, cinder.volumes[volume].status) == ({}, "available")
    assert member.get("/servers")["servers"] == []


# --- shelve ----------------------------------------------------------------------------------------------
def way(cinder, volume):
    """Return the hosts with a connector in the attachments of the volume."""
    return [attachment.connector["host"] for attachment in cinder.attachments.values()
            if attachment.volume == volume and attachment.connector]


@pytest.mark.parametrize("how", [None, "error after"])
def test_shelve_reserves_volumes_and_removes_their_connectors(
        suite, admin, member, flavor, cinder, driver, how):
    system, data = cinder.new(MEMBER, bootable=True), cinder.new(MEMBER)
    server = boot(member, flavor, from_volume(system))
    admin.wait(server, "ACTIVE")
    attach(member, server, data)
    wait_status(cinder, data, "in-use")
    if how:
        cinder.fail("delete_attachment", how)
    member.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED", seconds=60)
    for volume in (system, data):
        assert (cinder.servers_of(volume), way(cinder, volume)) == ([server], [])
        assert cinder.volumes[volume].status != "available"
    if how:
        cinder.fail("update_attachment", how)
    member.action(server, "unshelve")
    admin.wait(server, "ACTIVE", seconds=60)
    for volume in (system, data):
        assert (cinder.volumes[volume].status, way(cinder, volume)) == ("in-use", [suite.compute.host])
    assert dict(driver.guest(server).volumes) == {"/dev/vda": system, "/dev/vdb": data}


def test_failed_unshelve_removes_the_volume_connector(admin, member, flavor, cinder, driver):
    volume = cinder.new(MEMBER, bootable=True)
    server = boot(member, flavor, from_volume(volume))
    admin.wait(server, "ACTIVE")
    member.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED", seconds=60)
    driver.behaviour.failure["spawn"] = 1.0
    member.action(server, "unshelve")
    assert admin.wait_idle(server, seconds=60)["status"] == "SHELVED_OFFLOADED"
    assert (cinder.servers_of(volume), way(cinder, volume)) == ([server], [])
    member.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert (cinder.attachments, cinder.volumes[volume].status) == ({}, "available")


@pytest.mark.parametrize("number", ["\u00b2", "9" * 200, "1e3", "-1", ""])
@pytest.mark.parametrize("name", ["min_ram", "min_disk", "size"])
def test_boot_ignores_unusable_numbers_in_volume_image_metadata(
        admin, member, flavor, cinder, name, number):
    """Check numbers that messages cannot carry: users may set any text, and such a row would break server lists."""
    volume = cinder.new(MEMBER, bootable=True, size=2, image={"image_id": "i", name: number})
    server = boot(member, flavor, from_volume(volume))
    admin.wait(server, "ACTIVE", seconds=60)
    assert server in [each["id"] for each in admin.get("/servers/detail", all_tenants=1)["servers"]]


def test_hanging_cinder_does_not_block_image_creation(admin, member, flavor, image_id, cinder):
    other, *servers = [member.boot(flavor, image_id) for _number in range(CONF.conductor.outside_threads + 1)]
    for uuid in (other, *servers):
        admin.wait(uuid, "ACTIVE")
    held = [cinder.hold("create_attachment") for _uuid in servers]
    try:
        for uuid in servers:
            attach(member, uuid, cinder.new(MEMBER))
        for asked, _release in held:
            assert asked.wait(20)
        image = member.action(other, "createImage", {"name": "s"})["image_id"]
        wait_for(lambda: member.get(f"/images/{image}", version="2.35")["image"]["status"] == "ACTIVE", 10)
        member.call("DELETE", f"/images/{image}", version="2.35")
    finally:
        for _asked, release in held:
            release()


def test_fault_about_a_missing_volume_connector_hides_the_host_name(suite, admin, member, flavor, cinder):
    volume, db, services = cinder.new(MEMBER, bootable=True, size=2), suite.conductor.core.db, tables.services
    ours = services.c.host == suite.compute.host
    known = db.read(lambda connection: connection.scalar(sa.select(services.c.connector).where(ours)))
    db.write(lambda connection: connection.execute(services.update().where(ours).values(connector=None)))
    try:
        server = boot(member, flavor, from_volume(volume))
        admin.wait(server, "ERROR", seconds=60)
        message = member.get(f"/servers/{server}")["server"]["fault"]["message"]
        assert "volume connector" in message
        assert suite.compute.host not in message.split()
    finally:
        db.write(lambda connection: connection.execute(services.update().where(ours).values(connector=known)))
