"""os-volumes and the volumes of servers."""

import datetime

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.action import Accepted, Action
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import AttachmentChanges, Volume
from nova.rpcapi.servers import Servers
from nova.rpcapi.volumes import Volumes
from tests.unit.api.canned import stub

UUID, OTHER, SERVER = (f"{digit * 8}-f747-4d71-a389-46d078ebf047" for digit in "123")
CREATED = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
VOLUME = Volume(uuid=UUID, project_id="p", size_gb=2, name="data", description="mine", metadata={"a": "b"},
                created_at=CREATED)
SHOWN = {"id": UUID, "status": "available", "size": 2, "availabilityZone": "nova",
         "createdAt": "2026-01-02T03:04:05.000006", "displayName": "data", "displayDescription": "mine",
         "volumeType": None, "snapshotId": None, "metadata": {"a": "b"}, "attachments": [{}]}


# -- os-volumes -------------------------------------------------------------------------------------
@pytest.fixture
def volumes(api):
    api.headers = {"X-Project-Id": "p", "X-User-Id": "u"}
    return stub(api, "volumes", Volumes, index=[VOLUME], get=VOLUME, create=lambda volume: volume)


def test_os_volumes_are_listed_and_shown(api, volumes):
    assert api.get(f"/v2.1/os-volumes/{UUID}", roles="reader").json == {"volume": SHOWN}
    assert volumes.last("get") == {"uuid": UUID, "project_id": "p"}
    for path in ("/os-volumes", "/os-volumes/detail"):
        assert api.get(f"/v2.1{path}", roles="reader").json == {"volumes": [SHOWN]}


def test_os_volume_in_use_shows_its_attachment(api, volumes):
    volumes.answers["get"] = Volume(uuid=UUID, project_id="p", size_gb=2, status="in-use", instance_uuid=SERVER,
                                    device_name="/dev/vdb", created_at=CREATED)
    assert api.get(f"/v2.1/os-volumes/{UUID}").json["volume"]["attachments"] == [
        {"id": UUID, "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb"}]


@pytest.mark.parametrize(("query", "limit", "offset"), [
    ("", 1000, 0), ("?limit=3&offset=2", 3, 2), ("?limit=0", 1000, 0), ("?limit=5000", 1000, 0)])
def test_list_os_volumes_is_paginated_and_limited_to_the_project(api, volumes, query, limit, offset):
    api.get(f"/v2.1/os-volumes{query}", roles="admin")
    assert volumes.last("index") == {"project_id": "p", "limit": limit, "offset": offset}


@pytest.mark.parametrize("query", ["?limit=-1", "?offset=x"])
def test_list_os_volumes_refuses_invalid_limit_and_offset(api, volumes, query):
    assert api.get(f"/v2.1/os-volumes{query}").status == 400


def test_create_os_volume_for_the_callers_project(api, volumes):
    body = {"volume": {"size": "10", "display_name": "data", "display_description": "mine",
                       "availability_zone": "nova", "metadata": {"a": "b"}}}
    answer = api.post("/v2.1/os-volumes", body)
    assert (answer.status, answer.json["volume"]["size"], answer.json["volume"]["status"]) == (200, 10, "available")
    made = volumes.last("create")["volume"]
    assert (made.uuid, made.project_id, made.user_id, made.name, made.availability_zone) == (
        answer.json["volume"]["id"], "p", "u", "data", "nova")


@pytest.mark.parametrize(("changes", "status", "message"), [
    ({"size": 0}, 400, "size"), ({"size": "many"}, 400, "size"), ({"display_name": "x" * 256}, 400, "display_name"),
    ({"metadata": {"a": 5}}, 400, "metadata"), ({"metadata": {"a" * 256: "b"}}, 400, "metadata"),
    ({"snapshot_id": OTHER}, 404, "Snapshot"), ({"volume_type": "ssd"}, 404, "ssd")])
def test_create_os_volume_refuses_invalid_fields(api, volumes, changes, status, message):
    answer = api.post("/v2.1/os-volumes", {"volume": {"size": 1, **changes}})
    assert answer.error[1] == status
    assert message in answer.error[2]


def test_create_os_volume_above_the_quota_returns_403(api, volumes):
    volumes.answers["create"] = exception.QuotaLimit("Quota exceeded: the project may have 10 volumes.")
    assert api.post("/v2.1/os-volumes", {"volume": {"size": 1}}).error[1] == 403


