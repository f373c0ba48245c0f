"""os-aggregates and os-server-groups."""

import datetime

import pytest

from nova import exception
from nova.image import lookup
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.images.image import Image
from nova.objects.servers.server_group import ServerGroup
from nova.rpcapi.hosts import Aggregates
from nova.rpcapi.servers import ServerGroups
from tests.unit.api.canned import stub

UUID = "86a0da0e-9f0c-4f51-a1e0-3c25edab3783"
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
LONDON = Aggregate(id=1, uuid=UUID, name="n", hosts=["h"], metadata={"availability_zone": "london"}, created_at=WHEN)


# -- aggregates -------------------------------------------------------------------------------------
@pytest.fixture
def aggregates(api):
    return stub(api, "aggregates", Aggregates, index=[LONDON], **dict.fromkeys(
        ("get", "create", "update", "add_host", "remove_host", "set_metadata"), LONDON), cache_images=None)


def act(api, ident="1", **body):
    return api.post(f"/v2.1/os-aggregates/{ident}/action", body)


def test_aggregate_fields_per_microversion(api, aggregates):
    common = {"id": 1, "name": "n", "availability_zone": "london", "created_at": "2026-01-02T03:04:05.000006",
              "updated_at": None, "deleted": False, "deleted_at": None}
    full = {**common, "hosts": ["h"], "metadata": {"availability_zone": "london"}}
    create = {"aggregate": {"name": "n", "availability_zone": "london"}}
    for version, more in (("2.40", {}), ("2.41", {"uuid": UUID})):
        assert api.get("/v2.1/os-aggregates/1", version=version).json == {"aggregate": {**full, **more}}
        assert api.get("/v2.1/os-aggregates", version=version).json == {"aggregates": [{**full, **more}]}
        assert api.post("/v2.1/os-aggregates", create, version=version).json == {"aggregate": {**common, **more}}
    assert aggregates.last("create") == {"name": "n", "availability_zone": "london"}


@pytest.mark.parametrize(("body", "calls"), [
    ({"name": "m"}, [("update", {"aggregate_id": 1, "name": "m", "availability_zone": None})]),
    ({"availability_zone": "z"}, [("update", {"aggregate_id": 1, "name": None, "availability_zone": "z"})]),
    ({"name": " m ", "availability_zone": None}, [
        ("update", {"aggregate_id": 1, "name": "m", "availability_zone": None}),
        ("set_metadata", {"aggregate_id": 1, "metadata": {"availability_zone": None}})]),
])
def test_update_aggregate_passes_name_and_zone(api, aggregates, body, calls):
    assert api("PUT", "/v2.1/os-aggregates/1", {"aggregate": body}).status == 200
    assert aggregates.calls == calls


def test_aggregate_actions_change_hosts_and_metadata(api, aggregates):
    assert act(api, add_host={"host": "h"}).json["aggregate"]["hosts"] == ["h"]
    assert aggregates.last("add_host") == {"aggregate_id": 1, "host": "h"}
    assert act(api, remove_host={"host": "h"}).status == 200
    assert aggregates.last("remove_host") == {"aggregate_id": 1, "host": "h"}
    assert act(api, set_metadata={"metadata": {"a": "b", "c": None}}).status == 200
    assert aggregates.last("set_metadata") == {"aggregate_id": 1, "metadata": {"a": "b", "c": None}}


def test_delete_aggregate_returns_200_with_an_empty_body(api, aggregates):
    answer = api("DELETE", "/v2.1/os-aggregates/1")
    assert (answer.status, answer.text) == (200, "")


@pytest.mark.parametrize("body", [
    {"name": ""}, {"name": " n"}, {"name": "n", "availability_zone": "a:b"}, {"name": "n", "availability_zone": ""},
    {"availability_zone": "z"}, {"name": "n", "hosts": []}])
def test_create_aggregate_refuses_invalid_fields(api, aggregates, body):
    assert api.post("/v2.1/os-aggregates", {"aggregate": body}).error[1] == 400
    assert not aggregates.calls


