# ruff: noqa: F811 - fixtures of other modules
"""Images of servers booted from volumes: snapshots of the volumes, and servers created from them."""

import json
import os

import pytest

from nova import context
from nova.conductor.resources.attachments import EmbeddedAttachments
from nova.conductor.saga import step_executor
from nova.conf import CONF
from nova.db.servers import servers
from nova.image.directory import DirectoryStore
from nova.operations import volume_image
from tests.functional.client import Client, Failed, wait_for
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import error_of, events_of, newest_action, refused, set_service
from tests.functional.volumes.test_cinder import MEMBER, attach, boot, cinder, from_volume, outside, wait_status  # noqa: F401

AGENT = {"hw_qemu_guest_agent": "yes"}


@pytest.fixture(autouse=True)
def no_image_left(suite, image_id, cinder):
    """Check that the test leaves no images and snapshots."""
    yield
    store = DirectoryStore()
    for name in os.listdir(store.directory):
        if image_id not in name and name != ".lock":
            os.unlink(os.path.join(store.directory, name))
    cinder.snapshots.clear()
    cinder.most_snapshots = -1


def booted(admin, member, flavor, cinder, image=(), **values):
    """Boot a server from a volume with this image metadata; return both."""
    volume = cinder.new(MEMBER, bootable=True, size=2, image={"image_id": "i", **dict(image)})
    server = boot(member, flavor, from_volume(volume, **values), name="web")
    admin.wait(server, "ACTIVE", seconds=60)
    return server, volume


@pytest.fixture
def served(admin, member, flavor, cinder):
    return booted(admin, member, flavor, cinder)


@pytest.fixture
def with_agent(admin, member, flavor, cinder):
    return booted(admin, member, flavor, cinder, AGENT)


def image_of(client, image_id):
    return client.get(f"/images/{image_id}", version="2.35")["image"]


def images(client):
    return {each["name"]: each["id"] for each in client.get("/images", version="2.35")["images"]}


def create(client, server, **values):
    return client.action(server, "createImage", {"name": "s", **values})["image_id"]


def saved(client, server, **values):
    made = create(client, server, **values)
    wait_for(lambda: image_of(client, made)["status"] == "ACTIVE", 60, "the image is active")
    return made


def failed(admin, server):
    """Return the reason of the failed image after the operation ended."""
    wait_for(lambda: newest_action(admin, server, "createImage")["message"], 60, "the image creation has failed")
    return error_of(admin, server, "createImage")


def nothing_made(client, cinder, image_id):
    """Wait until the image is deleted: its deletion is a deferred cleanup after the end of the action."""
    def gone():
        try:
            image_of(client, image_id)
        except Failed as error:
            return error.code == 404

    wait_for(gone, 15, "the image is deleted")
    assert cinder.snapshots == {}


def test_volume_metadata_does_not_set_image_owner_or_visibility(member, admin, flavor, cinder):
    """Check volume image metadata, which users may set in Cinder while Nova creates the image with its own rights."""
    said = {"owner": "victim", "visibility": "public", "id": "mine", "locations": "file:///etc/shadow",
            "protected": "true", "os_hidden": "false", "members": "x", "os_glance_import_task": "x",
            "os_distro": "debian"}
    server, _volume = booted(admin, member, flavor, cinder, said)
    made = DirectoryStore().show(None, saved(member, server))
    assert said.keys() & made.properties.keys() == {"os_distro"}
    assert (made.owner, made.visibility, made.members, made.protected) == (MEMBER, "private", [], False)


