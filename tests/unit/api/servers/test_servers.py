"""Servers over the API: the calls to the conductor and the responses made of its results."""

import datetime

import pytest

from nova import exception, image
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.service import Service
from nova.objects.images.image import Image
from nova.objects.servers.action import Accepted, Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_request import ServerCreated, ServerPage

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
NET = "ff608d40-75e9-48cb-b745-77bb55b5eaf2"
PORT = "01010101-0101-4101-8101-010101010101"
MINE = "0" * 31 + "1"


def server(**changes):
    values = {"uuid": "uuid", "project_id": MINE, "user_id": "user", "display_name": "name", "hostname": "name",
              "vm_state": "active", "created_at": WHEN, "tags": ["a", "b"], "metadata": {"k": "v"},
              "flavor": Flavor(flavorid="1", name="m1.tiny", memory_mb=512, vcpus=1)}
    return Instance(**{**values, **changes})


class Conductor:
    """A fake servers interface that records its calls and returns :attr:`server`."""

    def __init__(self):
        self.calls = []
        self.server = server()
        self.fail = None

    def _asked(self, name, kwargs, answer=None):
        if self.fail:
            raise self.fail
        self.calls.append((name, kwargs))
        return answer

    @property
    def last(self):
        return self.calls[-1]

    def create(self, ctx, request):
        return self._asked("create", request, ServerCreated(uuids=["one", "two"], reservation_id="r-1"))

    def page(self, ctx, query):
        return self._asked("page", query, ServerPage(servers=[self.server]))

    def get(self, ctx, uuid, project_id=None, deleted=False):
        if project_id not in (None, self.server.project_id):
            raise exception.InstanceNotFound(instance_id=uuid)
        return self._asked("get", {"uuid": uuid, "project_id": project_id}, self.server)

    def operate(self, ctx, uuid, operation, payload=None, project_id=None):
        self._asked("operate", {"uuid": uuid, "operation": operation, "project_id": project_id})
        return Accepted(action=Action(uuid="a", instance_uuid=uuid, action=operation, request_id="r", start_time=WHEN))

    def update(self, ctx, uuid, changes, project_id=None):
        return self._asked("update", changes, self.server)

    def set_metadata(self, ctx, uuid, metadata, replace=False, project_id=None):
        return self._asked("set_metadata", {"metadata": metadata, "replace": replace}, {"all": "of it"})

    def delete_metadata(self, ctx, uuid, key, project_id=None):
        self._asked("delete_metadata", key)

    def set_tags(self, ctx, uuid, tags, mode="replace", project_id=None):
        return self._asked("set_tags", {"tags": tags, "mode": mode}, self.server.tags)

    def lock(self, ctx, uuid, reason=None, project_id=None):
        self._asked("lock", {"reason": reason, "project_id": project_id})

    def unlock(self, ctx, uuid, project_id=None, override=True):
        self._asked("unlock", {"project_id": project_id, "override": override})

    def reset_state(self, ctx, uuid, state):
        self._asked("reset_state", state)

    def set_security_group(self, ctx, uuid, name, add, project_id=None):
        self._asked("set_security_group", {"name": name, "add": add})


class Images:
    """A fake image store with a single image."""

    def __init__(self):
        self.image = Image(id=IMAGE)
        self.token = None

    def show(self, ctx, image_id, token=None):
        self.token = token
        if image_id != self.image.id:
            raise exception.ImageNotFound(image_id=image_id)
        return self.image


@pytest.fixture
def conductor(api):
    api.behind.servers = Conductor()
    api.headers["X-Project-Id"] = MINE
    return api.behind.servers


@pytest.fixture
def images(monkeypatch):
    store = Images()
    monkeypatch.setattr(image, "store", lambda: store, raising=False)
    return store


def body(**changes):
    return {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, **changes}}


