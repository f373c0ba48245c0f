"""os-instance-actions: fields per microversion and role, pagination, and errors."""

import datetime
import hashlib

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance
from nova.rpcapi.servers import Actions, Servers
from tests.unit.api.canned import stub

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SERVER = "66666666-0000-4000-8000-000000000000"
PATH = f"/v2.1/servers/{SERVER}/os-instance-actions"
EVENTS = [
    Event(event="compute_stop_instance", start_time=WHEN, finish_time=WHEN, result="Error", host="host1",
          traceback="Traceback ...", details="no power"),
    Event(event="second", start_time=WHEN),
]
STOP = Action(uuid="a", instance_uuid=SERVER, action="stop", request_id="req-1", user_id="u", project_id="p",
              start_time=WHEN, finish_time=WHEN + datetime.timedelta(seconds=1), message="Error", events=EVENTS)


@pytest.fixture
def story(api):
    api.headers = {"X-Project-Id": "p"}
    stub(api, "servers", Servers, get=Instance(
        uuid=SERVER, project_id="p", user_id="u", display_name="s", hostname="s", created_at=WHEN,
        flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1)))
    return stub(api, "actions", Actions, index=[STOP], get=STOP)


def show(api, version, roles="admin"):
    return api.get(f"{PATH}/req-1", version=version, roles=roles).json["instanceAction"]


def test_instance_action_fields_per_microversion(api, story):
    common = {"action": "stop", "instance_uuid": SERVER, "request_id": "req-1", "user_id": "u", "project_id": "p",
              "start_time": "2026-01-02T03:04:05.000000", "message": "Error"}
    assert api.get(PATH, version="2.57").json == {"instanceActions": [common]}
    assert api.get(PATH, version="2.58").json == {
        "instanceActions": [{**common, "updated_at": "2026-01-02T03:04:06.000000"}]}


def test_instance_action_events_require_admin_before_2_51(api, story):
    assert "events" not in show(api, "2.50", "reader")
    assert [event["event"] for event in show(api, "2.50")["events"]] == ["second", "compute_stop_instance"]


@pytest.mark.parametrize(("version", "roles", "keys"), [
    ("2.1", "admin", {"traceback"}), ("2.51", "reader", set()), ("2.51", "admin", {"traceback"}),
    ("2.62", "reader", {"hostId"}), ("2.62", "admin", {"traceback", "hostId", "host"}),
    ("2.84", "reader", {"hostId"}), ("2.84", "admin", {"traceback", "hostId", "host", "details"})])
def test_instance_action_event_fields_per_microversion_and_role(api, story, version, roles, keys):
    assert set(show(api, version, roles)["events"][0]) == {
        "event", "start_time", "finish_time", "result", *keys}


def test_instance_action_event_has_all_fields_for_admin(api, story):
    second, first = show(api, "2.84")["events"]
    assert first == {
        "event": "compute_stop_instance", "start_time": "2026-01-02T03:04:05.000000",
        "finish_time": "2026-01-02T03:04:05.000000", "result": "Error", "traceback": "Traceback ...",
        "host": "host1", "hostId": hashlib.sha224(b"phost1").hexdigest(), "details": "no power"}
    assert (second["finish_time"], second["result"], second["hostId"]) == (None, None, "")


@pytest.mark.parametrize(("version", "deleted"), [("2.20", False), ("2.21", True)])
def test_instance_actions_of_deleted_servers_are_shown_from_2_21(api, story, version, deleted):
    api.get(PATH, version=version, roles="reader")
    assert api.behind.servers.last("get") == {"uuid": SERVER, "project_id": "p", "deleted": deleted}


def test_instance_actions_are_paginated_from_2_58(api, story):
    answer = api.get(f"{PATH}?limit=1&marker=req-0&changes-since=2026-01-01T00:00:00Z", version="2.58").json
    assert answer["links"] == [{"rel": "next", "href": (
        f"http://api:8774{PATH}?changes-since=2026-01-01T00%3A00%3A00Z&limit=1&marker=req-1")}]
    assert story.last("index") == {
        "instance_uuid": SERVER, "limit": 1, "marker": "req-0", "changes_before": None,
        "changes_since": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}
    assert api.get(f"{PATH}?limit=1", version="2.57").json.keys() == {"instanceActions"}
    assert story.last("index")["limit"] == CONF.api.max_limit


@pytest.mark.parametrize(("query", "version"), [
    ("limit=x", "2.58"), ("changes-since=yesterday", "2.58"), ("changes-before=2026-01-01T00:00:00", "2.65"),
    ("other=1", "2.58"), ("changes-since=2026-01-02T00:00:00&changes-before=2026-01-01T00:00:00", "2.66")])
def test_invalid_instance_action_queries_are_refused(api, story, query, version):
    assert api.get(f"{PATH}?{query}", version=version).error[1] == 400
    assert not story.calls


def test_unknown_instance_action_returns_404(api, story):
    story.answers["get"] = exception.InstanceActionNotFound(request_id="req-1", instance_uuid=SERVER)
    assert api.get(f"{PATH}/req-1").error == (
        "itemNotFound", 404, f"Action for request_id req-1 on instance {SERVER} not found")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/req-1"])
def test_instance_actions_without_a_role_return_403(api, story, path):
    assert api.get(path, roles="nobody").status == 403
    assert not story.calls
