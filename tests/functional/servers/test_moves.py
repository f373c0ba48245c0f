"""Resize and cold migration over HTTP on two fake hosts."""

import pytest

from nova.conf import CONF
from tests.functional.client import wait_for
from tests.functional.several_hosts import (
    SECOND,
    error_of,
    events_of,
    migration_of,
    newest_action,
    refused,
    service_of,
    set_service,
    used,
    wait_scheduler,
)

_LIVE = {"host": None, "block_migration": "auto"}


def usage(admin):
    """Return (servers, cores, MiB) charged to the quota of the project."""
    found = admin.get("/limits")["limits"]["absolute"]
    return found["totalInstancesUsed"], found["totalCoresUsed"], found["totalRAMUsed"]


@pytest.fixture
def server(pair):
    return pair.boot()


@pytest.fixture
def large(suite, admin):
    return admin.flavor(ram=256, vcpus=2, disk=2)


def resized(admin, uuid, flavor):
    admin.action(uuid, "resize", {"flavorRef": flavor}, expect=202)
    return admin.wait(uuid, "VERIFY_RESIZE")


# --- resize ------------------------------------------------------------------------------------------
def test_resize_and_confirm_moves_the_server_with_the_new_flavor(pair, admin, server, large):
    before = usage(admin)
    shown = resized(admin, server, large)
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["flavor"]["vcpus"], shown["OS-EXT-STS:power_state"]) == (SECOND, 2, 1)
    assert pair.where(server) == ([SECOND], sorted([pair.first.host, SECOND], key=lambda host: host == SECOND))
    assert pair.second.machine.driver.disk(server).gb == 2
    moved = migration_of(admin, server)
    assert (moved["status"], moved["migration_type"], moved["source_compute"], moved["dest_compute"]) == (
        "finished", "resize", pair.first.host, SECOND)
    assert moved["dest_host"] == CONF.my_ip
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((1, 1), (2, 1))
    assert usage(admin) == (before[0], before[1] + 1, before[2] + 128)
    admin.action(server, "confirmResize", expect=204)
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["flavor"]["vcpus"]) == (SECOND, 2)
    assert pair.only_on(server, pair.second)
    assert migration_of(admin, server)["status"] == "confirmed"
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((0, 0), (2, 1))
    assert usage(admin) == (before[0], before[1] + 1, before[2] + 128)
    assert events_of(admin, server, "resize") == [
        ("cold_migrate", "Success", None), ("compute_resize_instance", "Success", pair.first.host),
        ("compute_finish_resize", "Success", SECOND)]
    assert events_of(admin, server, "confirmResize") == [("compute_confirm_resize", "Success", pair.first.host)]


def test_revert_resize_restores_flavor_host_and_usage(pair, admin, server, large):
    before = admin.server(server)
    counted = usage(admin)
    resized(admin, server, large)
    admin.action(server, "revertResize", expect=202)
    shown = admin.wait(server, "ACTIVE")
    for name in ("flavor", "OS-EXT-SRV-ATTR:host", "OS-EXT-SRV-ATTR:hypervisor_hostname", "OS-EXT-AZ:availability_zone",
                 "addresses", "OS-EXT-STS:power_state"):
        assert shown[name] == before[name]
    assert pair.only_on(server, pair.first)
    assert pair.first.machine.driver.disk(server).gb == 1
    assert migration_of(admin, server)["status"] == "reverted"
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((1, 1), (0, 0))
    assert usage(admin) == counted
    assert events_of(admin, server, "revertResize") == [
        ("compute_revert_resize", "Success", SECOND), ("compute_finish_revert_resize", "Success", pair.first.host)]


@pytest.mark.parametrize("word", ["confirmResize", "revertResize"])
def test_resize_of_a_stopped_server_keeps_it_stopped(pair, admin, server, large, word):
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    assert resized(admin, server, large)["OS-EXT-STS:power_state"] == 4
    admin.action(server, word)
    assert admin.wait(server, "SHUTOFF")["OS-EXT-STS:power_state"] == 4


