"""os-services and os-availability-zone."""

import datetime

import pytest

from nova import exception
from nova.objects.hosts.service import Service
from nova.rpcapi.hosts import Services, Zones
from tests.unit.api.canned import stub

UUID = "e81d66a4-ddd3-4aba-8a84-171d1cb4d339"
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
COMPUTE = Service(id=2, uuid=UUID, host="host1", binary="nova-compute", up=True, availability_zone="nova",
                  last_seen_up=WHEN)
SCHEDULER = Service(id=3, uuid=UUID, host="host1", binary="nova-scheduler", disabled=True, disabled_reason="r")
TARGET = {"host": "host1", "binary": "nova-compute"}


def changed(disabled=None, reason=None, forced_down=None, **_):
    return Service(uuid=UUID, host="host1", binary="nova-compute", disabled=bool(disabled), disabled_reason=reason,
                   forced_down=bool(forced_down))


@pytest.fixture
def services(api):
    return stub(api, "services", Services, index=lambda binary, **_: [COMPUTE] if binary != "nova-scheduler" else [],
                get=COMPUTE, update=changed, update_by_host=changed)


def put(api, ident, body, version, **kwargs):
    return api("PUT", f"/v2.1/os-services/{ident}", body, version=version, **kwargs)


# -- list -------------------------------------------------------------------------------------------
def test_service_fields_per_microversion(api, services):
    common = {"binary": "nova-compute", "host": "host1", "zone": "nova", "status": "enabled", "state": "up",
              "updated_at": "2026-01-02T03:04:05.000006", "disabled_reason": None}
    for version, more in (("2.1", {"id": 2}), ("2.10", {"id": 2}), ("2.11", {"id": 2, "forced_down": False}),
                          ("2.52", {"id": 2, "forced_down": False}), ("2.53", {"id": UUID, "forced_down": False})):
        assert api.get("/v2.1/os-services", version=version).json == {"services": [{**common, **more}]}


def test_list_services_passes_host_and_binary_filters(api, services):
    api.get("/v2.1/os-services?host=h&binary=b&other=x", version="2.74")
    assert services.last("index") == {"host": "h", "binary": "b"}
    assert api.get("/v2.1/os-services?other=x", version="2.75").status == 400


@pytest.mark.parametrize(("method", "path", "body"), [
    ("GET", "/os-services", None), ("PUT", f"/os-services/{UUID}", {"status": "enabled"}),
    ("DELETE", f"/os-services/{UUID}", None)])
def test_services_require_admin(api, services, method, path, body):
    assert api(method, f"/v2.1{path}", body, version="2.53", roles="member").status == 403


# -- changes before 2.53 ----------------------------------------------------------------------------
@pytest.mark.parametrize(("act", "body", "change", "answer"), [
    ("enable", {}, {"disabled": False}, {"status": "enabled"}),
    ("disable", {}, {"disabled": True}, {"status": "disabled"}),
    ("disable", {"disabled_reason": "x"}, {"disabled": True}, {"status": "disabled"}),
    ("disable-log-reason", {"disabled_reason": "x"}, {"disabled": True, "reason": "x"},
     {"status": "disabled", "disabled_reason": "x"}),
    ("force-down", {"forced_down": "yes"}, {"forced_down": True}, {"forced_down": True}),
    ("force-down", {"forced_down": False}, {"forced_down": False}, {"forced_down": False}),
])
def test_service_actions_by_host_and_binary_before_2_53(api, services, act, body, change, answer):
    assert put(api, act, {**TARGET, **body}, "2.11").json == {"service": {**TARGET, **answer}}
    assert services.last("update_by_host") == {
        **TARGET, "disabled": None, "reason": None, "forced_down": None, **change}


@pytest.mark.parametrize(("act", "body", "version", "status"), [
    ("disable-log-reason", TARGET, "2.1", 400), ("force-down", TARGET, "2.11", 400),
    ("force-down", TARGET, "2.10", 404), ("reboot", TARGET, "2.11", 404),
    ("enable", {"host": "h"}, "2.1", 400), ("enable", {**TARGET, "x": 1}, "2.1", 400),
    ("disable-log-reason", {**TARGET, "disabled_reason": ""}, "2.1", 400),
    ("enable", {**TARGET, "host": "a b"}, "2.1", 400)])