# -- create -----------------------------------------------------------------------------------------
def test_create_server_returns_id_password_and_links(api, conductor, images):
    answer = api.post("/v2.1/servers", body(adminPass="secret", security_groups=[{"name": "web"}]))
    assert answer.status == 202
    link = "http://api:8774/v2.1/servers/one"
    assert answer.headers["location"] == link
    assert answer.json == {"server": {
        "id": "one", "OS-DCF:diskConfig": "AUTO", "security_groups": [{"name": "web"}], "adminPass": "secret",
        "links": [{"rel": "self", "href": link}, {"rel": "bookmark", "href": "http://api:8774/servers/one"}]}}


def test_create_server_makes_a_single_call(api, conductor, images):
    api.post("/v2.1/servers", body())
    assert [name for name, _ in conductor.calls] == ["create"]


def test_create_server_generates_a_password_and_shows_the_default_group(api, conductor, images):
    shown = api.post("/v2.1/servers", body()).json["server"]
    assert len(shown["adminPass"]) == CONF.api.password_length
    assert shown["security_groups"] == [{"name": "default"}]
    assert conductor.last[1].security_groups == []


def test_create_server_returns_the_reservation_id_on_request(api, conductor, images):
    answer = api.post("/v2.1/servers", body(return_reservation_id=True, min_count="2"))
    assert answer.json == {"reservation_id": "r-1"}
    assert "location" not in answer.headers
    assert (conductor.last[1].min_count, conductor.last[1].max_count) == (2, 2)


def test_create_server_passes_all_fields_to_the_conductor(api, conductor, images):
    wanted = body(
        flavorRef="http://host/flavors/42", metadata={"a": "b"}, accessIPv4="1.2.3.4", accessIPv6="fe80::1",
        availability_zone="zone", config_drive="yes", key_name="key", user_data="aGVsbG8=", description=None,
        tags=["x", "x", "y"], host="h", hypervisor_hostname="n", hostname="web",
        networks=[{"uuid": NET, "fixed_ip": "10.0.0.9", "tag": "nic"}], **{"OS-DCF:diskConfig": "MANUAL"})
    wanted["os:scheduler_hints"] = {"group": NET}
    api.post("/v2.1/servers", wanted, version="2.104")
    sent = conductor.last[1]
    assert (sent.flavor_id, sent.metadata, sent.access_ip_v4, sent.access_ip_v6) == (
        "42", {"a": "b"}, "1.2.3.4", "fe80::1")
    assert (sent.availability_zone, sent.config_drive, sent.key_name, sent.user_data) == (
        "zone", True, "key", "aGVsbG8=")
    assert (sent.description, sent.tags, sent.trusted_certs, sent.hostname) == (None, ["x", "y"], None, "web")
    assert (sent.requested_host, sent.requested_node, sent.disk_config) == ("h", "n", "MANUAL")
    assert sent.scheduler_hints == {"group": NET}
    network = sent.networks[0]
    assert (network.network_id, network.fixed_ip, network.tag) == (NET, "10.0.0.9", "nic")
    assert sent.image.id == IMAGE


def test_create_server_before_2_19_sets_the_description_to_the_name(api, conductor, images):
    api.post("/v2.1/servers", body(), version="2.18")
    assert conductor.last[1].description == "web"
    api.post("/v2.1/servers", body(), version="2.19")
    assert conductor.last[1].description is None


@pytest.mark.parametrize(("networks", "sent"), [("auto", None), ("none", []), ([], None)])
def test_create_server_with_networks_auto_or_none(api, conductor, images, networks, sent):
    api.post("/v2.1/servers", body(networks=networks), version="2.37")
    assert conductor.last[1].networks == sent


@pytest.mark.parametrize(("zone", "parts"), [
    ("z", ("z", None, None)), ("z:h", ("z", "h", None)), ("z:h:n", ("z", "h", "n")), ("z::n", ("z", None, "n"))])
def test_create_server_splits_the_availability_zone_into_host_and_node(api, conductor, images, zone, parts):
    api.post("/v2.1/servers", body(availability_zone=zone))
    sent = conductor.last[1]
    assert (sent.availability_zone, sent.forced_host, sent.forced_node) == parts


