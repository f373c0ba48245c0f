"""Notifications about scheduler requests, servers without a host, and images fetched by hosts."""

import pytest

from nova.conf import CONF
from tests.functional.client import wait_for
from tests.functional.hosts.test_precaching import caching, rack  # noqa: F401 (fixtures)
from tests.functional.listening import listen
from tests.functional.several_hosts import SECOND, set_service

_SELECT = "scheduler.select_destinations"


@pytest.fixture
def listener(suite):
    with listen(suite, notification_format="both") as found:
        yield found


@pytest.fixture
def gone(admin):
    """Return a function that deletes a server and waits until it is deleted: ``gone(server)``."""
    def gone(uuid):
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)

    return gone


def told(listener, prefix, of=None):
    """Return (event type, payload data) of the versioned notifications, filtered by the server ``of`` unless None."""
    return [(message["event_type"], data) for message in listener.versioned
            if message["event_type"].startswith(prefix) and (data := message["payload"]["nova_object.data"])
            and of in (None, data.get("instance_uuid"))]


def twins(listener, prefix):
    return [message for message in listener.unversioned if message["event_type"].startswith(prefix)]


def test_boot_notifies_the_scheduler_request(suite, admin, flavor, image_id, listener, gone):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    wait_for(lambda: len(told(listener, _SELECT, uuid)) == 2, reason="start and end")
    [(begun, asked), (ended, _same)] = told(listener, _SELECT, uuid)
    assert (begun, ended) == (f"{_SELECT}.start", f"{_SELECT}.end")
    assert (asked["project_id"], asked["user_id"], asked["num_instances"]) == ("p", "u", 1)
    assert asked["flavor"]["nova_object.data"]["flavorid"] == flavor
    assert asked["image"]["nova_object.data"]["id"] == image_id
    assert asked["security_groups"] == ["default"]
    assert {message["publisher_id"] for message in listener.versioned if message["event_type"].startswith(_SELECT)} == {
        f"nova-scheduler:{CONF.host}"}
    old = twins(listener, _SELECT)
    assert [message["event_type"] for message in old] == [begun, ended]
    request = old[0]["payload"]["request_spec"]
    assert (request["instance_properties"]["uuid"], request["instance_type"]["flavorid"]) == (uuid, flavor)
    types = [message["event_type"] for message in listener.versioned]
    assert types.index(ended) < types.index("instance.create.start")
    gone(uuid)


def test_multi_create_notifies_a_single_scheduler_request(admin, flavor, image_id, listener, gone):
    admin.post("/servers", {"server": {"name": "many", "imageRef": image_id, "flavorRef": flavor, "min_count": 3,
                                       "networks": "none"}})
    many = [each["id"] for each in admin.get("/servers", name="many")["servers"]]
    for uuid in many:
        admin.wait(uuid, "ACTIVE")
    wait_for(lambda: len(told(listener, _SELECT)) >= 2, reason="start and end")
    assert [(event, data["num_instances"]) for event, data in told(listener, _SELECT)] == [
        (f"{_SELECT}.start", 3), (f"{_SELECT}.end", 3)]
    for uuid in many:
        gone(uuid)


def test_boot_without_a_valid_host_is_notified_as_an_error(admin, image_id, listener, gone):
    huge = admin.flavor(ram=2**30)
    uuid = admin.boot(huge, image_id, top={"os:scheduler_hints": {"query": '[">", "$free_ram_mb", 1]'}})
    admin.wait(uuid, "ERROR")
    wait_for(lambda: told(listener, "compute_task.", uuid), reason="the failure is published")
    assert [event for event, _data in told(listener, _SELECT, uuid)] == [f"{_SELECT}.start"]
    [(event, data)] = told(listener, "compute_task.", uuid)
    assert (event, data["state"]) == ("compute_task.build_instances.error", "error")
    assert data["reason"]["nova_object.data"]["exception"] == "NoValidHost"
    asked = data["request_spec"]["nova_object.data"]
    assert asked["flavor"]["nova_object.data"]["memory_mb"] == 2**30
    assert asked["scheduler_hints"] == {"query": ['[">", "$free_ram_mb", 1]']}
    [old] = twins(listener, "compute_task.")
    assert (old["event_type"], old["priority"]) == ("compute_task.build_instances", "ERROR")
    assert {name: old["payload"][name] for name in ("instance_id", "state", "method")} == {
        "instance_id": uuid, "state": "error", "method": "build_instances"}
    assert set(old["payload"]) == {"request_spec", "instance_properties", "instance_id", "state", "method", "reason"}
    gone(uuid)