def test_delete_os_volume_and_its_errors(api, volumes):
    assert api("DELETE", f"/v2.1/os-volumes/{UUID}", roles="member").status == 202
    assert volumes.last("delete") == {"uuid": UUID, "project_id": "p"}
    volumes.answers["delete"] = exception.VolumeNotFound(volume_id=UUID)
    assert api("DELETE", f"/v2.1/os-volumes/{UUID}").error[1:] == (404, f"Volume {UUID} could not be found.")
    volumes.answers["delete"] = exception.InvalidVolume(reason="it is in use")
    assert api("DELETE", f"/v2.1/os-volumes/{UUID}").error[1:] == (400, "Invalid volume: it is in use")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_os_volumes_is_unavailable_from_2_36(api, volumes, method):
    assert api(method, f"/v2.1/os-volumes/{UUID}", version="2.35").status < 300
    assert api(method, f"/v2.1/os-volumes/{UUID}", version="2.36").error[1] == 404
    assert api.get("/v2.1/os-volumes", version="2.36").error[1] == 404


def test_readers_cannot_create_or_delete_os_volumes(api, volumes):
    assert api.post("/v2.1/os-volumes", {"volume": {"size": 1}}, roles="reader").error[1] == 403
    assert api("DELETE", f"/v2.1/os-volumes/{UUID}", roles="reader").error[1] == 403


# -- volumes of a server ----------------------------------------------------------------------------
DEVICES = [
    BlockDevice(source="image", boot_index=0),
    BlockDevice(source="volume", destination="volume", volume_id=UUID, device_name="/dev/vdb", attachment_id="a1",
                uuid="b1", tag="foo", delete_on_termination=False),
    BlockDevice(source="blank", destination="volume", volume_id=OTHER, device_name="/dev/vdc", attachment_id="a2",
                uuid="b2", delete_on_termination=True),
]
PATH = f"/v2.1/servers/{SERVER}/os-volume_attachments"


@pytest.fixture
def servers(api, volumes):
    flavor = Flavor(flavorid="1", name="m1.tiny", memory_mb=512, vcpus=1)
    return stub(api, "servers", Servers, get=Instance(
        uuid=SERVER, project_id="p", user_id="u", display_name="vm", hostname="vm", flavor=flavor,
        block_devices=DEVICES, created_at=CREATED))


@pytest.mark.parametrize(("version", "shown"), [
    ("2.1", {"id": UUID, "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb"}),
    ("2.69", {"id": UUID, "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb"}),
    ("2.70", {"id": UUID, "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb", "tag": "foo"}),
    ("2.79", {"id": UUID, "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb", "tag": "foo",
              "delete_on_termination": False}),
    ("2.89", {"attachment_id": "a1", "bdm_uuid": "b1", "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb",
              "tag": "foo", "delete_on_termination": False}),
])
def test_volume_attachment_fields_per_microversion(api, servers, version, shown):
    assert api.get(f"{PATH}/{UUID}", version=version, roles="reader").json == {"volumeAttachment": shown}
    listed = api.get(PATH, version=version, roles="reader").json["volumeAttachments"]
    assert listed[0] == shown
    assert [item["volumeId"] for item in listed] == [UUID, OTHER]


def test_volume_attachments_are_paginated(api, servers):
    def ids(query):
        return [item["volumeId"] for item in api.get(f"{PATH}{query}", version="2.90").json["volumeAttachments"]]

    assert [ids(query) for query in ("?limit=1", "?offset=1", "?limit=0", "?offset=2")] == [
        [UUID], [OTHER], [UUID, OTHER], []]
    assert api.get(f"{PATH}?colour=red", version="2.75").status == 400


def test_unattached_volume_returns_404(api, servers):
    nobody = SERVER
    for method, body in (("GET", None), ("PUT", {"volumeAttachment": {"volumeId": nobody}})):
        assert api(method, f"{PATH}/{nobody}", body, version="2.90").error[1:] == (
            404, f"Instance {SERVER} is not attached to volume {nobody}")


def test_update_attachment_changes_delete_on_termination(api, servers, volumes):
    body = {"volumeAttachment": {"volumeId": UUID, "id": UUID, "serverId": SERVER, "device": "/dev/vdb", "tag": "foo",
                                 "delete_on_termination": True}}
    assert api("PUT", f"{PATH}/{UUID}", body, version="2.85", roles="member").status == 202
    assert volumes.last("update_attachment") == {
        "instance_uuid": SERVER, "volume_id": UUID, "changes": AttachmentChanges(delete_on_termination=True),
        "project_id": "p"}


@pytest.mark.parametrize("change", [{"id": OTHER}, {"serverId": OTHER}, {"device": "/dev/vdc"}, {"tag": "bar"}])
def test_update_attachment_refuses_changes_of_other_fields(api, servers, change):
    body = {"volumeAttachment": {"volumeId": UUID, **change}}
    assert api("PUT", f"{PATH}/{UUID}", body, version="2.85").error[1] == 400