def test_create_server_reads_the_image_with_the_callers_token(api, conductor, images):
    api.post("/v2.1/servers", body(), headers={"X-Auth-Token": "user:" + MINE})
    assert images.token == "user:" + MINE


@pytest.mark.parametrize(("changes", "message"), [
    ({"imageRef": ""}, "Missing imageRef attribute"),
    ({"imageRef": NET}, "Can not find requested image"),
    ({"min_count": 3, "max_count": 2}, "min_count must be <= max_count"),
    ({"networks": [{"fixed_ip": "10.0.0.1"}]}, "Bad networks format: missing 'uuid' or 'port'."),
    ({"networks": [{"uuid": "x"}]}, "Bad networks format: network uuid is not in proper format (x)"),
    ({"networks": [{"port": PORT, "fixed_ip": "10.0.0.1"}]},
     f"Fixed IP '10.0.0.1' cannot be used together with port '{PORT}'."),
    ({"availability_zone": "a:b:c:d"}, "Unable to parse availability_zone: a:b:c:d."),
    ({"personality": [{"path": "/x"}]}, "Bad personality format: missing contents"),
    ({"block_device_mapping_v2": [{"source_type": "volume", "uuid": NET}], "max_count": 2},
     "Cannot attach one or more volumes to multiple instances"),
    ({"block_device_mapping": [{"volume_id": NET}], "block_device_mapping_v2": [{"source_type": "blank"}]},
     "Using different block_device_mapping syntaxes is not allowed in the same request."),
    ({"block_device_mapping_v2": [{"source_type": "blank", "boot_index": 0}]},
     "Boot sequence for the instance and image/block device mapping combination is not valid."),
])
def test_create_server_refuses_invalid_fields(api, conductor, images, changes, message):
    assert api.post("/v2.1/servers", body(**changes)).error == ("badRequest", 400, message)
    assert conductor.calls == []


@pytest.mark.parametrize("changes", [
    {"hostname": "web", "max_count": 2}, {"networks": [{"uuid": NET, "fixed_ip": "10.0.0.1"}], "max_count": 2},
    {"networks": [{"port": PORT}], "max_count": 2}, {"host": "h", "availability_zone": "z:h"},
    {"block_device_mapping_v2": [{"source_type": "blank", "volume_type": "ssd"}]},
    {"block_device_mapping_v2": [{"source_type": "image", "destination_type": "volume", "uuid": IMAGE}]},
    {"block_device_mapping_v2": [{"source_type": "blank", "guest_format": "swap"}] * 2},
])
def test_create_server_refuses_invalid_combinations(api, conductor, images, changes):
    answer = api.post("/v2.1/servers", body(**{"networks": "auto", **changes}), version="2.104")
    assert answer.error[:2] == ("badRequest", 400)
    assert conductor.calls == []


def test_create_server_refuses_an_inactive_image(api, conductor, images):
    images.image = Image(id=IMAGE, status="queued")
    assert api.post("/v2.1/servers", body()).error == ("badRequest", 400, f"Image {IMAGE} is not active.")


def test_create_server_passes_local_disks_to_the_conductor(api, conductor, images):
    devices = [{"source_type": "image", "uuid": IMAGE, "boot_index": 0, "destination_type": "local"},
               {"source_type": "blank", "boot_index": -1, "volume_size": "2", "guest_format": "ext4"}]
    assert api.post("/v2.1/servers", body(block_device_mapping_v2=devices)).status == 202
    sent = conductor.last[1].block_devices
    assert [(disk.source, disk.boot_index, disk.size_gb, disk.guest_format) for disk in sent] == [
        ("image", 0, None, None), ("blank", None, 2, "ext4")]


@pytest.mark.parametrize(("changes", "rule"), [
    ({"availability_zone": "z:h"}, "os_compute_api:servers:create:forced_host"),
    ({"host": "h"}, "compute:servers:create:requested_destination")])
def test_create_server_on_a_host_requires_admin(api, conductor, images, changes, rule):
    answer = api.post("/v2.1/servers", body(networks="auto", **changes), version="2.74", roles="member")
    assert answer.error == ("forbidden", 403, f"Policy doesn't allow {rule} to be performed.")