@pytest.mark.parametrize("body", [
    {"add_host": {"host": "a b"}}, {"add_host": {}}, {"set_metadata": {"metadata": {"a": 1}}},
    {"set_metadata": {"metadata": {"availability_zone": "a:b"}}},
    {"set_metadata": {"metadata": {"availability_zone": " "}}}, {"set_metadata": {"metadata": {"": "x"}}},
    {"rename": None}])
def test_invalid_aggregate_actions_are_refused(api, aggregates, body):
    assert act(api, **body).error[1] == 400
    assert not aggregates.calls


@pytest.mark.parametrize(("ident", "status"), [("a", 400), ("1.5", 400), ("--1", 400), ("-1", 404), ("9" * 30, 404)])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_aggregate_id_must_be_an_integer(api, aggregates, method, ident, status):
    assert api(method, f"/v2.1/os-aggregates/{ident}").error[1] == status
    assert not aggregates.calls


@pytest.mark.parametrize(("error", "status"), [
    (exception.AggregateHostExists(aggregate_id=1, host="h"), 409), (exception.ComputeHostNotFound(host="h"), 404),
    (exception.AggregateHostConflict(action="a", aggregate_id=1, reason="r"), 409)])
def test_add_host_errors_of_the_conductor_reach_the_client(api, aggregates, error, status):
    aggregates.answers["add_host"] = error
    assert act(api, add_host={"host": "h"}).error[1:] == (status, error.message)


@pytest.mark.parametrize(("method", "path", "body"), [
    ("GET", "", None), ("POST", "", {"aggregate": {"name": "n"}}), ("GET", "/1", None), ("DELETE", "/1", None),
    ("PUT", "/1", {"aggregate": {"name": "n"}}), ("POST", "/1/action", {"add_host": {"host": "h"}})])
def test_aggregates_require_admin(api, aggregates, method, path, body):
    assert api(method, f"/v2.1/os-aggregates{path}", body, roles="manager").status == 403
    assert not aggregates.calls


# -- image cache -------------------------------------------------------------------------------------
IMAGE, OTHER = "11111111-2222-3333-4444-555555555555", "21111111-2222-3333-4444-555555555555"


@pytest.fixture
def images(monkeypatch):
    """Provide a single image."""
    def find(_ctx, ident, _trusted=()):
        if ident != IMAGE:
            raise exception.InvalidInput("Can not find requested image")
        return Image(id=ident, disk_format="raw")

    monkeypatch.setattr(lookup, "find", find)


def cache(api, *idents, version="2.81", **named):
    return api.post("/v2.1/os-aggregates/1/images", {"cache": [{"id": ident} for ident in idents]}, version=version,
                    **named)


def test_cache_images_passes_the_images_to_the_conductor(api, aggregates, images):
    answer = cache(api, IMAGE)
    assert (answer.status, answer.text) == (202, "")
    given = aggregates.last("cache_images")
    assert (given["aggregate_id"], [image.id for image in given["images"]]) == (1, [IMAGE])


@pytest.mark.parametrize(("idents", "version", "status", "told"), [
    ([IMAGE, IMAGE], "2.81", 400, "twice"), ([IMAGE, OTHER], "2.81", 400, OTHER), ([], "2.81", 400, "cache"),
    (["x"], "2.81", 400, "id"), ([IMAGE], "2.80", 404, "")])
def test_cache_images_refuses_invalid_image_lists(api, aggregates, images, idents, version, status, told):
    answer = cache(api, *idents, version=version)
    assert answer.status == status
    assert told in answer.text
    assert all(name != "cache_images" for name, _values in aggregates.calls)


def test_cache_images_of_an_unknown_aggregate_returns_404(api, aggregates, images):
    aggregates.answers["get"] = exception.AggregateNotFound(aggregate_id=1)
    assert cache(api, IMAGE).status == 404


def test_cache_images_requires_admin(api, aggregates, images):
    assert cache(api, IMAGE, roles="member").status == 403


# -- server groups ----------------------------------------------------------------------------------
GROUP = ServerGroup(uuid=UUID, name="g", project_id="p", user_id="u", policy="anti-affinity", members=["m"],
                    rules={"max_server_per_host": 3})
GROUPS = "/v2.1/os-server-groups"