# --- create image ----------------------------------------------------------------------------------------
def test_create_image_snapshots_all_volumes(suite, admin, member, served, cinder):
    server, root = served
    other = cinder.new(MEMBER, size=3)
    attach(member, server, other, tag="data")
    wait_status(cinder, other, "in-use")
    made, messages, _statements = measured(suite, member, lambda: create(member, server, metadata={"colour": "red"}))
    assert sum(messages.values()) <= 4, messages
    shown = image_of(member, made)
    assert (shown["status"], shown["minDisk"], shown["OS-EXT-IMG-SIZE:size"], shown["server"]["id"]) == (
        "ACTIVE", 0, 0, server)
    told = shown["metadata"]
    snapshots = {each.volume.id: each for each in cinder.snapshots.values()}
    assert {each.name for each in snapshots.values()} == {"snapshot for s"}
    assert {volume: each.volume.size for volume, each in snapshots.items()} == {root: 2, other: 3}
    assert (told["bdm_v2"], told["root_device_name"], told["colour"], told["image_type"]) == (
        "True", "/dev/vda", "red", "snapshot")
    common = {"source_type": "snapshot", "destination_type": "volume", "delete_on_termination": False}
    assert json.loads(told["block_device_mapping"]) == [
        common | {"snapshot_id": snapshots[root].id, "boot_index": 0, "volume_size": 2, "device_name": "/dev/vda"},
        common | {"snapshot_id": snapshots[other].id, "boot_index": -1, "volume_size": 3, "device_name": "/dev/vdb",
                  "tag": "data"}]
    assert {project for verb, project in cinder.asked if verb == "create_snapshot"} == {MEMBER}
    assert (admin.server(server)["status"], admin.server(server)["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    assert [event[:2] for event in events_of(admin, server, "createImage")] == [("api_snapshot_instance", "Success")]


@pytest.mark.parametrize(("way", "status"), [("os-stop", "SHUTOFF"), ("pause", "PAUSED"), ("suspend", "SUSPENDED")])
def test_create_image_of_a_guest_that_is_not_running(member, with_agent, cinder, driver, way, status):
    server, _root = with_agent
    member.action(server, way)
    member.wait(server, status)
    driver.behaviour.failure["quiesce"] = 1.0
    saved(member, server)
    assert member.server(server)["status"] == status


def test_guest_is_quiesced_while_snapshots_are_created(suite, admin, member, with_agent, cinder, driver):
    server, _root = with_agent
    asked, release = cinder.hold("create_snapshot")
    made = create(member, server)
    assert asked.wait(20)
    assert server in driver.state.quiesced
    release()
    wait_for(lambda: image_of(member, made)["status"] == "ACTIVE", 60)
    assert server not in driver.state.quiesced


def test_guest_stays_quiesced_until_snapshots_are_available(member, with_agent, cinder, driver):
    server, _root = with_agent
    cinder.looks = 10**6
    made = create(member, server)
    wait_for(lambda: cinder.snapshots, 20)
    assert server in driver.state.quiesced
    snapshot, = cinder.snapshots.values()
    snapshot.looks = 0
    wait_for(lambda: server not in driver.state.quiesced, 30)
    wait_for(lambda: image_of(member, made)["status"] == "ACTIVE", 60)


def test_create_image_with_quiesce_costs_two_more_calls(suite, member, with_agent):
    server, _root = with_agent
    _made, messages, _statements = measured(suite, member, lambda: create(member, server))
    assert sum(messages.values()) <= 8, messages


def test_create_image_succeeds_without_an_agent_response(member, with_agent, cinder, driver):
    server, _root = with_agent
    driver.state.without_agent.add(server)
    saved(member, server)


def test_create_image_that_requires_quiesce_fails_without_an_agent(admin, member, flavor, cinder, driver):
    server, _root = booted(admin, member, flavor, cinder, {"os_require_quiesce": "yes"})
    assert refused(lambda: create(member, server)) == (
        409, f"Instance {server} cannot be quiesced: its image does not have the property hw_qemu_guest_agent")
    server, _root = booted(admin, member, flavor, cinder, {**AGENT, "os_require_quiesce": "yes"})
    driver.state.without_agent.add(server)
    made = create(member, server)
    assert "cannot be quiesced" in failed(admin, server)
    nothing_made(member, cinder, made)


def test_create_image_that_requires_quiesce_fails_on_timeout(admin, member, flavor, cinder, driver, monkeypatch):
    server, _root = booted(admin, member, flavor, cinder, {**AGENT, "os_require_quiesce": "yes"})
    monkeypatch.setattr(volume_image, "QUIESCE_TIMEOUT", 0.0)
    made = create(member, server)
    assert "longer than file systems may stay quiesced" in failed(admin, server)
    nothing_made(member, cinder, made)
    assert server not in driver.state.quiesced


def test_host_shutdown_unquiesces_guests(suite, second, admin, flavor, image_id):
    server = admin.boot(flavor, image_id, availability_zone=f"nova:{second.host}")
    admin.wait(server, "ACTIVE", seconds=60)
    driver = second.machine.driver
    second.quiesce(context.admin(), suite.conductor.core.db.read(lambda connection: servers.get(connection, server)))
    assert driver.state.quiesced == {server}
    second.stop()
    assert driver.state.quiesced == set()
    set_service(admin, second.host, forced_down=True)  # Resources of the host are removed without it.


@pytest.mark.parametrize("deleted", [False, True])
def test_host_failure_during_quiesce_does_not_block_image_or_delete(
        second, admin, member, flavor, cinder, deleted):
    volume = cinder.new(MEMBER, bootable=True, image={"image_id": "i", **AGENT})
    server = boot(admin, flavor, from_volume(volume), availability_zone=f"nova:{second.host}")
    admin.wait(server, "ACTIVE", seconds=60)
    asked, release = cinder.hold("create_snapshot")
    made = create(member, server)
    assert asked.wait(20)
    second.stop()
    set_service(admin, second.host, forced_down=True)
    release()
    if not deleted:
        wait_for(lambda: image_of(member, made)["status"] == "ACTIVE", 40)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server, 40)


# --- refusals and failures -------------------------------------------------------------------------------
def test_invalid_create_image_requests_are_refused(suite, member, served, cinder):
    server, root = served
    cinder.most_snapshots = 0
    code, message = refused(lambda: create(member, server))
    assert (code, "Quota exceeded" in message) == (403, True)
    cinder.most_snapshots = -1
    cinder.volumes[root].status = "extending"
    code, message = refused(lambda: create(member, server))
    assert (code, "must be in-use, but is extending" in message) == (400, True)
    cinder.volumes[root].status = "in-use"
    cinder.fail("limits", "error", times=10)
    assert refused(lambda: create(member, server))[0] == 503
    cinder._failures.clear()
    assert refused(lambda: create(member, server, metadata={"size": "1"}))[0] == 400
    assert refused(lambda: member.action(
        server, "createBackup", {"name": "b", "backup_type": "daily", "rotation": 1})) == (
        400, "Backup is not supported for volume-backed instances.")
    reader = Client(suite.url, roles="reader")
    assert refused(lambda: create(reader, server))[0] == 403
    assert (cinder.snapshots, images(member).keys() & {"s", "b"}) == ({}, set())


def test_create_image_during_another_action_is_refused(admin, member, served, cinder):
    """Check the refusal: a queued action has no user token, which snapshots require."""
    server, root = served
    asked, release = cinder.hold("create_snapshot")
    made = create(member, server)
    assert asked.wait(20)
    assert refused(lambda: create(member, server, name="second")) == (
        409, f"Cannot 'createImage' instance {server} while another operation runs on it")
    release()
    wait_for(lambda: image_of(member, made)["status"] == "ACTIVE", 60)
    assert [each.volume.id for each in cinder.snapshots.values()] == [root]
    assert "second" not in images(member)


@pytest.mark.parametrize("how", ["error", "error after", "silence", "silence after"])
@pytest.mark.parametrize("verb", ["create_snapshot", "list_snapshots"])
def test_cinder_failure_during_create_image_creates_each_snapshot_once(member, served, cinder, verb, how):
    server, root = served
    cinder.fail(verb, how)
    saved(member, server)
    assert [each.volume.id for each in cinder.snapshots.values()] == [root]


def test_refused_second_snapshot_removes_the_first_snapshot(admin, member, served, cinder, driver, with_agent):
    server, _root = with_agent
    other = cinder.new(MEMBER)
    attach(member, server, other)
    wait_status(cinder, other, "in-use")
    cinder.looks = 2
    cinder.most_snapshots = 1
    made = None
    with_room = cinder.limits
    cinder.limits = lambda project: {"absolute": {"totalSnapshotsUsed": 0, "maxTotalSnapshots": -1}}
    try:
        made = create(member, server)
        assert "SnapshotLimitExceeded" in failed(admin, server)
    finally:
        cinder.limits = with_room
    nothing_made(member, cinder, made)
    assert server not in driver.state.quiesced
    assert admin.server(server)["status"] == "ACTIVE"


def test_failed_snapshot_fails_the_image_and_leaves_no_snapshots(admin, member, served, cinder):
    server, root = served
    cinder.outcome = "error"
    made = create(member, server)
    assert f"created no usable snapshot of volume {root}" in failed(admin, server)
    nothing_made(member, cinder, made)


def test_snapshot_timeout_fails_the_image_and_leaves_no_snapshots(admin, member, served, cinder, monkeypatch):
    server, _root = served
    monkeypatch.setattr(step_executor, "_PAUSE", 0.2)
    CONF.set_override("block_device_allocate_retries", 1)
    try:
        cinder.looks = 6
        made = create(member, server)
        assert "did not create the snapshots before the time limit" in failed(admin, server)
    finally:
        CONF.clear_override("block_device_allocate_retries")
    nothing_made(member, cinder, made)


def test_snapshot_deleted_meanwhile_fails_the_image(admin, member, served, cinder):
    server, root = served
    cinder.looks = 2
    made = create(member, server)
    wait_for(lambda: cinder.snapshots, 20)
    cinder.snapshots.clear()
    assert f"created no usable snapshot of volume {root}" in failed(admin, server)
    nothing_made(member, cinder, made)


def test_delete_image_during_creation_removes_its_snapshots(admin, member, served, cinder):
    server, _root = served
    cinder.looks = 3
    made = create(member, server)
    member.call("DELETE", f"/images/{made}", version="2.35")
    assert failed(admin, server) == f"Image {made} could not be found."
    nothing_made(member, cinder, made)


@pytest.mark.parametrize("after", [False, True])
def test_delete_server_during_create_image_leaves_no_snapshots(admin, member, with_agent, cinder, after):
    server, _root = with_agent
    asked, release = cinder.hold("create_snapshot", after=after)
    made = create(member, server)
    assert asked.wait(20)
    admin.delete(f"/servers/{server}")
    release()
    admin.wait_gone(server, 60)
    # A call without a response is retried; wait for that before the next test.
    wait_for(lambda: cinder.count("create_snapshot") > 1, 30)
    wait_for(lambda: cinder.snapshots == {}, 30)
    nothing_made(member, cinder, made)


def test_hard_reboot_during_create_image_unquiesces_and_leaves_no_snapshots(admin, member, with_agent, cinder, driver):
    server, _root = with_agent
    asked, release = cinder.hold("create_snapshot", after=True)
    made = create(member, server)
    assert asked.wait(20)
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE", seconds=60)
    release()
    wait_for(lambda: cinder.snapshots == {}, 30)
    nothing_made(member, cinder, made)
    assert server not in driver.state.quiesced


def test_create_image_of_an_embedded_volume_is_refused(admin, member, served, cinder, suite):
    server, _root = served
    core = suite.conductor.core
    outside = core.attachments
    core.attachments = EmbeddedAttachments(core.db)
    try:
        code, message = refused(lambda: create(member, server))
    finally:
        core.attachments = outside
    assert (code, message) == (400, "Invalid volume: volumes of the embedded back end have no snapshots")


# --- boot from volume images -----------------------------------------------------------------------------
def made_from(cinder):
    """Return the volumes created from snapshots, beginning with the root volume."""
    return sorted((volume for volume in cinder.volumes.values() if volume.snapshot),
                  key=lambda volume: not volume.bootable)


def test_server_boots_from_a_volume_image_with_new_volumes(admin, member, flavor, served, cinder, driver):
    server, _root = served
    other = cinder.new(MEMBER, size=3)
    attach(member, server, other)
    wait_status(cinder, other, "in-use")
    image = saved(member, server, metadata={"hw_disk_bus": "scsi"})
    uuid = member.boot(flavor, image)
    shown = admin.wait(uuid, "ACTIVE", seconds=60)
    system, data = made_from(cinder)
    assert (shown["image"], dict(driver.guest(uuid).volumes)) == ("", {"/dev/sda": system.id, "/dev/sdb": data.id})
    assert (system.size, data.size, system.project) == (2, 3, MEMBER)
    properties = member.get(f"/servers/{uuid}", version="2.98")["server"]["image"]
    assert properties == ""
    again = saved(member, uuid, name="again")
    assert json.loads(image_of(member, again)["metadata"]["block_device_mapping"])[0]["device_name"] == "/dev/sda"
    for each in (uuid, server):
        admin.delete(f"/servers/{each}")
        admin.wait_gone(each)


def test_servers_boot_from_a_volume_image_with_additional_volumes(admin, member, flavor, served, cinder):
    server, _root = served
    image = saved(member, server)
    member.boot(flavor, image, min_count=2, max_count=2, block_device_mapping_v2=[
        {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "boot_index": -1}])
    servers = [each["id"] for each in admin.get("/servers")["servers"] if each["id"] != server]
    for uuid in servers:
        admin.wait(uuid, "ACTIVE", seconds=60)
    assert sorted(cinder.servers_of(volume.id)[0] for volume in made_from(cinder)) == sorted(servers)
    assert all(len(admin.server(uuid)["os-extended-volumes:volumes_attached"]) == 2 for uuid in servers)


def test_request_overrides_a_block_device_of_the_image_by_name(admin, member, flavor, served, cinder, driver):
    server, _root = served
    other, mine = cinder.new(MEMBER, size=3), cinder.new(MEMBER)
    attach(member, server, other)
    wait_status(cinder, other, "in-use")
    image = saved(member, server)
    uuid = member.boot(flavor, image, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": mine, "destination_type": "volume", "device_name": "/dev/vdb",
         "boot_index": -1}])
    admin.wait(uuid, "ACTIVE", seconds=60)
    system, = made_from(cinder)
    assert dict(driver.guest(uuid).volumes) == {"/dev/vda": system.id, "/dev/vdb": mine}