def test_readers_cannot_create_servers(api, conductor, images):
    assert api.post("/v2.1/servers", body(), roles="reader").status == 403


def test_create_server_allows_a_zero_disk_flavor_for_admin_only(api, conductor, images):
    api.post("/v2.1/servers", body())
    assert conductor.last[1].zero_disk_allowed
    api.post("/v2.1/servers", body(), roles="member")
    assert not conductor.last[1].zero_disk_allowed


# -- lists ------------------------------------------------------------------------------------------
def query_of(api, conductor, path, **kwargs):
    answer = api.get(path, **kwargs)
    assert answer.status == 200, answer.text
    return conductor.last[1]


def test_list_servers_returns_the_callers_project_only(api, conductor):
    answer = api.get("/v2.1/servers")
    assert answer.json["servers"] == [{"id": "uuid", "name": "name", "links": [
        {"rel": "self", "href": "http://api:8774/v2.1/servers/uuid"},
        {"rel": "bookmark", "href": "http://api:8774/servers/uuid"}]}]
    query = conductor.last[1]
    assert (query.project_id, query.brief, query.deleted, query.sort, query.limit) == (MINE, True, False, [], 1000)


def test_full_page_of_servers_has_a_next_link(api, conductor):
    answer = api.get(f"/v2.1/{MINE}/servers/detail?limit=1&status=active&name=x")
    assert answer.json["servers_links"] == [{"rel": "next", "href":
        f"http://api:8774/v2.1/{MINE}/servers/detail?limit=1&marker=uuid&name=x&status=active"}]


def test_list_servers_limit_zero_is_empty_and_large_limits_are_capped(api, conductor):
    assert api.get("/v2.1/servers?limit=0").json == {"servers": []}
    assert conductor.calls == []
    assert query_of(api, conductor, "/v2.1/servers?limit=99999").limit == 1000
    assert query_of(api, conductor, "/v2.1/servers?limit=" + "9" * 5000).limit == 1000


@pytest.mark.parametrize(("value", "project"), [("", None), ("1", None), ("True", None), ("0", MINE), ("no", MINE)])
def test_list_servers_all_tenants_values(api, conductor, value, project):
    assert query_of(api, conductor, f"/v2.1/servers?all_tenants={value}").project_id == project


def test_list_servers_all_tenants_requires_admin_and_a_boolean(api, conductor):
    assert api.get("/v2.1/servers?all_tenants=1", roles="member").error == (
        "forbidden", 403, "Policy doesn't allow os_compute_api:servers:index:get_all_tenants to be performed.")
    assert api.get("/v2.1/servers?all_tenants=maybe").status == 400


def test_list_servers_project_filter_requires_all_tenants(api, conductor):
    assert query_of(api, conductor, "/v2.1/servers?project_id=other").project_id == MINE
    assert query_of(api, conductor, "/v2.1/servers?all_tenants=1&tenant_id=other").project_id == "other"


@pytest.mark.parametrize(("version", "name", "kept"), [
    ("2.4", "ip6", False), ("2.5", "ip6", True), ("2.25", "tags", False), ("2.26", "tags", True),
    ("2.72", "locked", False), ("2.73", "locked", True), ("2.82", "user_id", False), ("2.83", "user_id", True),
    ("2.89", "hostname", False), ("2.90", "hostname", True), ("2.104", "host", False), ("2.1", "name", True)])
def test_list_servers_filters_of_members_per_microversion(api, conductor, version, name, kept):
    query = query_of(api, conductor, f"/v2.1/servers?{name}=1", version=version, roles="member")
    assert (name in query.filters) == kept


def test_list_servers_accepts_all_filters_of_admin(api, conductor):
    query = query_of(api, conductor, "/v2.1/servers?host=h&deleted=1&not-tags=a,b&locked=false&soft_deleted=1",
                     version="2.73")
    assert query.filters == {"host": "h", "not-tags": ["a", "b"], "locked": False, "soft_deleted": True}
    assert query.deleted is True