def test_boot_that_failed_on_all_hosts_is_notified_as_an_error(admin, flavor, image_id, driver, listener, gone):
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ERROR")
    wait_for(lambda: told(listener, "compute_task.", uuid), reason="the failure is published")
    [(event, data)] = told(listener, "compute_task.", uuid)
    assert (event, data["state"]) == ("compute_task.build_instances.error", "error")
    assert [event.rpartition(".")[2] for event, _data in told(listener, _SELECT, uuid)] == ["start", "end", "start"]
    gone(uuid)


@pytest.mark.parametrize(("action", "body"), [
    ("migrate", None), ("os-migrateLive", {"host": None, "block_migration": "auto"})])
def test_move_without_a_valid_host_is_notified_and_keeps_the_server(admin, flavor, image_id, listener, gone, action,
                                                                    body):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, action, body)
    wait_for(lambda: told(listener, "compute_task.", uuid), reason="the failure is published")
    [(event, data)] = told(listener, "compute_task.", uuid)
    assert (event, data["state"]) == ("compute_task.migrate_server.error", "active")
    admin.wait_idle(uuid)
    gone(uuid)


def test_rebuild_with_an_unsupported_image_is_notified_as_an_error(admin, flavor, image_id, new_image, listener, gone):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    image = new_image(**{"trait:CUSTOM_NOT_HERE": "required"})
    admin.action(uuid, "rebuild", {"imageRef": image})
    admin.wait(uuid, "ERROR")
    wait_for(lambda: told(listener, "compute_task.", uuid), reason="the failure is published")
    [(event, data)] = told(listener, "compute_task.", uuid)
    assert (event, data["state"]) == ("compute_task.rebuild_server.error", "error")
    asked = data["request_spec"]["nova_object.data"]
    assert asked["image"]["nova_object.data"]["id"] == image
    assert asked["requested_destination"]["nova_object.data"]["host"] == CONF.host
    gone(uuid)


def test_image_caching_is_notified_per_host(suite, admin, rack, caching, image_id, pair, listener):  # noqa: F811
    admin.post(f"/os-aggregates/{rack}/images", {"cache": [{"id": image_id}]}, expect=202)
    prefix = "aggregate.cache_images."
    wait_for(lambda: len(told(listener, prefix)) >= 4, reason="both hosts have replied")
    [begun, ended, *progress] = told(listener, prefix)
    assert (begun[0], ended[0]) == (f"{prefix}start", f"{prefix}end")
    assert set(begun[1]["hosts"]) == {pair.first.host, SECOND}
    assert [event for event, _data in progress] == [f"{prefix}progress"] * 2
    assert [(data["index"], data["total"]) for _event, data in progress] == [(1, 2), (2, 2)]
    each = {data["host"]: (data["images_cached"], data["images_failed"]) for _event, data in progress}
    assert each == {SECOND: ([image_id], []), pair.first.host: ([], [image_id])}
    assert {message["publisher_id"] for message in listener.versioned
            if message["event_type"] == f"{prefix}progress"} == {f"nova-conductor:{CONF.host}"}
    assert twins(listener, prefix) == []


def test_image_caching_on_a_down_host_is_notified_as_failed(suite, admin, rack, caching, image_id, pair, listener):  # noqa: F811
    set_service(admin, pair.first.host, forced_down=True)
    try:
        admin.post(f"/os-aggregates/{rack}/images", {"cache": [{"id": image_id}]}, expect=202)
        wait_for(lambda: len(told(listener, "aggregate.cache_images.progress")) == 2,
                 reason="the progress of both hosts is published")
        progress = told(listener, "aggregate.cache_images.progress")
        each = {data["host"]: data["images_failed"] for _event, data in progress}
        assert each == {SECOND: [], pair.first.host: [image_id]}
    finally:
        set_service(admin, pair.first.host, forced_down=False)
