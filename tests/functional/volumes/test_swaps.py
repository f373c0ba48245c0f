"""Swap of embedded volumes of a running server, over HTTP, on the fake hypervisor."""

import pytest

from nova.conf import CONF
from nova.db import audit
from nova.db.servers import servers
from nova.objects.servers.instance import disk_names
from tests.functional.client import wait_for
from tests.functional.conftest import remove_servers
from tests.functional.listening import listen
from tests.functional.notifications.test_notifications import phases
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import newest_action, refused
from tests.functional.volumes.test_volumes import (  # noqa: F401
    attach,
    attached,
    books,
    boot_from,
    guest_volumes,
    make,
    no_volumes_left,
    server,
    volume_of,
    wait_status,
)

NOBODY = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(autouse=True)
def allowed():
    CONF.set_override("allow_swap", True, "volume")
    yield
    CONF.clear_override("allow_swap", "volume")


@pytest.fixture
def old(admin, server):  # noqa: F811
    uuid = make(admin)
    attach(admin, server, uuid, tag="data", delete_on_termination=True)
    wait_status(admin, uuid, "in-use")
    return uuid


def swap(client, server, old, new, version="2.84", **values):  # noqa: F811
    client.put(f"/servers/{server}/os-volume_attachments/{old}", {"volumeAttachment": {"volumeId": new, **values}},
               version=version)
    assert (client.answered.status_code, client.answered.content) == (202, b"")


def ended(admin, server, message=None):  # noqa: F811
    def look():
        action = newest_action(admin, server, "swap_volume")
        return all(event["finish_time"] for event in action["events"]) and action["message"] == message and action

    return wait_for(look, 60, f"the swap has ended with {message}")


def has(admin, server, driver, volume, free):  # noqa: F811
    """Check that the server and its guest use this volume, and that the other volume is available."""
    wait_status(admin, volume, "in-use")
    assert volume_of(admin, free)["status"] == "available"
    assert volume_of(admin, free)["attachments"] == [{}]
    assert guest_volumes(driver, server) == {"/dev/vdb": volume}
    assert [item["volumeId"] for item in attached(admin, server)] == [volume]


def serials(suite, uuid):
    """Return the serial numbers of the guest's volumes."""
    found = suite.conductor.core.db.read(lambda connection: servers.get(connection, uuid))
    return disk_names(found.volumes)


def audited(suite):
    assert [str(finding) for finding in audit.audit(suite.conductor.core.db)] == []


# --- swap ------------------------------------------------------------------------------------------------
def test_embedded_volume_is_swapped(suite, admin, server, old, driver):  # noqa: F811
    new = make(admin)
    before, = attached(admin, server)
    _none, messages, _statements = measured(suite, admin, lambda: swap(admin, server, old, new))
    assert sum(messages.values()) <= 8, messages
    has(admin, server, driver, new, old)
    after, = attached(admin, server)
    assert after == {**before, "volumeId": new, "attachment_id": after["attachment_id"]}
    assert after["attachment_id"] != before["attachment_id"]
    told = newest_action(admin, server, "swap_volume")
    assert [(event["event"], event["result"]) for event in told["events"]] == [("compute_swap_volume", "Success")]
    audited(suite)


def test_volume_swap_can_be_repeated_and_reversed(suite, admin, server, old, driver):  # noqa: F811
    new = make(admin)
    for gone, come in ((old, new), (new, old), (old, new)):
        swap(admin, server, gone, come)
        has(admin, server, driver, come, gone)
    attach(admin, server, old)
    wait_status(admin, old, "in-use")
    assert guest_volumes(driver, server) == {"/dev/vdb": new, "/dev/vdc": old}
    first, second = serials(suite, server)
    assert (first, second not in (old, new)) == (old, True), "two disks have the same serial number"
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait_idle(server)
    assert guest_volumes(driver, server) == {"/dev/vdb": new, "/dev/vdc": old}
    for volume in (old, new):
        admin.delete(f"/servers/{server}/os-volume_attachments/{volume}", expect=202)
        wait_status(admin, volume, "available")
    assert guest_volumes(driver, server) == {}


