"""Notifications about other resources: aggregates, flavors, key pairs, server groups, services."""

import pytest

from nova.compute.service import ComputeService
from nova.conf import CONF
from tests.functional.client import Failed, wait_for
from tests.functional.listening import listen
from tests.functional.several_hosts import SECOND, service_of, set_service


@pytest.fixture
def listener(suite):
    with listen(suite, notification_format="both") as found:
        yield found


def told(listener, prefix, count):
    """Wait for ``count`` versioned notifications; return (event type without the prefix, payload) of each."""
    def found():
        return [(message["event_type"].removeprefix(prefix), message["payload"]["nova_object.data"])
                for message in listener.versioned if message["event_type"].startswith(prefix)]

    wait_for(lambda: len(found()) >= count, reason=f"{count} of {prefix}")
    return found()


def publishers(listener, prefix):
    """Return the publishers of these notifications. Other resources may be notified at the same time."""
    return {message["publisher_id"] for message in listener.versioned if message["event_type"].startswith(prefix)}


def twins(listener, prefix):
    return [message["event_type"] for message in listener.unversioned if message["event_type"].startswith(prefix)]


def test_aggregate_changes_are_notified(suite, admin, listener):
    path = f"/os-aggregates/{admin.post('/os-aggregates', {'aggregate': {'name': 'rack'}})['aggregate']['id']}"
    host = suite.compute.host
    admin.post(f"{path}/action", {"add_host": {"host": host}})
    admin.post(f"{path}/action", {"set_metadata": {"metadata": {"ssd": "yes"}}})
    admin.put(path, {"aggregate": {"name": "shelf"}})
    admin.post(f"{path}/action", {"remove_host": {"host": host}})
    admin.delete(path)
    found = told(listener, "aggregate.", 12)
    events = ["create", "add_host", "update_metadata", "update_prop", "remove_host", "delete"]
    assert [event for event, _data in found] == [f"{event}.{phase}" for event in events for phase in ("start", "end")]
    data = dict(found)
    assert (data["create.start"]["id"], data["create.start"]["hosts"]) == (None, None)
    assert data["create.end"]["id"]
    assert (data["add_host.start"]["hosts"], data["add_host.end"]["hosts"]) == ([], [host])
    assert data["update_metadata.end"]["metadata"] == {"ssd": "yes"}
    assert (data["update_prop.start"]["name"], data["update_prop.end"]["name"]) == ("rack", "shelf")
    assert twins(listener, "aggregate.")[:4] == [
        "aggregate.create.start", "aggregate.create.end", "aggregate.addhost.start", "aggregate.addhost.end"]
    assert publishers(listener, "aggregate.") == {f"nova-api:{CONF.host}"}


def test_flavor_changes_are_notified(admin, listener):
    flavor = admin.flavor(**{"os-flavor-access:is_public": False})
    admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": "b"}}, version="2.85")
    admin.post(f"/flavors/{flavor}/action", {"addTenantAccess": {"tenant": "friends"}})
    admin.put(f"/flavors/{flavor}", {"flavor": {"description": "small"}})
    admin.delete(f"/flavors/{flavor}")
    found = told(listener, "flavor.", 5)
    assert [event for event, _data in found] == ["create", "update", "update", "update", "delete"]
    last = found[-1][1]
    assert (last["flavorid"], last["extra_specs"], last["projects"], last["description"]) == (
        flavor, {"a": "b"}, ["friends"], "small")
    assert twins(listener, "flavor.") == []


def test_key_pair_create_import_and_delete_are_notified(admin, listener):
    made = admin.post("/os-keypairs", {"keypair": {"name": "made"}}, version="2.91")["keypair"]
    admin.delete("/os-keypairs/made")
    admin.post("/os-keypairs", {"keypair": {"name": "mine", "type": "ssh", "public_key": made["public_key"]}})
    admin.delete("/os-keypairs/mine")
    found = told(listener, "keypair.", 8)
    events = [f"{event}.{phase}" for event in ("create", "delete", "import", "delete") for phase in ("start", "end")]
    assert [event for event, _data in found] == events
    assert twins(listener, "keypair.") == [f"keypair.{event}" for event in events]
    begun, ended = found[0][1], found[1][1]
    assert (begun["fingerprint"], begun["public_key"]) == (None, None)
    assert (ended["fingerprint"], ended["public_key"]) == (made["fingerprint"], made["public_key"])
    assert found[4][1]["public_key"] == made["public_key"]
    assert "private" not in str([message["payload"] for message in listener.messages]).lower()


def test_server_group_changes_are_notified(admin, flavor, image_id, listener):
    group = admin.post("/os-server-groups", {"server_group": {
        "name": "apart", "policy": "anti-affinity", "rules": {"max_server_per_host": 3}}})["server_group"]["id"]
    server = admin.boot(flavor, image_id, top={"os:scheduler_hints": {"group": group}})
    admin.wait(server, "ACTIVE")
    admin.delete(f"/os-server-groups/{group}")
    found = told(listener, "server_group.", 3)
    assert [event for event, _data in found] == ["create", "add_member", "delete"]
    assert [data["members"] for _event, data in found] == [[], [server], [server]]
    assert found[0][1]["rules"] == {"max_server_per_host": "3"}
    assert twins(listener, "servergroup.") == ["servergroup.create", "servergroup.addmember", "servergroup.delete"]


def test_service_create_update_and_delete_are_notified(suite, admin, second, listener):
    set_service(admin, second.host, status="disabled", disabled_reason="repair")
    second.stop()
    set_service(admin, second.host, forced_down=True)
    admin.delete(f"/os-services/{service_of(admin, second.host)['id']}")
    found = told(listener, "service.", 3)
    assert [event for event, _data in found] == ["update", "update", "delete"]
    assert (found[0][1]["disabled"], found[0][1]["disabled_reason"]) == (True, "repair")
    assert found[1][1]["forced_down"] is True
    assert publishers(listener, "service.") == {f"nova-compute:{second.host}"}
    again = ComputeService(suite.transport, host=SECOND, machine=second.machine)
    again.start()
    try:
        assert told(listener, "service.", 4)[-1][0] == "create"
    finally:
        again.stop()


def test_failure_on_a_host_is_notified_with_its_traceback(suite, admin, flavor, image_id, driver, listener):
    server = admin.boot(flavor, image_id)
    admin.wait(server, "ACTIVE")
    driver.behaviour.failure["pause"] = 1.0
    admin.action(server, "pause")
    [(_event, data)] = told(listener, "compute.exception", 1)
    assert data["exception"]
    assert data["exception_message"]
    assert data["traceback"]
    assert data["function_name"]
    message = next(each for each in listener.versioned if each["event_type"] == "compute.exception")
    assert (message["publisher_id"], message["priority"]) == (f"nova-compute:{suite.compute.host}", "ERROR")
    admin.wait_idle(server)
    twin = next(each for each in listener.unversioned if each["event_type"] == "pause")
    assert set(twin["payload"]) == {"exception", "args"}


def test_refused_resource_requests_are_not_notified(admin, listener):
    with pytest.raises(Failed):
        admin.delete("/os-aggregates/999999")
    with pytest.raises(Failed):
        admin.delete("/flavors/nothing")
    with pytest.raises(Failed):
        admin.delete("/os-keypairs/nothing")
    admin.delete(f"/flavors/{admin.flavor()}")
    told(listener, "flavor.", 2)
    assert [message["event_type"] for message in listener.messages] == ["flavor.create", "flavor.delete"]