@pytest.mark.parametrize("name", ["_secret", "system_metadata", "info_cache"])
def test_list_servers_refuses_filters_by_internal_fields(api, conductor, name):
    assert api.get(f"/v2.1/servers?{name}=1").error == ("badRequest", 400, f"Invalid filter field: {name}.")


def test_list_servers_status_filter_becomes_vm_and_task_states(api, conductor):
    assert query_of(api, conductor, "/v2.1/servers?status=reboot").filters == {
        "vm_state": ["active"], "task_state": ["rebooting", "reboot_pending", "reboot_started"]}
    several = query_of(api, conductor, "/v2.1/servers?status=ACTIVE&status=ERROR").filters
    assert several == {"vm_state": ["active", "error"]}


def test_list_servers_unknown_status_is_empty_and_refused_from_2_38(api, conductor):
    assert api.get("/v2.1/servers?status=odd", version="2.37").json == {"servers": []}
    assert api.get("/v2.1/servers?status=odd", version="2.38").error == ("badRequest", 400, "Invalid status value")


def test_list_servers_status_deleted_requires_admin(api, conductor):
    assert query_of(api, conductor, "/v2.1/servers?status=deleted").deleted is True
    assert api.get("/v2.1/servers?status=deleted", roles="member").error == (
        "forbidden", 403, "Only administrators may list deleted instances")


def test_list_servers_changes_since_includes_deleted_servers(api, conductor):
    query = query_of(api, conductor, "/v2.1/servers?changes-since=2026-01-01T00:00:00Z"
                                     "&changes-before=2026-01-02T00:00:00%2B01:00", version="2.66")
    assert query.changes_since == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert query.changes_before == datetime.datetime(2026, 1, 1, 23, tzinfo=datetime.UTC)
    assert query.deleted is None


def test_list_servers_refuses_invalid_or_reversed_times(api, conductor):
    assert api.get("/v2.1/servers?changes-since=yesterday").status == 400
    answer = api.get("/v2.1/servers?changes-since=2026-01-02T00:00:00&changes-before=2026-01-01T00:00:00",
                     version="2.66")
    assert answer.error[2] == "The value of changes-since must be less than or equal to changes-before."


@pytest.mark.parametrize(("query", "sort"), [
    ("sort_key=display_name&sort_dir=asc", [("display_name", "asc"), ("created_at", "asc")]),
    ("sort_key=display_name&sort_key=uuid&sort_dir=asc",
     [("display_name", "asc"), ("uuid", "asc"), ("created_at", "asc")]),
    ("sort_key=vcpus", [("created_at", "desc")]), ("sort_key=created_at&sort_dir=asc", [("created_at", "asc")]),
    ("sort_key=progress&sort_key=progress&sort_dir=asc&sort_dir=desc", [("progress", "asc"), ("created_at", "asc")]),
    ("&".join(["sort_key=created_at"] * 20), [("created_at", "desc")])])
def test_list_servers_sort_keys_and_directions(api, conductor, query, sort):
    assert query_of(api, conductor, f"/v2.1/servers?{query}").sort == sort


@pytest.mark.parametrize(("query", "version", "status"), [
    ("sort_key=display_name&sort_dir=up", "2.1", 400), ("sort_key=nonsense", "2.1", 400),
    ("sort_key=vcpus", "2.75", 400), ("sort_key=host", "2.1", 403), ("sort_key=node", "2.1", 403),
    ("sort_key=uuid&sort_dir=asc&sort_dir=asc", "2.1", 400),
    ("&".join(f"sort_key={key}" for key in (
        "hostname", "image_ref", "key_name", "launched_at", "progress", "user_id", "uuid", "vm_state", "display_name",
    )), "2.1", 400)])
def test_list_servers_refuses_invalid_sort_keys_and_directions(api, conductor, query, version, status):
    assert api.get(f"/v2.1/servers?{query}", version=version, roles="member").status == status


