"""os-server-external-events: batches with a code for each event."""

import pytest

from nova.objects.servers.external_event import ExternalEvent
from nova.rpcapi.servers import ExternalEvents
from tests.unit.api.canned import stub

ONE, TWO = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12")
PATH = "/v2.1/os-server-external-events"


@pytest.fixture
def events(api):
    return stub(api, "external_events", ExternalEvents, create=lambda events: [200] * len(events))


def event(**changes):
    return {"name": "network-vif-plugged", "server_uuid": ONE, "tag": "port", **changes}


def send(api, *found, version="2.96", roles="service"):
    return api.post(PATH, {"events": list(found)}, version=version, roles=roles)


def test_external_events_reach_the_conductor_in_a_single_call(api, events):
    answer = send(api, event(status="failed"), event(server_uuid=TWO), {"name": "network-changed", "server_uuid": ONE})
    assert answer.status == 200
    assert answer.json == {"events": [
        {"name": "network-vif-plugged", "server_uuid": ONE, "tag": "port", "status": "failed", "code": 200},
        {"name": "network-vif-plugged", "server_uuid": TWO, "tag": "port", "status": "completed", "code": 200},
        {"name": "network-changed", "server_uuid": ONE, "status": "completed", "code": 200}]}
    (_, told), = events.calls
    assert told["events"] == [
        ExternalEvent(name="network-vif-plugged", instance_uuid=ONE, status="failed", tag="port"),
        ExternalEvent(name="network-vif-plugged", instance_uuid=TWO, tag="port"),
        ExternalEvent(name="network-changed", instance_uuid=ONE)]


@pytest.mark.parametrize(("codes", "status", "statuses"), [
    ([200, 404], 207, ["completed", "failed"]), ([422, 200], 207, ["failed", "completed"]),
    ([422, 422], 207, ["failed", "failed"]), ([404, 422], 207, ["failed", "failed"])])
def test_partly_refused_external_events_return_207(api, events, codes, status, statuses):
    events.answers["create"] = codes
    answer = send(api, event(), event(server_uuid=TWO))
    assert answer.status == status
    assert [(told["code"], told["status"]) for told in answer.json["events"]] == list(zip(codes, statuses, strict=True))


def test_external_events_without_an_existing_server_return_404(api, events):
    events.answers["create"] = [404, 404]
    assert send(api, event(), event(server_uuid=TWO)).error[:2] == ("itemNotFound", 404)


@pytest.mark.parametrize(("name", "tag", "since"), [
    ("volume-extended", "volume", 51), ("power-update", "POWER_ON", 76), ("power-update", "power_off", 76),
    ("accelerator-request-bound", "arq", 82), ("volume-reimaged", "volume", 93)])
def test_external_event_requires_its_microversion_and_a_tag(api, events, name, tag, since):
    assert send(api, event(name=name, tag=tag), version=f"2.{since - 1}").error[1] == 400
    assert send(api, event(name=name, tag=tag), version=f"2.{since}").status == 200
    untagged = {"name": name, "server_uuid": ONE}
    answer = send(api, untagged, event(), version=f"2.{since}")
    assert answer.status == 207
    assert answer.json["events"][0] == {**untagged, "status": "failed", "code": 400}
    assert len(events.last("create")["events"]) == 1


def test_power_update_event_with_an_unknown_state_is_refused(api, events):
    answer = send(api, event(name="power-update", tag="POWER_MAYBE"))
    assert (answer.status, answer.json["events"][0]["code"]) == (207, 400)
    assert not events.calls


@pytest.mark.parametrize("body", [
    {}, {"events": []}, {"events": [{}]}, {"events": [{"name": "network-changed"}]},
    {"events": [{"server_uuid": ONE}]}, {"events": [event(name="earthquake")]}, {"events": [event(server_uuid="x")]},
    {"events": [event(status="done")]}, {"events": [event(tag="x" * 256)]}, {"events": [event(tag=None)]},
    {"events": [event(more=1)]}])
def test_malformed_external_events_are_refused(api, events, body):
    assert api.post(PATH, body).error[1] == 400
    assert not events.calls


@pytest.mark.parametrize(("roles", "status"), [("service", 200), ("admin", 200), ("manager", 403), ("member", 403)])
def test_external_events_are_allowed_for_service_and_admin_roles(api, events, roles, status):
    assert send(api, event(), roles=roles).status == status