def test_delete_server_in_verify_resize(pair, admin, server, large):
    before = usage(admin)
    resized(admin, server, large)
    admin.delete(f"/servers/{server}", expect=204)
    admin.wait_gone(server)
    wait_for(lambda: pair.where(server) == ([], []))
    assert usage(admin) == (before[0] - 1, before[1] - 1, before[2] - 128)
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((0, 0), (0, 0))


def test_actions_refused_in_verify_resize(pair, admin, server, large):
    resized(admin, server, large)
    for action, value in (("os-stop", None), ("reboot", {"type": "SOFT"}), ("resize", {"flavorRef": pair.flavor}),
                          ("migrate", None), ("os-migrateLive", _LIVE)):
        code, message = refused(lambda action=action, value=value: admin.action(server, action, value))
        assert (code, message.rpartition("while")[2]) == (409, " it is in vm_state resized")


@pytest.mark.parametrize("word", ["confirmResize", "revertResize"])
def test_resize_on_the_same_host_requires_allow_resize_to_same_host(suite, admin, image_id, flavor, large, word):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "resize", {"flavorRef": large})
    admin.wait(uuid, "ACTIVE")
    assert error_of(admin, uuid, "resize").startswith("No valid host was found.")
    CONF.set_override("allow_resize_to_same_host", True)
    try:
        shown = resized(admin, uuid, large)
    finally:
        CONF.clear_override("allow_resize_to_same_host")
    assert (shown["OS-EXT-SRV-ATTR:host"], used(admin, suite.compute.host)) == (suite.compute.host, (3, 2))
    admin.action(uuid, word)
    shown = admin.wait(uuid, "ACTIVE")
    vcpus = 2 if word == "confirmResize" else 1
    assert (shown["flavor"]["vcpus"], used(admin, suite.compute.host)) == (vcpus, (vcpus, 1))
    driver = suite.compute.machine.driver
    assert [guest.uuid for guest in driver.guests.all()] == [uuid]
    assert (driver.disk(uuid).gb, driver.disk(uuid, aside=True)) == (vcpus, None)


def test_resize_without_valid_host_keeps_the_server_unchanged(pair, admin, server):
    before, counted = admin.server(server), usage(admin)
    admin.action(server, "resize", {"flavorRef": admin.flavor(ram=10 ** 9)}, expect=202)
    shown = admin.wait(server, "ACTIVE")
    assert {**shown, "updated": 0} == {**before, "updated": 0}
    assert pair.only_on(server, pair.first)
    assert migration_of(admin, server)["status"] == "error"
    assert error_of(admin, server, "resize").startswith("No valid host was found.")
    assert usage(admin) == counted


@pytest.mark.parametrize(("where", "verb"), [
    ("first", "check_resize"), ("first", "open_disks"), ("second", "receive_disks"), ("second", "finish_move"),
    ("second", "power_on")])
def test_failed_resize_keeps_the_server_on_the_source_with_its_flavor(pair, admin, server, large, where, verb):
    counted = usage(admin)
    getattr(pair, where).machine.driver.behaviour.failure[verb] = 1.0
    admin.action(server, "resize", {"flavorRef": large})
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["flavor"]["vcpus"], shown["OS-EXT-STS:power_state"]) == (
        pair.first.host, 1, 1)
    assert pair.only_on(server, pair.first)
    assert error_of(admin, server, "resize") == f"The fake hypervisor is configured to fail at {verb}."
    assert (migration_of(admin, server)["status"], usage(admin)) == ("error", counted)
    assert used(admin, SECOND) == (0, 0)
    getattr(pair, where).machine.driver.behaviour.failure.clear()
    assert resized(admin, server, large)["OS-EXT-SRV-ATTR:host"] == SECOND