# -- by id -----------------------------------------------------------------------------------------
def test_show_server_makes_a_single_call(api, conductor):
    answer = api.get("/v2.1/servers/uuid", roles="reader")
    assert answer.json["server"]["id"] == "uuid"
    assert conductor.calls == [("get", {"uuid": "uuid", "project_id": MINE})]


def test_show_server_of_another_project_returns_404(api, conductor):
    conductor.server = server(project_id="other")
    assert api.get("/v2.1/servers/uuid", roles="member").error == (
        "itemNotFound", 404, "Instance uuid could not be found.")
    assert api.get("/v2.1/servers/uuid").status == 200


def test_update_server_passes_the_changes(api, conductor):
    wanted = {"name": "new", "accessIPv4": "1.2.3.4", "description": None, "hostname": "n",
              "pinned_availability_zone": None}
    answer = api("PUT", "/v2.1/servers/uuid", {"server": wanted}, version="2.104")
    assert set(answer.json["server"]) >= {"id", "name", "pinned_availability_zone"}
    assert conductor.last == ("update", {"display_name": "new", "access_ip_v4": "1.2.3.4", "display_description": None,
                                         "hostname": "n", "pinned_availability_zone": None})


def test_server_access_ipv6_is_stored_in_canonical_form(api, conductor, images):
    address = {"accessIPv6": "0000:0000:0000:0000:0000:BABE:220.12.22.2"}
    api.post("/v2.1/servers", body(**address))
    assert conductor.last[1].access_ip_v6 == "::babe:dc0c:1602"
    api("PUT", "/v2.1/servers/uuid", {"server": address})
    assert conductor.last == ("update", {"access_ip_v6": "::babe:dc0c:1602"})


def test_update_server_with_an_empty_body_makes_no_change(api, conductor):
    assert api("PUT", "/v2.1/servers/uuid", {"server": {}}).status == 200
    assert [name for name, _ in conductor.calls] == ["get"]


def test_delete_server_starts_an_operation(api, conductor):
    answer = api("DELETE", "/v2.1/servers/uuid", roles="member")
    assert (answer.status, answer.text) == (204, "")
    assert conductor.calls == [("operate", {"uuid": "uuid", "operation": "delete", "project_id": MINE})]


# -- actions ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("action", "operation"), [
    ({"os-start": None}, "start"), ({"os-stop": None}, "stop"), ({"pause": None}, "pause"),
    ({"unpause": None}, "unpause"), ({"suspend": None}, "suspend"), ({"resume": None}, "resume"),
    ({"reboot": {"type": "Soft"}}, "reboot_soft"), ({"reboot": {"type": "HARD"}}, "reboot_hard"),
    ({"forceDelete": None}, "delete")])
def test_server_action_starts_an_operation_with_a_single_call(api, conductor, action, operation):
    answer = api.post("/v2.1/servers/uuid/action", action, roles="member")
    assert (answer.status, answer.text) == (202, "")
    assert conductor.calls == [("operate", {"uuid": "uuid", "operation": operation, "project_id": MINE})]


@pytest.mark.parametrize(("action", "message"), [
    ({}, "Malformed request body"), ({"os-start": None, "os-stop": None}, "Malformed request body"),
    ([], "Malformed request body"), ({"dance": None}, "There is no such action: dance")])
def test_malformed_server_actions_are_refused(api, conductor, action, message):
    assert api.post("/v2.1/servers/uuid/action", action).error == ("badRequest", 400, message)


def test_readers_cannot_start_server_actions(api, conductor):
    assert api.post("/v2.1/servers/uuid/action", {"os-start": None}, roles="reader").error == (
        "forbidden", 403, "Policy doesn't allow os_compute_api:servers:start to be performed.")


def test_policy_rule_by_user_is_checked_against_the_server(api, conductor, policy_file):
    policy_file('"os_compute_api:servers:start": "user_id:%(user_id)s"\n')
    mine = api.post("/v2.1/servers/uuid/action", {"os-start": None}, headers={"X-User-Id": "user"}, roles="member")
    other = api.post("/v2.1/servers/uuid/action", {"os-start": None}, headers={"X-User-Id": "x"}, roles="member")
    assert (mine.status, other.status) == (202, 403)


