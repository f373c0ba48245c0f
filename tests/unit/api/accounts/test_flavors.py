"""Flavors, their access lists and their extra specs."""

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.rpcapi.accounts import Flavors
from tests.unit.api.canned import stub

TINY = Flavor(flavorid="1", name="m1.tiny", memory_mb=512, vcpus=1, root_gb=1)
PRIVATE = Flavor(flavorid="2", name="secret", memory_mb=512, vcpus=1, is_public=False)
SMALLEST = {"name": "f", "ram": 64, "vcpus": 1, "disk": 0}


@pytest.fixture
def flavors(api):
    return stub(api, "flavors", Flavors, index=[TINY], create=lambda flavor: flavor, access=["p"],
                get=lambda flavorid, **_: PRIVATE if flavorid == "2" else TINY,
                add_access=["p"], remove_access=[], set_extra_specs=lambda specs, **_: specs)


# -- lists ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("query", "expected"), [
    ("", True), ("is_public=None", None), ("is_public=none", None), ("is_public=false", False), ("is_public=1", True)])
def test_list_flavors_is_public_filter_of_admin(api, flavors, query, expected):
    assert api.get(f"/v2.1/flavors?{query}").status == 200
    assert flavors.last("index")["query"].is_public is expected


def test_list_flavors_of_members_is_limited_to_accessible_flavors(api, flavors):
    assert api.get("/v2.1/flavors?is_public=None", roles="member", headers={"X-Project-Id": "p"}).status == 200
    query = flavors.last("index")["query"]
    assert (query.is_public, query.project_id) == (True, "p")


@pytest.mark.parametrize("query", ["is_public=maybe", "minRam=much", "minDisk=1.5", "limit=-1", "limit=a",
                                   "sort_key=price", "sort_dir=up"])
def test_list_flavors_refuses_invalid_filters(api, flavors, query):
    answer = api.get(f"/v2.1/flavors?{query}")
    assert answer.error[:2] == ("badRequest", 400)
    assert query.partition("=")[0] in answer.text


def test_list_flavors_passes_filters_sorting_and_paging(api, flavors):
    path = "/v2.1/flavors?minRam=1&minDisk=2&sort_key=name&sort_dir=desc&limit=1&marker=0&name=m1"
    assert api.get(path, version="2.102").status == 200
    query = flavors.last("index")["query"]
    assert (query.min_ram, query.min_disk, query.sort_key, query.sort_dir, query.limit, query.marker, query.name) == (
        1, 2, "name", "desc", 1, "0", "m1")


def test_list_flavors_name_filter_requires_2_102(api, flavors):
    assert api.get("/v2.1/flavors?name=m1", version="2.74").status == 200
    assert flavors.last("index")["query"].name is None
    assert api.get("/v2.1/flavors?name=m1", version="2.101").status == 400


def test_full_page_of_flavors_has_a_next_link(api, flavors):
    links = api.get("/v2.1/flavors/detail?limit=1&minRam=1").json["flavors_links"]
    assert links == [{"rel": "next", "href": "http://api:8774/v2.1/flavors/detail?limit=1&marker=1&minRam=1"}]
    assert "flavors_links" not in api.get("/v2.1/flavors/detail?limit=2").json


# -- by id ----------------------------------------------------------------------------------------
def test_show_flavor_of_members_is_limited_to_their_project(api, flavors):
    api.get("/v2.1/flavors/1", roles="reader", headers={"X-Project-Id": "p"})
    assert flavors.last("get") == {"flavorid": "1", "project_id": "p"}
    api.get("/v2.1/flavors/1")
    assert flavors.last("get") == {"flavorid": "1", "project_id": None}


def test_flavor_shows_extra_specs_from_2_61_if_policy_allows(api, flavors):
    assert "extra_specs" in api.get("/v2.1/flavors/1", version="2.61", roles="reader").json["flavor"]
    assert "extra_specs" not in api.get("/v2.1/flavors/1", version="2.61", roles="nobody").json["flavor"]
    assert "extra_specs" not in api.get("/v2.1/flavors/1", version="2.60").json["flavor"]


def test_create_flavor_accepts_numbers_as_strings(api, flavors):
    body = {"flavor": {"name": "f", "id": 10, "ram": "1024", "vcpus": "2", "disk": 10, "swap": "7",
                       "OS-FLV-EXT-DATA:ephemeral": 3, "rxtx_factor": "2.5", "os-flavor-access:is_public": "no"}}
    shown = api.post("/v2.1/flavors", body).json["flavor"]
    assert shown == {
        "id": "10", "name": "f", "ram": 1024, "vcpus": 2, "disk": 10, "swap": 7, "OS-FLV-EXT-DATA:ephemeral": 3,
        "rxtx_factor": 2.5, "os-flavor-access:is_public": False, "OS-FLV-DISABLED:disabled": False,
        "links": shown["links"]}


@pytest.mark.parametrize("ident", [{}, {"id": None}])
def test_create_flavor_without_an_id_generates_a_uuid(api, flavors, ident):
    made = [api.post("/v2.1/flavors", {"flavor": {**SMALLEST, **ident}}).json["flavor"]["id"] for _ in range(2)]
    assert len(set(made)) == 2
    assert len(made[0]) == 36


@pytest.mark.parametrize("change", [
    {"ram": 0}, {"ram": "a"}, {"vcpus": 0}, {"vcpus": 2**31}, {"disk": -1}, {"name": ""}, {"name": " f"},
    {"id": " a"}, {"id": "a/b"}, {"id": ""}, {"rxtx_factor": 0}, {"rxtx_factor": "1e400"}, {"swap": 1.5},
    {"os-flavor-access:is_public": 1}, {"color": "red"}])