def test_image_with_inaccessible_block_devices_is_refused(suite, member, flavor, served, cinder):
    server, _root = served
    image = saved(member, server)
    store = DirectoryStore()
    mapping = json.loads(image_of(member, image)["metadata"]["block_device_mapping"])
    other = cinder.new("other", bootable=True)

    def refusal(*devices, **values):
        store.set_properties(None, image, {"block_device_mapping": json.dumps(devices)}, replace=False)
        return refused(lambda: member.boot(flavor, image, **values))

    foreign = {**mapping[0], "source_type": "volume", "snapshot_id": None, "volume_id": other}
    assert refusal(foreign) == (400, f"Volume {other} could not be found.")
    assert refusal({**mapping[0], "snapshot_id": "none"})[0] == 400
    own = {**foreign, "volume_id": cinder.new(MEMBER, bootable=True)}
    assert refusal(own, max_count=2) == (400, "Cannot attach one or more volumes to multiple instances")
    for devices in ([{**mapping[0], "volume_size": "much"}], [{**mapping[0], "source_type": 5}], [{}], [],
                    [{**mapping[0], "boot_index": 1}], [{**mapping[0], "no_device": True}],
                    [{**mapping[0], "source_type": "nothing"}],
                    [{**mapping[0], "destination_type": "elsewhere"}], [{**mapping[0], "volume_size": -1}],
                    [{**mapping[0], "volume_size": 1}], [{**mapping[0], "volume_size": 2**40}],
                    [{**mapping[0], "device_name": "x" * 300}], [{**mapping[0], "tag": "a/b"}],
                    [{**mapping[0], "boot_index": 2**40}], mapping * 300):
        code, message = refusal(*devices)
        assert code == 400, (devices, code, message)
    for broken in ("[{", "[" * 60000):
        store.set_properties(None, image, {"block_device_mapping": broken}, replace=False)
        code, message = refused(lambda: member.boot(flavor, image))
        assert (code, "block_device_mapping" in message) == (400, True)
    code, _message = refused(lambda: member.boot(flavor, image, trusted_image_certificates=["c"], version="2.63"))
    assert code == 400


def test_volume_image_is_refused_for_rescue_rebuild_and_volume_creation(member, flavor, image_id, served):
    server, _root = served
    image = saved(member, server)
    assert refused(lambda: member.action(server, "rescue", {"rescue_image_ref": image}))[0] == 400
    assert refused(lambda: member.action(server, "rebuild", {"imageRef": image}))[0] == 400
    code, message = refused(lambda: member.boot(flavor, "", block_device_mapping_v2=[
        {"source_type": "image", "uuid": image, "destination_type": "volume", "volume_size": 1, "boot_index": 0}]))
    assert (code, "describes volumes" in message) == (400, True)