def test_invalid_service_actions_are_refused(api, services, act, body, version, status):
    assert put(api, act, body, version).error[1] == status
    assert not services.calls


def test_service_action_on_an_unknown_host_returns_404(api, services):
    services.answers["update_by_host"] = exception.HostBinaryNotFound(host="h", binary="nova-compute")
    assert put(api, "enable", TARGET, "2.1").error == (
        "itemNotFound", 404, "Could not find binary nova-compute on host h.")


# -- changes from 2.53 ------------------------------------------------------------------------------
@pytest.mark.parametrize(("body", "change"), [
    ({"status": "disabled"}, {"disabled": True}), ({"status": "enabled"}, {"disabled": False}),
    ({"status": "disabled", "disabled_reason": "x"}, {"disabled": True, "reason": "x"}),
    ({"forced_down": "on"}, {"forced_down": True}),
    ({"status": "enabled", "forced_down": False}, {"disabled": False, "forced_down": False})])
def test_update_service_by_uuid_from_2_53(api, services, body, change):
    answer = put(api, UUID, body, "2.53")
    assert answer.json["service"]["id"] == UUID
    assert services.last("update") == {
        "service_id": UUID, "disabled": None, "reason": None, "forced_down": None, **change}


@pytest.mark.parametrize(("ident", "body"), [
    ("enable", {"status": "enabled"}), ("2", {"status": "enabled"}), (UUID, {}), (UUID, {"disabled_reason": "x"}),
    (UUID, {"status": "enabled", "disabled_reason": "x"}), (UUID, {"status": "up"}), (UUID, TARGET)])
def test_invalid_service_updates_are_refused(api, services, ident, body):
    assert put(api, ident, body, "2.53").error[1] == 400
    assert not services.calls


@pytest.mark.parametrize(("ident", "body", "version"), [
    ("disable", {"host": "host1", "binary": "nova-scheduler"}, "2.1"), (UUID, {"status": "disabled"}, "2.53")])
def test_update_of_a_service_other_than_nova_compute_is_refused(api, services, ident, body, version):
    services.answers.update(get=SCHEDULER, index=[SCHEDULER])
    answer = put(api, ident, body, version)
    assert answer.error[1] == 400
    assert "nova-scheduler" in answer.text


# -- delete -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ident", "version", "status"), [
    ("2", "2.52", 204), (UUID, "2.53", 204), ("2", "2.53", 400), (UUID, "2.52", 400)])
def test_delete_service_requires_the_id_format_of_the_microversion(api, services, ident, version, status):
    assert api("DELETE", f"/v2.1/os-services/{ident}", version=version).status == status
    assert [given["service_id"] for _, given in services.calls] == ([ident] if status == 204 else [])


def test_delete_service_with_servers_returns_409(api, services):
    services.answers["delete"] = exception.ServiceInUse()
    assert api("DELETE", f"/v2.1/os-services/{UUID}", version="2.53").error[1] == 409


# -- zones ------------------------------------------------------------------------------------------
def test_availability_zones_are_listed_available_first(api):
    stub(api, "zones", Zones, index={"a": False, "b": True})
    assert api.get("/v2.1/os-availability-zone", roles="nobody").json == {"availabilityZoneInfo": [
        {"zoneName": "b", "zoneState": {"available": True}, "hosts": None},
        {"zoneName": "a", "zoneState": {"available": False}, "hosts": None}]}


def test_availability_zone_details_show_services_to_admin(api):
    stub(api, "zones", Zones, detail={"nova": [COMPUTE], "internal": [SCHEDULER]})
    assert api.get("/v2.1/os-availability-zone/detail", roles="member").status == 403
    assert api.get("/v2.1/os-availability-zone/detail").json == {"availabilityZoneInfo": [
        {"zoneName": "nova", "zoneState": {"available": True}, "hosts": {"host1": {"nova-compute": {
            "active": True, "available": True, "updated_at": "2026-01-02T03:04:05.000006"}}}},
        {"zoneName": "internal", "zoneState": {"available": False}, "hosts": None}]}