def test_create_flavor_refuses_invalid_fields(api, flavors, change):
    answer = api.post("/v2.1/flavors", {"flavor": {**SMALLEST, **change}})
    assert answer.error[:2] == ("badRequest", 400)
    assert next(iter(change)) in answer.text
    assert not flavors.calls


@pytest.mark.parametrize("error", [exception.FlavorExists(name="f"), exception.FlavorIdExists(flavor_id="1")])
def test_create_flavor_with_an_existing_name_or_id_returns_409(api, flavors, error):
    flavors.answers["create"] = error
    assert api.post("/v2.1/flavors", {"flavor": SMALLEST}).error == ("conflictingRequest", 409, error.message)


@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", "/flavors", {"flavor": SMALLEST}), ("PUT", "/flavors/1", {"flavor": {"description": "d"}}),
    ("DELETE", "/flavors/1", None), ("POST", "/flavors/2/action", {"addTenantAccess": {"tenant": "t"}}),
    ("POST", "/flavors/1/os-extra_specs", {"extra_specs": {"a": "b"}}), ("DELETE", "/flavors/1/os-extra_specs/a", None),
    ("GET", "/flavors/2/os-flavor-access", None)])
def test_flavor_changes_require_admin(api, flavors, method, path, body):
    assert api(method, f"/v2.1{path}", body, version="2.55", roles="member").status == 403
    assert not flavors.calls


def test_flavor_description_requires_2_55(api, flavors):
    flavors.answers["update"] = Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1, description=None)
    body = {"flavor": {"description": None}}
    assert api("PUT", "/v2.1/flavors/1", body, version="2.54").error[1] == 404
    assert api("PUT", "/v2.1/flavors/1", body, version="2.55").json["flavor"]["description"] is None
    assert api.post("/v2.1/flavors", {"flavor": {**SMALLEST, "description": "d"}}, version="2.54").status == 400


def test_delete_flavor_returns_202_with_an_empty_body(api, flavors):
    answer = api("DELETE", "/v2.1/flavors/1")
    assert (answer.status, answer.text) == (202, "")


# -- access -----------------------------------------------------------------------------------------
def test_access_list_of_a_public_flavor_returns_404(api, flavors):
    assert api.get("/v2.1/flavors/1/os-flavor-access").error[1] == 404
    assert api.get("/v2.1/flavors/2/os-flavor-access").json == {
        "flavor_access": [{"flavor_id": "2", "tenant_id": "p"}]}


def test_add_access_to_a_public_flavor_returns_409_from_2_7(api, flavors):
    body = {"addTenantAccess": {"tenant": "p"}}
    assert api.post("/v2.1/flavors/1/action", body, version="2.6").status == 200
    assert api.post("/v2.1/flavors/1/action", body, version="2.7").error[1] == 409
    assert api.post("/v2.1/flavors/2/action", body, version="2.7").status == 200


def test_remove_tenant_access_of_a_flavor(api, flavors):
    answer = api.post("/v2.1/flavors/2/action", {"removeTenantAccess": {"tenant": "p"}})
    assert answer.json == {"flavor_access": []}
    assert flavors.last("remove_access") == {"flavorid": "2", "project_id": "p"}


# -- extra specs ------------------------------------------------------------------------------------
def test_flavor_extra_specs_convert_numbers_to_strings(api, flavors):
    answer = api.post("/v2.1/flavors/1/os-extra_specs", {"extra_specs": {"hw:numa_nodes": 2, "free": "x"}})
    assert answer.json == {"extra_specs": {"hw:numa_nodes": "2", "free": "x"}}


def test_update_extra_spec_requires_the_key_of_the_url(api, flavors):
    path = "/v2.1/flavors/1/os-extra_specs/a"
    assert api("PUT", path, {"b": "1"}).error == ("badRequest", 400, "Request body and URI mismatch")
    assert api("PUT", path, {"a": "1", "b": "1"}).status == 400
    assert api("PUT", path, {"a": "1"}).json == {"a": "1"}


def test_unknown_extra_spec_of_a_flavor_returns_404(api, flavors):
    assert api.get("/v2.1/flavors/1/os-extra_specs/a").error == (
        "itemNotFound", 404, "Flavor 1 has no extra specs with key a.")


@pytest.mark.parametrize(("name", "value"), [
    ("hw:cpu_policy", "none"), ("hw:nothing", "1"), ("trait:WINGS", "required")])
def test_flavor_extra_specs_are_validated_from_2_86(api, flavors, name, value):
    path, body = "/v2.1/flavors/1/os-extra_specs", {"extra_specs": {name: value}}
    assert api.post(path, body, version="2.85").status == 200
    answer = api.post(path, body, version="2.86")
    assert answer.error[:2] == ("badRequest", 400)
    assert name in answer.text
    assert api("PUT", f"{path}/{name}", {name: value}, version="2.86").status == 400


@pytest.mark.parametrize("body", [{"extra_specs": {"a/b": "c"}}, {"extra_specs": {"a": True}},
                                  {"extra_specs": {"a": "x" * 256}}, {"extra_specs": None}, {}])
def test_malformed_flavor_extra_specs_are_refused(api, flavors, body):
    assert api.post("/v2.1/flavors/1/os-extra_specs", body).status == 400
