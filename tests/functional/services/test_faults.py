"""Failures end with a clear error or a server in ERROR, and leak no resources."""


import pytest

from nova.objects.servers import states
from tests.functional.client import Client, Failed, wait_for
from tests.functional.several_hosts import newest_action, wait_scheduler


def test_failed_spawn_sets_error_with_the_cause(admin, driver, flavor, image_id):
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id)
    server = admin.wait(uuid, "ERROR")
    assert server["fault"]["message"] == "The fake hypervisor is configured to fail at spawn."
    assert server["OS-EXT-SRV-ATTR:host"] is None
    assert driver.guests.all() == []
    driver.behaviour.failure.clear()
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_no_valid_host_details_are_shown_to_administrators_only(admin, member, image_id):
    huge = admin.flavor(vcpus=100000)
    uuid = member.boot(huge, image_id)
    server = admin.wait(uuid, "ERROR")
    assert server["fault"]["code"] == 500
    assert "VCPU: 1 host refused" in server["fault"]["details"]
    assert "VCPU: 1 host refused" in newest_action(admin, uuid, "create")["events"][0]["details"]
    fault = member.server(uuid)["fault"]
    assert fault["message"] == "No valid host was found. There are not enough hosts available."
    assert set(fault) == {"code", "created", "message"}
    action = admin.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"][0]
    assert action["message"] == "Error"
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_delete_server_during_build_supersedes_the_build(admin, driver, flavor, image_id, hold):
    spawn = hold("guests.spawn")
    uuid = admin.boot(flavor, image_id)
    spawn.wait_until_begun()
    admin.delete(f"/servers/{uuid}", expect=204)
    assert newest_action(admin, uuid, "create")["events"][0]["result"] == "Error"
    spawn.let_go()
    admin.wait_gone(uuid)
    wait_for(lambda: driver.guests.all() == [])


def test_guest_shutdown_is_shown_as_shutoff(admin, driver, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    driver.change_by_itself(uuid, states.SHUTDOWN)
    admin.wait(uuid, "SHUTOFF")
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_unknown_guest_is_retained_and_logged(suite, driver, caplog):
    unknown = "0f5c5b0e-0000-4000-8000-000000000000"
    driver.state.guests.add(unknown, states.RUNNING)
    try:
        suite.compute.reconciler.compare()
        assert [guest.uuid for guest in driver.guests.all()] == [unknown]
        assert f"[instance: {unknown}] Guest on host {suite.compute.host} is unknown to the database" in caplog.text
    finally:
        driver.guests.remove_orphan(unknown)


def test_exceeded_quota_is_refused_with_the_numbers(suite, admin, flavor, image_id):
    member = Client(suite.url, project="poor", user="x", roles="member")
    admin.put("/os-quota-sets/poor", {"quota_set": {"instances": 2}})
    with pytest.raises(Failed) as failed:
        member.boot(flavor, image_id, min_count=3, max_count=3)
    assert failed.value.code == 403
    assert failed.value.message == "Quota exceeded for instances: Requested 3, but already used 0 of 2 instances"


def test_max_count_is_reduced_to_the_remaining_quota(suite, admin, flavor, image_id):
    member = Client(suite.url, project="modest", user="x", roles="member")
    admin.put("/os-quota-sets/modest", {"quota_set": {"instances": 2}})
    member.boot(flavor, image_id, min_count=1, max_count=5)
    servers = member.get("/servers")["servers"]
    assert len(servers) == 2
    for server in servers:
        member.wait(server["id"], "ACTIVE")
        member.delete(f"/servers/{server['id']}")
        member.wait_gone(server["id"])


@pytest.mark.parametrize(("values", "code", "text"), [
    ({"imageRef": "00000000-0000-0000-0000-000000000000"}, 400, "Can not find requested image"),
    ({"flavorRef": "nope"}, 400, "Flavor nope could not be found."),
    ({"key_name": "nope"}, 400, "Invalid key_name provided."),
    ({"availability_zone": "mars"}, 400, "The requested availability zone is not available"),
    ({"min_count": 3, "max_count": 2}, 400, "min_count must be <= max_count"),
    ({"name": ""}, 400, "Invalid input for field/attribute name."),
    ({"colour": "red"}, 400, "Additional properties are not allowed ('colour' was unexpected)"),
    ({"user_data": "not base64!"}, 400, "Invalid input for field/attribute user_data."),
    ({"networks": [{"uuid": "00000000-0000-0000-0000-000000000000"}]}, 400, "could not be found"),
])
def test_invalid_create_requests_are_refused_and_create_no_server(admin, flavor, image_id, values, code, text):
    before = admin.get("/servers")["servers"]
    server = {"name": "s", "flavorRef": flavor, "imageRef": image_id, "networks": "none", **values}
    with pytest.raises(Failed) as failed:
        admin.post("/servers", {"server": server})
    assert failed.value.code == code
    assert text in failed.value.message
    assert admin.get("/servers")["servers"] == before


def test_concurrent_action_returns_409(admin, driver, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    driver.behaviour.latency["power_off"] = 0.5
    admin.action(uuid, "os-stop")
    with pytest.raises(Failed) as failed:
        admin.action(uuid, "pause")
    assert (failed.value.code, failed.value.message) == (
        409, f"Cannot 'pause' instance {uuid} while it is in task_state powering-off")
    admin.wait(uuid, "SHUTOFF")
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_disabled_host_gets_no_servers(admin, suite, flavor, image_id):
    service = admin.get("/os-services", binary="nova-compute")["services"][0]
    admin.put(f"/os-services/{service['id']}", {"status": "disabled", "disabled_reason": "repairs"})
    try:
        wait_scheduler(suite, suite.compute.host, False)
        uuid = admin.boot(flavor, image_id)
        admin.wait(uuid, "ERROR")
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)
    finally:
        admin.put(f"/os-services/{service['id']}", {"status": "enabled"})
        wait_scheduler(suite, suite.compute.host, True)