def test_hard_reboot_repairs_server_after_failed_resize_rollback(pair, admin, server, large):
    pair.second.machine.driver.behaviour.failure["receive_disks"] = 1.0
    pair.first.machine.driver.behaviour.failure["revert_move"] = 1.0
    admin.action(server, "resize", {"flavorRef": large})
    fault = admin.wait(server, "ERROR")["fault"]
    assert fault["message"] == "The fake hypervisor is configured to fail at receive_disks."
    assert (migration_of(admin, server)["status"], used(admin, SECOND)) == ("error", (0, 0))
    pair.first.machine.driver.behaviour.failure.clear()
    admin.action(server, "reboot", {"type": "HARD"})
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (pair.first.host, 1)
    assert pair.only_on(server, pair.first)


@pytest.mark.parametrize("verb", ["destroy", "revert_move"])
def test_failed_revert_resize_leaves_a_single_repairable_guest(pair, admin, server, large, verb):
    resized(admin, server, large)
    for host in (pair.first, pair.second):
        host.machine.driver.behaviour.failure[verb] = 1.0
    admin.action(server, "revertResize")
    wait_for(lambda: newest_action(admin, server, "revertResize")["message"] == "Error")
    assert error_of(admin, server, "revertResize") == f"The fake hypervisor is configured to fail at {verb}."
    for host in (pair.first, pair.second):
        host.machine.driver.behaviour.failure.clear()
    if verb == "destroy":
        shown = admin.wait(server, "VERIFY_RESIZE")
        assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (SECOND, 1)
        assert (pair.where(server)[0], migration_of(admin, server)["status"]) == ([SECOND], "finished")
        admin.action(server, "revertResize")
    else:
        shown = admin.wait(server, "ERROR")
        assert (shown["OS-EXT-SRV-ATTR:host"], shown["flavor"]["vcpus"]) == (pair.first.host, 1)
        admin.action(server, "reboot", {"type": "HARD"})
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == (pair.first.host, 1)
    assert pair.only_on(server, pair.first)
    assert (used(admin, pair.first.host), used(admin, SECOND)) == ((1, 1), (0, 0))


def test_resize_to_a_smaller_disk_fails_without_changes(pair, admin, large, image_id):
    uuid = admin.boot(large, image_id)
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "resize", {"flavorRef": pair.flavor})
    assert admin.wait(uuid, "ACTIVE")["flavor"]["vcpus"] == 2
    assert error_of(admin, uuid, "resize").startswith("Resize error: ")


def test_running_resize_shows_status_and_task_state(pair, admin, server, large):
    pair.second.machine.driver.behaviour.latency["receive_disks"] = 1.5
    admin.action(server, "resize", {"flavorRef": large})
    shown = wait_for(lambda: (found := admin.server(server))["OS-EXT-STS:task_state"] == "resize_finish" and found)
    assert (shown["status"], shown["OS-EXT-STS:vm_state"], shown["progress"]) == ("RESIZE", "active", 0)
    assert migration_of(admin, server)["status"] in ("migrating", "post-migrating")
    admin.wait(server, "VERIFY_RESIZE")


@pytest.mark.parametrize(("wanted", "code", "message"), [
    ("same", 400, "When resizing, instances must change flavor!"),
    ("unknown", 400, "Flavor unknown could not be found."),
    ("diskless", 400, "Resize to zero disk flavor is not allowed.")])
def test_resize_to_same_unknown_or_diskless_flavor_is_refused(pair, admin, server, wanted, code, message):
    flavor = {"same": pair.flavor, "diskless": admin.flavor(disk=0)}.get(wanted, wanted)
    assert refused(lambda: admin.action(server, "resize", {"flavorRef": flavor})) == (code, message)
    assert admin.get("/os-migrations", instance_uuid=server)["migrations"] == []


def test_confirm_or_revert_without_a_resize_is_a_conflict(pair, admin, server):
    for word in ("confirmResize", "revertResize"):
        assert refused(lambda word=word: admin.action(server, word)) == (
            409, f"Cannot '{word}' instance {server} while it is in vm_state active")


