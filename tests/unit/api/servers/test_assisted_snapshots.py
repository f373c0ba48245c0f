"""os-assisted-volume-snapshots: requests of the volume service and the server operations that they start."""

import datetime
import json

import pytest

from nova import exception
from nova.objects.servers.action import Accepted, Action
from nova.rpcapi.servers import Servers
from nova.rpcapi.volumes import VolumeSnapshots
from tests.unit.api.canned import stub

VOLUME, SNAPSHOT, SERVER = (f"{digit * 8}-f747-4d71-a389-46d078ebf047" for digit in "123")
PATH = "/v2.1/os-assisted-volume-snapshots"
ACCEPTED = Accepted(action=Action(uuid="x", instance_uuid=SERVER, action="volume_snapshot_create", request_id="r",
                                  start_time=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)))
INFO = {"snapshot_id": SNAPSHOT, "type": "qcow2", "new_file": f"volume-{VOLUME}.{SNAPSHOT}", "id": SNAPSHOT}


@pytest.fixture
def snapshots(api):
    api.headers = {"X-Project-Id": "service", "X-User-Id": "cinder", "X-Roles": "service"}
    return stub(api, "volume_snapshots", VolumeSnapshots, server_of=SERVER)


@pytest.fixture
def servers(api, snapshots):
    return stub(api, "servers", Servers, operate=ACCEPTED)


def create(api, volume=VOLUME, **changes):
    info = {name: value for name, value in {**INFO, **changes}.items() if value is not None}
    return api.post(PATH, {"snapshot": {"volume_id": volume, "create_info": info}}, roles="service")


def delete(api, told, snapshot=SNAPSHOT, version="2.1"):
    text = told if isinstance(told, str) else json.dumps(told)
    return api("DELETE", f"{PATH}/{snapshot}?delete_info={text}", roles="service", version=version)


def test_assisted_snapshot_create_starts_an_operation_of_the_attached_server(api, servers, snapshots):
    answer = create(api)
    assert (answer.status, answer.json) == (200, {"snapshot": {"id": SNAPSHOT, "volumeId": VOLUME}})
    assert snapshots.last("server_of") == {"volume_id": VOLUME}
    asked = servers.last("operate")
    assert (asked["uuid"], asked["operation"], asked["payload"]) == (SERVER, "volume_snapshot_create", {
        "volume_id": VOLUME, "snapshot_id": SNAPSHOT, "new_file": INFO["new_file"]})


@pytest.mark.parametrize(("told", "top", "base"), [
    ({"file_to_merge": "a", "merge_target_file": "b"}, "a", "b"), ({"file_to_merge": "a"}, "a", None),
    ({"file_to_merge": None, "merge_target_file": None, "snapshot_id": "x"}, None, None)])
def test_assisted_snapshot_delete_starts_an_operation_of_the_attached_server(api, servers, told, top, base):
    assert delete(api, {"volume_id": VOLUME, "type": "qcow2", **told}).status == 204
    asked = servers.last("operate")
    assert (asked["uuid"], asked["operation"], asked["payload"]) == (SERVER, "volume_snapshot_delete", {
        "volume_id": VOLUME, "snapshot_id": SNAPSHOT, "file_to_merge": top, "merge_target_file": base})


@pytest.mark.parametrize(("changes", "field"), [
    *(({"new_file": name}, "new_file") for name in ("", "/etc/passwd", "../x", "..", ".", "a\nb", "x" * 256)),
    ({"snapshot_id": "x/../../volumes"}, "snapshot_id"), ({"snapshot_id": None}, "snapshot_id"),
    ({"type": "raw"}, "type"), ({"type": None}, "type"), ({"new_file": None}, "new_file"),
    ({"colour": "red"}, "colour")])
def test_invalid_create_info_of_an_assisted_snapshot_is_refused(api, servers, changes, field):
    code, message = create(api, **changes).error[1:]
    assert (code, field in message) == (400, True)
    assert servers.calls == []


@pytest.mark.parametrize(("told", "field"), [
    ("", "delete_info"), ("{", "delete_info"), ("[]", "volume_id"), ("[" * 100000, "delete_info"), ("{}", "volume_id"),
    ({"volume_id": "\ud800"}, "delete_info"), ({"volume_id": 5}, "volume_id"),
    ({"volume_id": VOLUME, "type": "raw"}, "type"),
    ({"volume_id": VOLUME, "file_to_merge": "a/b"}, "file_to_merge"),
    ({"volume_id": VOLUME, "file_to_merge": ["a"]}, "file_to_merge"),
    ({"volume_id": VOLUME, "file_to_merge": "a", "merge_target_file": ".."}, "merge_target_file"),
    ({"volume_id": VOLUME, "merge_target_file": "a"}, "file_to_merge")])
def test_invalid_delete_info_of_an_assisted_snapshot_is_refused(api, servers, told, field):
    code, message = delete(api, told).error[1:]
    assert (code, field in message) == (400, True)
    assert servers.calls == []


def test_assisted_snapshot_delete_requires_delete_info_and_a_uuid(api, servers):
    assert api("DELETE", f"{PATH}/{SNAPSHOT}", roles="service").error[1] == 400
    assert delete(api, {"volume_id": VOLUME}, snapshot="x").error[1] == 404
    told = json.dumps({"volume_id": VOLUME})
    for version, status in (("2.74", 204), ("2.75", 400)):
        assert api("DELETE", f"{PATH}/{SNAPSHOT}?delete_info={told}&colour=red", roles="service",
                   version=version).status == status


@pytest.mark.parametrize("error", [
    exception.InstanceInvalidState(method="m", instance_uuid=SERVER, attr="vm_state", state="stopped"),
    exception.InstanceNotReady(instance_id=SERVER), exception.InstanceNotFound(instance_id=SERVER),
    exception.VolumeNotAttached(instance_uuid=SERVER, volume_id=VOLUME)])
def test_server_state_errors_of_assisted_snapshots_return_400(api, servers, error):
    servers.answers["operate"] = error
    assert create(api).error[1:] == (400, error.message)
    assert delete(api, {"volume_id": VOLUME}).error[1:] == (400, error.message)


@pytest.mark.parametrize("found", [None, exception.VolumeNotFound(volume_id=VOLUME)])
def test_assisted_snapshot_of_an_unattached_volume_returns_400(api, servers, snapshots, found):
    snapshots.answers["server_of"] = found
    assert create(api).error[1] == delete(api, {"volume_id": VOLUME}).error[1] == 400
    assert create(api, volume="x/../y").error[1:] == (400, "No server has volume x/../y.")
    assert servers.calls == []


@pytest.mark.parametrize(("roles", "status"), [("service", 200), ("admin", 200), ("manager", 403), ("member", 403)])
def test_assisted_snapshots_are_allowed_for_service_and_admin_roles(api, servers, roles, status):
    answer = api.post(PATH, {"snapshot": {"volume_id": VOLUME, "create_info": INFO}}, roles=roles)
    assert answer.status == status