@pytest.fixture
def groups(api):
    api.headers = {"X-Project-Id": "p", "X-User-Id": "u"}
    return stub(api, "server_groups", ServerGroups, index=[GROUP], get=GROUP, create=lambda group: group)


def create(api, version, **body):
    return api.post(GROUPS, {"server_group": {"name": "g", **body}}, version=version, roles="member")


def test_server_group_fields_per_microversion(api, groups):
    old = {"id": UUID, "name": "g", "members": ["m"], "policies": ["anti-affinity"], "metadata": {}}
    whose = {"project_id": "p", "user_id": "u"}
    new = {"id": UUID, "name": "g", "members": ["m"], "policy": "anti-affinity", "rules": {"max_server_per_host": 3}}
    for version, expected in (("2.12", old), ("2.13", {**old, **whose}), ("2.64", {**new, **whose})):
        assert api.get(f"{GROUPS}/{UUID}", version=version).json == {"server_group": expected}
        assert api.get(GROUPS, version=version).json == {"server_groups": [expected]}


@pytest.mark.parametrize(("version", "body", "policy", "rules"), [
    ("2.1", {"policies": ["affinity"]}, "affinity", {}),
    ("2.15", {"policies": ["soft-affinity"]}, "soft-affinity", {}),
    ("2.64", {"policy": "soft-anti-affinity"}, "soft-anti-affinity", {}),
    ("2.64", {"policy": "anti-affinity", "rules": {"max_server_per_host": "2"}}, "anti-affinity",
     {"max_server_per_host": 2})])
def test_create_server_group_per_microversion(api, groups, version, body, policy, rules):
    assert create(api, version, **body).status == 200
    made = groups.last("create")["group"]
    assert (made.name, made.policy, made.rules, made.project_id, made.user_id) == ("g", policy, rules, "p", "u")
    assert len(made.uuid) == 36


@pytest.mark.parametrize(("version", "body"), [
    ("2.1", {"policies": ["soft-affinity"]}), ("2.1", {"policies": []}), ("2.1", {}), ("2.1", {"policy": "affinity"}),
    ("2.15", {"policies": ["affinity", "anti-affinity"]}), ("2.64", {"policies": ["affinity"]}),
    ("2.64", {"policy": "affinity", "rules": {"max_server_per_host": 2}}),
    ("2.64", {"policy": "anti-affinity", "rules": {"max_server_per_host": 0}}),
    ("2.64", {"policy": "anti-affinity", "rules": {"other": 1}})])
def test_create_server_group_refuses_invalid_policies_and_rules(api, groups, version, body):
    assert create(api, version, **body).error[1] == 400
    assert not groups.calls


@pytest.mark.parametrize(("roles", "query", "project"), [
    ("reader", "", "p"), ("reader", "?all_projects", "p"), ("admin", "", "p"), ("admin", "?all_projects=1", None)])
def test_list_server_groups_all_projects_requires_admin(api, groups, roles, query, project):
    assert api.get(GROUPS + query, roles=roles).status == 200
    assert groups.last("index")["project_id"] == project


@pytest.mark.parametrize(("query", "limit", "offset"), [
    ("", 1000, 0), ("limit=0", 1000, 0), ("limit=2&offset=3", 2, 3), ("limit=99999", 1000, 0)])
def test_list_server_groups_limit_and_offset(api, groups, query, limit, offset):
    api.get(f"{GROUPS}?{query}")
    assert groups.last("index") == {"project_id": "p", "limit": limit, "offset": offset}


def test_server_group_lookup_is_limited_to_the_callers_project(api, groups):
    assert api("DELETE", f"{GROUPS}/{UUID}", roles="member").status == 204
    assert groups.last("delete") == {"uuid": UUID, "project_id": "p"}
    assert api.get(f"{GROUPS}/nonsense", roles="member").error == (
        "itemNotFound", 404, "Instance group nonsense could not be found.")


def test_create_server_group_above_the_quota_returns_403(api, groups):
    groups.answers["create"] = exception.QuotaLimit("Quota exceeded, too many server groups.")
    assert create(api, "2.1", policies=["affinity"]).error == (
        "forbidden", 403, "Quota exceeded, too many server groups.")