def test_resize_above_the_cores_quota_is_refused(pair, admin, server, large):
    count, cores, ram = usage(admin)
    admin.put("/os-quota-sets/p", {"quota_set": {"cores": cores, "force": True}})
    try:
        assert refused(lambda: admin.action(server, "resize", {"flavorRef": large})) == (
            403, f"Quota exceeded for cores: Requested 1, but already used {cores} of {cores} cores")
        assert admin.server(server)["status"] == "ACTIVE"
        admin.put("/os-quota-sets/p", {"quota_set": {"cores": cores + 1, "force": True}})
        resized(admin, server, large)
        assert usage(admin) == (count, cores + 1, ram + 128)
    finally:
        admin.delete("/os-quota-sets/p")


def test_resize_to_smaller_flavor_frees_quota_on_confirm(pair, admin, image_id, server):
    uuid = admin.boot(admin.flavor(ram=512, vcpus=4), image_id)
    admin.wait(uuid, "ACTIVE")
    count, cores, ram = usage(admin)
    resized(admin, uuid, pair.flavor)
    assert usage(admin) == (count, cores, ram)
    admin.action(uuid, "confirmResize")
    admin.wait(uuid, "ACTIVE")
    assert usage(admin) == (count, cores - 3, ram - 384)


def test_resize_is_confirmed_automatically_after_the_confirm_window(pair, admin, server, large):
    resized(admin, server, large)
    CONF.set_override("resize_confirm_window", 1)
    try:
        admin.wait(server, "ACTIVE")
    finally:
        CONF.clear_override("resize_confirm_window")
    assert migration_of(admin, server)["status"] == "confirmed"
    assert newest_action(admin, server, "confirmResize")["user_id"] is None


def test_confirm_resize_is_refused_while_the_source_host_is_down(pair, admin, server, large):
    resized(admin, server, large)
    set_service(admin, pair.first.host, forced_down=True)
    try:
        assert refused(lambda: admin.action(server, "confirmResize")) == (
            409, "Service is unavailable at this time.")
    finally:
        set_service(admin, pair.first.host, forced_down=False)
    wait_for(lambda: service_of(admin, pair.first.host)["state"] == "up")
    admin.action(server, "confirmResize")
    admin.wait(server, "ACTIVE")


# --- cold migration ----------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [None, {"host": SECOND}])
def test_cold_migration_keeps_the_flavor(pair, admin, server, value):
    counted = usage(admin)
    admin.action(server, "migrate", value, expect=202)
    shown = admin.wait(server, "VERIFY_RESIZE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["flavor"]["vcpus"]) == (SECOND, 1)
    moved = migration_of(admin, server)
    assert (moved["status"], moved["migration_type"]) == ("finished", "migration")
    assert moved["old_instance_type_id"] == moved["new_instance_type_id"]
    assert usage(admin) == counted
    admin.action(server, "confirmResize")
    admin.wait(server, "ACTIVE")
    assert pair.only_on(server, pair.second)
    assert usage(admin) == counted


def test_invalid_cold_migration_requests_are_refused(pair, admin, member, server):
    assert refused(lambda: admin.action(server, "migrate", {"host": pair.first.host})) == (
        400, "Cannot migrate to the host where the server exists.")
    assert refused(lambda: admin.action(server, "migrate", {"host": "nowhere"})) == (
        400, "Compute host nowhere could not be found.")
    assert refused(lambda: member.action(server, "migrate"))[0] == 403
    admin.action(server, "pause")
    admin.wait(server, "PAUSED")
    assert refused(lambda: admin.action(server, "migrate")) == (
        409, f"Cannot 'migrate' instance {server} while it is in vm_state paused")


def test_cold_migration_to_a_disabled_host_fails_with_no_valid_host(suite, pair, admin, server):
    set_service(admin, SECOND, status="disabled")
    wait_scheduler(suite, SECOND, False)
    admin.action(server, "migrate", {"host": SECOND})
    admin.wait(server, "ACTIVE")
    assert error_of(admin, server, "migrate").startswith("No valid host was found.")
    assert migration_of(admin, server)["status"] == "error"

