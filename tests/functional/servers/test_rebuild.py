"""Rebuild over HTTP on fake hosts: preserved and replaced attributes, refusals and failures."""

import base64
import uuid

import pytest

from nova.cmd import manage
from nova.conf import CONF
from tests.functional.client import Client, Failed, wait_for
from tests.functional.several_hosts import error_of, events_of, refused, used

_LATEST = "2.100"


@pytest.fixture
def server(suite, admin, flavor, image_id, driver):
    uuid_ = admin.boot(flavor, image_id, metadata={"old": "1"})
    admin.wait(uuid_, "ACTIVE")
    return uuid_


def rebuild(client, server, image, version=_LATEST, **values):
    return client.action(server, "rebuild", {"imageRef": image, **values}, version=version, expect=202)["server"]


def refusal(client, server, image, version=_LATEST, **values):
    return refused(lambda: client.action(server, "rebuild", {"imageRef": image, **values}, version=version))


# --- successful rebuilds -------------------------------------------------------------------------------
def test_rebuild_replaces_disks_and_keeps_the_server_identity(admin, server, driver, image_id, new_image):
    before, disk, image = admin.server(server), driver.disk(server), new_image(hw_disk_bus="scsi")
    shown = rebuild(admin, server, image, name="again", description="anew", metadata={"new": "2"},
                    accessIPv4="192.0.2.1", accessIPv6="2001:db8:0::1", hostname="fresh", adminPass="secret-pass")
    assert (shown["id"], shown["image"]["id"], shown["name"]) == (server, image, "again")
    assert (shown["adminPass"], shown["status"] in ("REBUILD", "ACTIVE")) == ("secret-pass", True)
    after = admin.wait(server, "ACTIVE")
    for name in ("id", "OS-EXT-SRV-ATTR:host", "OS-EXT-SRV-ATTR:instance_name", "addresses", "flavor", "created",
                 "OS-EXT-AZ:availability_zone"):
        assert after[name] == before[name]
    assert (after["name"], after["description"], after["metadata"], after["accessIPv4"], after["accessIPv6"],
            after["OS-EXT-SRV-ATTR:hostname"]) == ("again", "anew", {"new": "2"}, "192.0.2.1", "2001:db8::1", "fresh")
    assert after["image"]["id"] == image
    assert admin.server(server, version="2.98")["image"]["properties"] == {"hw_disk_bus": "scsi"}
    assert driver.disk(server).token != disk.token
    assert events_of(admin, server, "rebuild") == [
        ("rebuild_server", "Success", None), ("compute_rebuild_instance", "Success", CONF.host)]


def test_rebuild_of_a_stopped_server_keeps_it_stopped(admin, server, driver, image_id):
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    disk = driver.disk(server)
    rebuild(admin, server, image_id)
    after = admin.wait(server, "SHUTOFF")
    assert (after["OS-EXT-STS:power_state"], driver.disk(server).token != disk.token) == (4, True)
    admin.action(server, "os-start")
    admin.wait(server, "ACTIVE")


def test_rebuild_keeps_attributes_missing_from_the_request(admin, server, image_id):
    before = admin.server(server, version=_LATEST)
    rebuild(admin, server, image_id)
    admin.wait(server, "ACTIVE")
    after = admin.server(server, version=_LATEST)
    different = {name for name in before if before[name] != after[name]}
    assert different <= {"updated", "OS-SRV-USG:launched_at"}


def test_rebuild_sets_and_unsets_key_name_and_user_data(admin, server, image_id):
    admin.post("/os-keypairs", {"keypair": {"name": "k"}}, version="2.1")
    try:
        data = base64.b64encode(b"#!").decode()
        shown = rebuild(admin, server, image_id, key_name="k", user_data=data)
        assert (shown["key_name"], shown["user_data"]) == ("k", data)
        admin.wait(server, "ACTIVE")
        shown = rebuild(admin, server, image_id, key_name=None, user_data=None)
        assert (shown["key_name"], shown["user_data"]) == (None, None)
        admin.wait(server, "ACTIVE")
        assert refusal(admin, server, image_id, key_name="other") == (400, "Invalid key_name provided.")
    finally:
        admin.delete("/os-keypairs/k")


@pytest.mark.parametrize(("version", "there", "not_there"), [
    ("2.8", {"adminPass"}, {"locked", "key_name", "user_data", "OS-EXT-STS:vm_state"}),
    ("2.53", {"locked", "description", "tags"}, {"key_name", "user_data"}),
    ("2.54", {"key_name"}, {"user_data"}),
    ("2.57", {"user_data"}, {"OS-EXT-STS:vm_state", "trusted_image_certificates"}),
    ("2.75", {"OS-EXT-STS:vm_state", "OS-EXT-SRV-ATTR:host", "host_status", "server_groups"},
     {"OS-EXT-SRV-ATTR:user_data"}),
    ("2.100", {"scheduler_hints", "pinned_availability_zone"}, {"OS-EXT-SRV-ATTR:user_data"})])
def test_rebuild_response_fields_by_microversion(admin, server, image_id, version, there, not_there):
    shown = rebuild(admin, server, image_id, version=version)
    assert there <= shown.keys()
    assert not not_there & shown.keys()
    admin.wait(server, "ACTIVE")