def test_server_boots_from_a_swapped_root_volume(admin, flavor, image_id, driver):
    server = boot_from(admin, flavor, image_id, boot_index=0)  # noqa: F811
    old, new = attached(admin, server)[0]["volumeId"], make(admin)
    swap(admin, server, old, new)
    wait_status(admin, new, "in-use")
    assert guest_volumes(driver, server) == {"/dev/vda": new}
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    wait_status(admin, new, "available")
    again = boot_from(admin, flavor, image_id, source="volume", uuid=new, boot_index=0)
    assert admin.server(again)["status"] == "ACTIVE"


def test_swap_accepts_delete_on_termination_and_tag(admin, server, old):  # noqa: F811
    new = make(admin)
    swap(admin, server, old, new, version="2.85", delete_on_termination=False, tag="data")
    wait_status(admin, new, "in-use")
    assert attached(admin, server)[0]["delete_on_termination"] is False


def test_swap_volume_of_a_paused_server(admin, server, old, driver):  # noqa: F811
    admin.action(server, "pause")
    admin.wait(server, "PAUSED")
    new = make(admin)
    swap(admin, server, old, new)
    has(admin, server, driver, new, old)


def test_volume_swap_notifications_are_sent(suite, admin, server, old, driver):  # noqa: F811
    new = make(admin)
    with listen(suite, bdms_in_notifications=True, notification_format="both") as listener:
        swap(admin, server, old, new)
        wait_status(admin, new, "in-use")
        told = listener.wait(server, "volume_swap.end")
        assert (told["old_volume_id"], told["new_volume_id"]) == (old, new)
        assert [each["nova_object.data"]["volume_id"] for each in told["block_devices"]] == [new]
        assert listener.types(server) == phases("volume_swap")
        assert listener.unversioned == []
        driver.behaviour.failure["swap_volume"] = 1.0
        swap(admin, server, new, old)
        told = listener.wait(server, "volume_swap.error")
        assert (told["old_volume_id"], told["new_volume_id"]) == (new, old)
        assert told["fault"]["nova_object.data"]["exception_message"]


# --- refusals --------------------------------------------------------------------------------------------
def test_swap_is_refused_unless_allow_swap_is_set(admin, server, old, driver):  # noqa: F811
    CONF.set_override("allow_swap", False, "volume")
    new = make(admin)
    assert refused(lambda: swap(admin, server, old, new)) == (
        409, f"Volume {old} cannot be swapped for {new}: it is not being migrated.")
    has(admin, server, driver, old, new)


def test_invalid_volume_swaps_are_refused(admin, member, server, old, driver):  # noqa: F811
    new, large = make(admin), make(admin, size=2)
    assert refused(lambda: swap(member, server, old, new))[0] == 403
    assert refused(lambda: swap(admin, server, old, NOBODY)) == (
        400, f"Invalid input received: volumeId: Volume {NOBODY} could not be found.")
    assert refused(lambda: swap(admin, server, new, large))[0] == 404
    code, message = refused(lambda: swap(admin, server, old, large))
    assert (code, "differ in size" in message) == (400, True)
    code, message = refused(lambda: swap(admin, server, old, old))
    assert (code, "already attached" in message) == (400, True)
    assert refused(lambda: swap(admin, server, old, new, version="2.85", tag="other")) == (
        400, "Invalid input received: tag of an attachment cannot be changed.")
    has(admin, server, driver, old, new)
    attach(admin, server, new)
    wait_status(admin, new, "in-use")
    assert refused(lambda: swap(admin, server, old, new))[0] == 400
    assert guest_volumes(driver, server) == {"/dev/vdb": old, "/dev/vdc": new}


def test_swap_volume_of_a_locked_or_stopped_server_is_refused(suite, admin, member, server, old, driver):  # noqa: F811
    new = make(admin)
    service = type(admin)(suite.url, roles="service")
    admin.action(server, "lock")
    assert refused(lambda: swap(service, server, old, new))[0] == 409
    admin.action(server, "unlock")
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    code, message = refused(lambda: swap(admin, server, old, new))
    assert (code, "swap_volume" in message) == (409, True)
    has(admin, server, driver, old, new)


# --- failures --------------------------------------------------------------------------------------------
def test_failed_swap_changes_nothing_and_can_be_retried(suite, admin, server, old, driver):  # noqa: F811
    new = make(admin)
    driver.behaviour.failure["swap_volume"] = 1.0
    swap(admin, server, old, new)
    ended(admin, server, "Error")
    driver.behaviour.failure.clear()
    has(admin, server, driver, old, new)
    assert admin.server(server)["status"] == "ACTIVE"
    audited(suite)
    swap(admin, server, old, new)
    has(admin, server, driver, new, old)