def test_server_action_conflict_of_the_conductor_reaches_the_client(api, conductor):
    conductor.fail = exception.InstanceInvalidState(
        method="start", instance_uuid="uuid", attr="vm_state", state="active")
    assert api.post("/v2.1/servers/uuid/action", {"os-start": None}).error == (
        "conflictingRequest", 409, "Cannot 'start' instance uuid while it is in vm_state active")


def test_lock_server_accepts_a_reason_from_2_73(api, conductor):
    assert api.post("/v2.1/servers/uuid/action", {"lock": {"locked_reason": "x"}}, version="2.72").status == 202
    assert conductor.last[1]["reason"] is None
    assert api.post("/v2.1/servers/uuid/action", {"lock": {"locked_reason": "x"}}, version="2.73").status == 202
    assert conductor.last[1]["reason"] == "x"
    assert api.post("/v2.1/servers/uuid/action", {"lock": {"locked_reason": ""}}, version="2.73").status == 400


@pytest.mark.parametrize(("locked_by", "roles", "status"), [
    (None, "member", 202), ("owner", "member", 202), ("admin", "member", 403), ("admin", "admin", 202)])
def test_unlock_server_locked_by_admin_requires_admin(api, conductor, locked_by, roles, status):
    conductor.server = server(locked_by=locked_by)
    assert api.post("/v2.1/servers/uuid/action", {"unlock": None}, roles=roles).status == status
    assert (conductor.last[0] == "unlock" and conductor.last[1]["override"] == (locked_by == "admin")) == (
        status == 202)


def test_reset_state_of_a_server(api, conductor):
    assert api.post("/v2.1/servers/uuid/action", {"os-resetState": {"state": "active"}}).status == 202
    assert conductor.last == ("reset_state", "active")
    assert api.post("/v2.1/servers/uuid/action", {"os-resetState": {"state": "odd"}}).status == 400
    assert api.post("/v2.1/servers/uuid/action", {"os-resetState": {"state": "error"}}, roles="member").status == 403


@pytest.mark.parametrize(("action", "add"), [("addSecurityGroup", True), ("removeSecurityGroup", False)])
def test_add_and_remove_security_group_of_a_server(api, conductor, action, add):
    assert api.post("/v2.1/servers/uuid/action", {action: {"name": "web"}}).status == 202
    assert conductor.last == ("set_security_group", {"name": "web", "add": add})
    assert api.post("/v2.1/servers/uuid/action", {action: {"name": " "}}).status == 400


# -- console output ---------------------------------------------------------------------------------
class Console:
    def __init__(self):
        self.lines = "unset"

    def console_output(self, ctx, instance, lines=None):
        self.lines = lines
        return "one\r\n\x1b[1mtwo\t\x00\n"


@pytest.fixture
def console(api, conductor, monkeypatch):
    api.behind.compute = Console()
    conductor.server = server(host="host")
    monkeypatch.setattr("nova.api.compute.servers.servers.bus.at", lambda proxy, host: proxy)
    up = Service(uuid="s", host="host", binary="nova-compute", up=True)
    api.behind.services = type("Services", (), {"index": lambda self, ctx, host=None, binary=None: [up]})()
    return api.behind.compute


@pytest.mark.parametrize(("length", "lines"), [(None, None), (5, 5), ("7", 7), (-1, None), ("-1", None)])
def test_console_output_removes_control_characters(api, console, length, lines):
    answer = api.post("/v2.1/servers/uuid/action", {"os-getConsoleOutput": {"length": length}})
    assert answer.json == {"output": "one\n[1mtwo\t\n"}
    assert console.lines == lines


def test_console_output_with_length_zero_is_empty(api, console):
    assert api.post("/v2.1/servers/uuid/action", {"os-getConsoleOutput": {"length": 0}}).json == {"output": ""}


@pytest.mark.parametrize("length", [-2, "x", 1.5, True])
def test_console_output_with_an_invalid_length_is_refused(api, console, length):
    assert api.post("/v2.1/servers/uuid/action", {"os-getConsoleOutput": {"length": length}}).status == 400