def test_swap_volume_requires_the_service_role(api, servers):
    action = Action(uuid="x", instance_uuid=SERVER, action="swap_volume", request_id="r", start_time=CREATED)
    servers.answers["operate"] = Accepted(action=action)
    body = {"volumeAttachment": {"volumeId": OTHER}}
    assert api("PUT", f"{PATH}/{UUID}", body, version="2.84", roles="member").error[1] == 403
    assert api("PUT", f"{PATH}/{UUID}", body, version="2.84", roles="service").status == 202
    asked = servers.last("operate")
    assert (asked["uuid"], asked["operation"], asked["payload"]) == (
        SERVER, "swap_volume", {"volume_id": UUID, "new_volume_id": OTHER, "delete_on_termination": None})
    body["volumeAttachment"]["delete_on_termination"] = "on"
    assert api("PUT", f"{PATH}/{UUID}", body, version="2.85", roles="service").status == 202
    assert servers.last("operate")["payload"]["delete_on_termination"] is True
    assert api("PUT", f"{PATH}/{SERVER}", body, version="2.85", roles="service").error[1] == 404


# -- attaching and detaching -----------------------------------------------------------------------
ATTACHED = {"volume_id": UUID, "instance_uuid": SERVER, "device_name": "/dev/vdb", "attachment_id": "a1",
            "bdm_uuid": "b1", "tag": "foo", "delete_on_termination": True}


@pytest.fixture
def operations(servers):
    action = Action(uuid="x", instance_uuid=SERVER, action="attach_volume", request_id="r", start_time=CREATED)
    servers.answers["operate"] = Accepted(action=action, answer=ATTACHED)
    return servers


@pytest.mark.parametrize(("version", "body", "shown"), [
    ("2.1", {}, {}), ("2.49", {"tag": "foo"}, {}), ("2.70", {"tag": "foo"}, {"tag": "foo"}),
    ("2.79", {"delete_on_termination": "on"}, {"tag": "foo", "delete_on_termination": True}),
    ("2.100", {}, {"tag": "foo", "delete_on_termination": True})])
def test_attach_volume_response_per_microversion(api, operations, version, body, shown):
    answer = api.post(PATH, {"volumeAttachment": {"volumeId": UUID, "device": "/dev/vdc", **body}}, version=version,
                      roles="member")
    assert (answer.status, answer.json) == (200, {"volumeAttachment": {
        "id": UUID, "volumeId": UUID, "serverId": SERVER, "device": "/dev/vdb", **shown}})
    assert operations.last("operate") == {
        "uuid": SERVER, "operation": "attach_volume", "project_id": "p", "payload": {
            "volume_id": UUID, "device_name": "/dev/vdc", "tag": body.get("tag"),
            "delete_on_termination": "delete_on_termination" in body, "shelved": version != "2.1",
            "shares": version in ("2.70", "2.79", "2.100")}}
    assert [name for name, _given in operations.calls] == ["operate"]  # and no separate query of the server


def test_attach_volume_returns_an_empty_body_from_2_101(api, operations):
    answer = api.post(PATH, {"volumeAttachment": {"volumeId": UUID}}, version="2.101")
    assert (answer.status, answer.text) == (202, "")


@pytest.mark.parametrize("body", [{}, {"volumeId": "x"}, {"volumeId": UUID, "device": "vdb"},
                                  {"volumeId": UUID, "tag": "a,b"}, {"volumeId": UUID, "colour": "red"}])
def test_invalid_volume_attachments_are_refused(api, operations, body):
    assert api.post(PATH, {"volumeAttachment": body}, version="2.79").error[1] == 400
    assert operations.calls == []


def test_detach_volume_starts_an_operation(api, operations):
    assert api("DELETE", f"{PATH}/{UUID}", version="2.20", roles="member").status == 202
    assert operations.last("operate") == {
        "uuid": SERVER, "operation": "detach_volume", "project_id": "p",
        "payload": {"volume_id": UUID, "shelved": True}}
    operations.answers["operate"] = exception.VolumeNotAttached(instance_uuid=SERVER, volume_id=UUID)
    assert api("DELETE", f"{PATH}/{UUID}").error[1:] == (404, f"Instance {SERVER} is not attached to volume {UUID}")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_readers_cannot_attach_or_detach_volumes(api, operations, method):
    body = {"volumeAttachment": {"volumeId": UUID}} if method == "POST" else None
    path = PATH if method == "POST" else f"{PATH}/{UUID}"
    assert api(method, path, body, roles="reader").error[1] == 403
