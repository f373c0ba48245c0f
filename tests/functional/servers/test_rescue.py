"""Rescue and unrescue over HTTP on fake hosts."""

import datetime
import uuid

import pytest

from nova import bus, context
from nova.conductor.background import overdue
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import compute_nodes
from nova.objects.base import utcnow
from nova.rpcapi.volumes import Volumes
from tests.functional.client import Client, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.several_hosts import error_of, events_of, refused, used
from tests.unit.conductor.books import set_columns

_STABLE = {"hw_rescue_device": "disk", "hw_rescue_bus": "virtio"}


@pytest.fixture
def server(suite, admin, flavor, image_id, driver):
    uuid_ = admin.boot(flavor, image_id)
    admin.wait(uuid_, "ACTIVE")
    return uuid_


def rescue(client, server, **values):
    return client.action(server, "rescue", values or None, expect=200)


def refusal(client, server, version="2.96", **values):
    return refused(lambda: client.action(server, "rescue", values or None, version=version))


# --- successful rescues --------------------------------------------------------------------------------
@pytest.mark.parametrize("stopped", [False, True])
def test_rescue_and_unrescue_a_server(admin, server, driver, image_id, stopped):
    disk = driver.disk(server)
    if stopped:
        admin.action(server, "os-stop")
        admin.wait(server, "SHUTOFF")
    assert rescue(admin, server, adminPass="secret-pass") == {"adminPass": "secret-pass"}
    shown = admin.wait(server, "RESCUE")
    assert (shown["OS-EXT-STS:vm_state"], shown["OS-EXT-STS:power_state"]) == ("rescued", 1)
    assert driver.guest(server).rescued == image_id, "the server was not booted from the rescue image"
    assert events_of(admin, server, "rescue") == [("compute_rescue_instance", "Success", CONF.host)]
    admin.action(server, "unrescue", expect=202)
    assert admin.wait(server, "ACTIVE")["OS-EXT-STS:power_state"] == 1
    assert (driver.guest(server).rescued, driver.disk(server)) == ("", disk)
    assert events_of(admin, server, "unrescue") == [("compute_unrescue_instance", "Success", CONF.host)]
    assert used(admin, CONF.host)[1] == 1


def test_rescue_uses_the_requested_image_or_the_rescue_image_of_the_host(admin, server, driver, new_image):
    named, configured = new_image(), new_image()
    CONF.set_override("rescue_image_id", configured, "libvirt")
    try:
        for values, image in (({}, configured), ({"rescue_image_ref": named}, named)):
            rescue(admin, server, **values)
            admin.wait(server, "RESCUE")
            assert driver.guest(server).rescued == image
            admin.action(server, "unrescue")
            admin.wait(server, "ACTIVE")
    finally:
        CONF.clear_override("rescue_image_id", "libvirt")


def test_server_is_unrescued_after_rescue_timeout(suite, admin, server, driver):
    core, engine = suite.conductor.core, suite.conductor.engine
    rescue(admin, server)
    admin.wait(server, "RESCUE")
    overdue.unrescue(core, engine)  # no rescue_timeout is set
    CONF.set_override("rescue_timeout", 3600)
    try:
        overdue.unrescue(core, engine)
        assert admin.server(server)["status"] == "RESCUE", "the server was unrescued before its timeout"
        since = (utcnow() - datetime.timedelta(seconds=3601)).isoformat()
        set_columns(core, tables.instances, tables.instances.c.uuid == server, system_metadata={"rescued_at": since})
        overdue.unrescue(core, engine)
        admin.wait(server, "ACTIVE")
    finally:
        CONF.clear_override("rescue_timeout")
    assert driver.guest(server).rescued == ""
    overdue.unrescue(core, engine)
    assert admin.server(server)["status"] == "ACTIVE"


def test_rescue_omits_admin_pass_without_enable_instance_password(admin, server):
    CONF.set_override("enable_instance_password", False, "api")
    try:
        assert rescue(admin, server) == {}
    finally:
        CONF.clear_override("enable_instance_password", "api")
    admin.wait(server, "RESCUE")


def test_actions_allowed_and_refused_while_rescued(suite, admin, server, image_id):
    rescue(admin, server)
    admin.wait(server, "RESCUE")
    for action, value in (("os-stop", None), ("os-start", None), ("reboot", {"type": "HARD"}), ("pause", None),
                          ("rescue", None), ("rebuild", {"imageRef": image_id}), ("migrate", None)):
        code, message = refused(lambda action=action, value=value: admin.action(server, action, value))
        assert (code, message.rpartition("while")[2]) == (409, " it is in vm_state rescued")
    assert admin.get("/servers/detail", status="RESCUE")["servers"][0]["id"] == server
    admin.action(server, "os-getConsoleOutput", {})
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)