def test_console_output_of_a_server_without_a_host_returns_409(api, console, conductor):
    conductor.server = server()
    assert api.post("/v2.1/servers/uuid/action", {"os-getConsoleOutput": {}}).error == (
        "conflictingRequest", 409, "Instance uuid is not ready")


# -- metadata, tags, addresses ----------------------------------------------------------------------
def test_server_metadata_is_listed_and_shown(api, conductor):
    assert api.get("/v2.1/servers/uuid/metadata").json == {"metadata": {"k": "v"}}
    assert api.get("/v2.1/servers/uuid/metadata/k").json == {"meta": {"k": "v"}}
    assert api.get("/v2.1/servers/uuid/metadata/x").error == ("itemNotFound", 404, "Metadata item was not found")


@pytest.mark.parametrize(("method", "replace"), [("POST", False), ("PUT", True)])
def test_server_metadata_is_merged_or_replaced(api, conductor, method, replace):
    answer = api(method, "/v2.1/servers/uuid/metadata", {"metadata": {"a": "b"}})
    assert answer.json == {"metadata": {"all": "of it"}}
    assert conductor.last[1] == {"metadata": {"a": "b"}, "replace": replace}


def test_server_metadata_item_is_set_and_deleted(api, conductor):
    assert api("PUT", "/v2.1/servers/uuid/metadata/a", {"meta": {"a": "b"}}).json == {"meta": {"a": "b"}}
    assert conductor.last[1] == {"metadata": {"a": "b"}, "replace": False}
    assert api("PUT", "/v2.1/servers/uuid/metadata/x", {"meta": {"a": "b"}}).error == (
        "badRequest", 400, "Request body and URI mismatch")
    assert api("DELETE", "/v2.1/servers/uuid/metadata/a").status == 204


@pytest.mark.parametrize("metadata", [
    {"a": 1}, {"a": True}, {"a": None}, {"": "x"}, {"a" * 256: "x"}, {"a": "x" * 256}, {"a/b": "x"}, {"a\n": "x"}, []])
def test_invalid_server_metadata_is_refused(api, conductor, metadata):
    assert api.post("/v2.1/servers/uuid/metadata", {"metadata": metadata}).status == 400


def test_server_tags_are_listed_added_replaced_and_deleted(api, conductor):
    call = lambda method, path="", body=None: api(method, "/v2.1/servers/uuid/tags" + path, body, version="2.26")  # noqa: E731
    assert call("GET").json == {"tags": ["a", "b"]}
    assert (call("GET", "/a").status, call("GET", "/x").status) == (204, 404)
    assert call("PUT", "/a").status == 204
    added = call("PUT", "/new")
    assert (added.status, added.headers["location"]) == (201, "http://api:8774/v2.1/servers/uuid/tags/new")
    assert conductor.last[1] == {"tags": ["new"], "mode": "add"}
    assert call("PUT", body={"tags": ["z", "y", "z"]}).json == {"tags": ["y", "z"]}
    assert (call("DELETE", "/a").status, call("DELETE", "/x").status, call("DELETE").status) == (204, 404, 204)
    assert call("PUT", "/a,b").status == 400
    assert call("PUT", "/" + "a" * 61).status == 400
    assert call("PUT", body={"tags": ["a"] * 51}).status == 400


def test_addresses_of_a_server_without_networks_are_empty(api, conductor):
    assert api.get("/v2.1/servers/uuid/ips").json == {"addresses": {}}
    assert api.get("/v2.1/servers/uuid/ips/private").status == 404


# -- extensions -------------------------------------------------------------------------------------
def test_extensions_are_a_fixed_list(api):
    assert len(api.get("/v2.1/extensions").json["extensions"]) == 99
    shown = api.get("/v2.1/extensions/os-keypairs").json["extension"]
    assert (shown["alias"], shown["name"]) == ("os-keypairs", "Keypairs")
    assert api.get("/v2.1/extensions/nothing").error[:2] == ("itemNotFound", 404)