def test_swap_reserves_both_volumes_and_shows_the_old_attachment(suite, admin, server, old, hold):  # noqa: F811
    new, third, held = make(admin), make(admin), hold("volume_swaps.swap")
    swap(admin, server, old, new)
    held.wait_until_begun()
    assert [item["volumeId"] for item in attached(admin, server)] == [old]
    assert [item["id"] for item in admin.server(server)["os-extended-volumes:volumes_attached"]] == [old]
    assert (volume_of(admin, old)["status"], volume_of(admin, new)["status"]) == ("detaching", "attaching")
    audited(suite)
    for act in (lambda: swap(admin, server, old, third), lambda: attach(admin, server, new),
                lambda: admin.delete(f"/servers/{server}/os-volume_attachments/{old}"),
                lambda: admin.delete(f"/os-volumes/{new}", version="2.35")):
        assert refused(act)[0] == 400
    attach(admin, server, third)
    held.let_go()
    for volume in (new, third):
        wait_status(admin, volume, "in-use")
    assert [(item["device"], item["volumeId"]) for item in attached(admin, server)] == [
        ("/dev/vdb", new), ("/dev/vdc", third)]


def test_concurrent_swaps_do_not_block_a_snapshot(admin, flavor, image_id, hold):
    held, swapped = hold("volume_swaps.swap"), []
    other, *servers = [admin.boot(flavor, image_id) for _number in range(CONF.max_concurrent_snapshots + 1)]
    for uuid in (other, *servers):
        admin.wait(uuid, "ACTIVE")
    for uuid in servers:
        volume, new = make(admin), make(admin)
        attach(admin, uuid, volume)
        wait_status(admin, volume, "in-use")
        swap(admin, uuid, volume, new)
        swapped.append(new)
    image = admin.action(other, "createImage", {"name": "s"})["image_id"]
    wait_for(lambda: admin.get(f"/images/{image}", version="2.35")["image"]["status"] == "ACTIVE", 30)
    assert {volume_of(admin, volume)["status"] for volume in swapped} == {"attaching"}
    held.let_go()
    for volume in swapped:
        wait_status(admin, volume, "in-use")
    admin.call("DELETE", f"/images/{image}", version="2.35")


def interrupted(admin, server, old, new, held, how):  # noqa: F811
    swap(admin, server, old, new)
    held.wait_until_begun()
    if how == "delete":
        admin.delete(f"/servers/{server}")
        admin.wait_gone(server)
    else:
        admin.action(server, "reboot", {"type": "HARD"})
        admin.wait_idle(server, seconds=40)
    held.let_go()


@pytest.mark.parametrize("how", ["delete", "reboot"])
def test_superseded_swap_is_undone(suite, admin, server, old, driver, hold, how):  # noqa: F811
    new = make(admin)
    interrupted(admin, server, old, new, hold("volume_swaps.swap"), how)
    if how == "delete":
        wait_status(admin, new, "available")
    else:
        has(admin, server, driver, old, new)
    audited(suite)


@pytest.mark.parametrize("how", ["delete", "reboot"])
def test_swap_superseded_after_the_copy_keeps_the_new_volume(
        suite, admin, server, old, driver, hold, monkeypatch, how):  # noqa: F811
    new, real = make(admin), driver.volume_swaps.swap

    def late(*arguments):
        real(*arguments)
        driver.volume_swaps.told_late()

    driver.volume_swaps.told_late = lambda: None
    held = hold("volume_swaps.told_late")
    monkeypatch.setattr(driver.volume_swaps, "swap", late)
    interrupted(admin, server, old, new, held, how)
    if how == "delete":  # The old volume is deleted with its server.
        wait_status(admin, old, "available")
        wait_for(lambda: admin.session.get(f"{admin.url}/v2.1/os-volumes/{new}").status_code == 404)
    else:
        has(admin, server, driver, new, old)
    audited(suite)


def test_delete_server_after_a_swap_frees_the_volumes(suite, admin, server, old):  # noqa: F811
    new = make(admin)
    swap(admin, server, old, new)
    wait_status(admin, new, "in-use")
    remove_servers(admin)
    wait_status(admin, old, "available")
    wait_for(lambda: admin.session.get(f"{admin.url}/v2.1/os-volumes/{new}").status_code == 404)
    audited(suite)