def test_rebuild_accepts_personality_files_before_2_57(admin, server, image_id, suite):
    files = [{"path": "/etc/motd", "contents": base64.b64encode(b"hello").decode()}]
    rebuild(admin, server, image_id, version="2.1", personality=files)
    admin.wait(server, "ACTIVE")
    assert refusal(admin, server, image_id, version="2.57", personality=files)[0] == 400
    assert refusal(admin, server, image_id, version="2.1", personality=[{"path": "/x"}]) == (
        400, "Bad personality format: missing contents")


def test_rebuild_response_location_is_the_server_url(admin, server, image_id):
    response = admin.session.post(f"{admin.url}/v2.1/servers/{server}/action",
                                  json={"rebuild": {"imageRef": image_id}}, timeout=60)
    assert (response.status_code, response.headers["Location"]) == (202, f"{admin.url}/v2.1/servers/{server}")
    admin.wait(server, "ACTIVE")


def test_rebuild_omits_admin_pass_without_enable_instance_password(admin, server, image_id):
    CONF.set_override("enable_instance_password", False, "api")
    try:
        assert "adminPass" not in rebuild(admin, server, image_id)
    finally:
        CONF.clear_override("enable_instance_password", "api")
    admin.wait(server, "ACTIVE")


# --- refusals --------------------------------------------------------------------------------------------
def test_rebuild_with_invalid_images_is_refused(suite, admin, server, image_id, new_image):
    unknown = str(uuid.uuid4())
    for image, words in (
            (unknown, "Can not find requested image"),
            (new_image(visibility="private", owner="other"), "Can not find requested image"),
            (new_image(min_ram=1 << 20), "memory"), (new_image(min_disk=100), "smaller than the minimum size"),
            (new_image(block_device_mapping="[{}]"), "it describes volumes"),
            (new_image(hw_numa_nodes="1"), "NUMA constraints")):
        member = Client(suite.url, user="m", roles="member,reader")
        code, message = refusal(member, server, image)
        assert (code, words in message) == (400, True), message
    assert refusal(admin, unknown, image_id)[0] == 404
    assert refusal(admin, server, image_id, metadata={f"k{number}": "v" for number in range(129)})[0] == 403
    assert admin.server(server)["status"] == "ACTIVE"


def test_rebuild_of_locked_or_paused_server_is_refused(admin, member, server, image_id):
    admin.action(server, "lock")
    assert refusal(member, server, image_id) == (409, f"Instance {server} is locked")
    admin.action(server, "unlock")
    admin.action(server, "pause")
    admin.wait(server, "PAUSED")
    assert refusal(member, server, image_id) == (
        409, f"Cannot 'rebuild' instance {server} while it is in vm_state paused")


def test_rebuild_with_certificates_requires_signature_verification(admin, server, image_id):
    code, message = refusal(admin, server, image_id, trusted_image_certificates=["one"])
    assert (code, "are not verified" in message) == (400, True)


# --- failures --------------------------------------------------------------------------------------------
def test_rebuild_with_unsupported_image_keeps_the_old_disk(admin, server, driver, image_id, new_image):
    disk = driver.disk(server)
    rebuild(admin, server, new_image(hw_architecture="s390x"))
    shown = admin.wait(server, "ERROR")
    assert "No valid host" in shown["fault"]["message"]
    assert (shown["image"]["id"], driver.disk(server)) == (image_id, disk)
    assert used(admin, CONF.host)[1] == 1
    assert "No valid host" in error_of(admin, server, "rebuild")
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")


def test_rebuild_with_image_requiring_a_missing_trait_fails(admin, server, image_id, new_image):
    rebuild(admin, server, new_image(**{"trait:CUSTOM_NOT_HERE": "required"}))
    assert admin.wait(server, "ERROR")["image"]["id"] == image_id


def test_rebuild_works_on_a_disabled_host(suite, admin, server, new_image):
    service = admin.get("/os-services", host=CONF.host, binary="nova-compute")["services"][0]["id"]
    admin.put(f"/os-services/{service}", {"status": "disabled"})
    try:
        rebuild(admin, server, new_image())
        admin.wait(server, "ACTIVE")
    finally:
        admin.put(f"/os-services/{service}", {"status": "enabled"})


@pytest.mark.parametrize("repair", ["rebuild", "reboot", "stop"])
@pytest.mark.parametrize(("verb", "done"), [("rebuild", False), ("spawn", True)])
def test_server_can_be_repaired_after_a_failed_rebuild(
        admin, server, driver, image_id, new_image, repair, verb, done, capsys):
    disk, image = driver.disk(server), new_image()
    driver.behaviour.failure[verb] = 1.0
    rebuild(admin, server, image)
    shown = admin.wait(server, "ERROR")
    assert f"configured to fail at {verb}" in shown["fault"]["message"]
    assert (driver.disk(server).token != disk.token, shown["image"]["id"]) == (done, image if done else image_id)
    driver.behaviour.failure.clear()
    if repair == "rebuild":
        rebuild(admin, server, image)
    elif repair == "reboot":
        admin.action(server, "reboot", {"type": "HARD"})
    else:  # a missing guest counts as stopped
        admin.action(server, "os-stop")
        admin.wait(server, "SHUTOFF")
        assert (manage.main(["audit", "--settle", "0.1"]), capsys.readouterr().out) == (0, "")
        admin.action(server, "os-start")
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-STS:power_state"], used(admin, CONF.host)[1]) == (1, 1)


def test_delete_server_during_rebuild(admin, server, hold, image_id, driver):
    held = hold("disks.replace")
    rebuild(admin, server, image_id)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: driver.disk(server) is None)
    with pytest.raises(Failed):
        admin.server(server)