def test_unrescue_of_active_and_rescue_of_locked_server_are_refused(admin, member, server):
    assert refused(lambda: admin.action(server, "unrescue")) == (
        409, f"Cannot 'unrescue' instance {server} while it is in vm_state active")
    admin.action(server, "lock")
    assert refusal(member, server) == (409, f"Instance {server} is locked")


# --- refusals --------------------------------------------------------------------------------------------
def test_rescue_with_invalid_images_is_refused(suite, server, new_image):
    member = Client(suite.url, user="m", roles="member,reader")
    for image in (str(uuid.uuid4()), new_image(visibility="private", owner="other")):
        assert refusal(member, server, rescue_image_ref=image) == (400, "Can not find requested image")
    assert refusal(member, server, rescue_image_ref=new_image(block_device_mapping="[{}]"))[0] == 400
    assert refusal(member, str(uuid.uuid4()))[0] == 404
    assert refusal(member, server, adminPass="x" * 256)[0] == 400


@pytest.fixture
def from_volume(suite, admin, flavor, image_id, driver):
    device = {"source_type": "image", "uuid": image_id, "destination_type": "volume", "volume_size": 1,
              "boot_index": 0}
    uuid_ = admin.boot(flavor, "", block_device_mapping_v2=[device])
    admin.wait(uuid_, "ACTIVE")
    yield uuid_
    remove_servers(Client(suite.url))
    books = bus.client(suite.transport, Volumes)
    for volume in books.index(context.admin()):
        books.delete(context.admin(), volume.uuid)
    wait_for(lambda: not books.index(context.admin()), reason="all volumes are deleted")


def test_rescue_of_volume_backed_server_requires_2_87_and_stable_image(admin, from_volume, driver, new_image):
    stable = new_image(**_STABLE)
    told = f"Instance {from_volume} cannot be rescued: Cannot rescue a volume-backed instance"
    assert refusal(admin, from_volume, version="2.86", rescue_image_ref=stable) == (400, told)
    for image in (None, new_image(hw_rescue_bus="usb")):
        code, message = refusal(admin, from_volume, **({"rescue_image_ref": image} if image else {}))
        assert (code, message) == (400, f"{told} with an image without hw_rescue_device and hw_rescue_bus")
    rescue(admin, from_volume, rescue_image_ref=stable)
    admin.wait(from_volume, "RESCUE")
    volume, = admin.server(from_volume)["os-extended-volumes:volumes_attached"]
    assert (driver.guest(from_volume).rescued, dict(driver.guest(from_volume).volumes)) == (
        stable, {"/dev/vda": volume["id"]})
    admin.action(from_volume, "unrescue")
    admin.wait(from_volume, "ACTIVE")


def test_rescue_of_volume_backed_server_requires_the_host_trait(suite, admin, from_volume, new_image):
    core, node = suite.conductor.core, admin.server(from_volume)["OS-EXT-SRV-ATTR:hypervisor_hostname"]
    before = core.db.read(lambda connection: compute_nodes.states(connection, None, 1))[0].traits
    set_columns(core, tables.providers, tables.providers.c.name == node, traits=["COMPUTE_NODE"])
    try:
        code, message = refusal(admin, from_volume, rescue_image_ref=new_image(**_STABLE))
    finally:
        set_columns(core, tables.providers, tables.providers.c.name == node, traits=before)
    assert (code, "COMPUTE_RESCUE_BFV" in message) == (400, True)


# --- failures --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verb", ["rescue", "unrescue"])
def test_hard_reboot_repairs_server_after_failed_rescue_or_unrescue(admin, server, driver, verb):
    disk = driver.disk(server)
    if verb == "unrescue":
        rescue(admin, server)
        admin.wait(server, "RESCUE")
    driver.behaviour.failure[verb] = 1.0
    admin.action(server, verb)
    assert f"configured to fail at {verb}" in admin.wait(server, "ERROR")["fault"]["message"]
    assert "configured to fail" in error_of(admin, server, verb)
    driver.behaviour.failure.clear()
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    assert (driver.guest(server).rescued, driver.disk(server)) == ("", disk)
    rescue(admin, server)
    admin.wait(server, "RESCUE")


def test_delete_server_during_rescue(admin, server, hold, driver):
    held = hold("rescue.begin")
    rescue(admin, server)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: driver.disk(server) is None)
