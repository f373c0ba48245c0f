"""limits, os-quota-sets and os-quota-class-sets."""

import pytest

from nova import exception
from nova.objects.accounts.usage import Quotas as QuotaSet
from nova.rpcapi.accounts import Quotas
from tests.unit.api.canned import stub

LIMITS = {
    "instances": 10, "cores": 20, "ram": 51200, "metadata_items": 128, "injected_files": 5,
    "injected_file_content_bytes": 10240, "injected_file_path_bytes": 255, "key_pairs": 100, "server_groups": 11,
    "server_group_members": 12, "fixed_ips": -1, "floating_ips": -1, "security_groups": -1, "security_group_rules": -1}
OLD = {"fixed_ips", "floating_ips", "security_groups", "security_group_rules"}
FILES = {"injected_files", "injected_file_content_bytes", "injected_file_path_bytes"}
GROUPS = {"server_groups", "server_group_members"}
PROJECT = "/v2.1/os-quota-sets/p"
CLASS = "/v2.1/os-quota-class-sets/default"


@pytest.fixture
def quotas(api):
    api.headers = {"X-Project-Id": "p"}
    kept = QuotaSet(limits=LIMITS, in_use={"instances": 3, "cores": 4, "ram": 5, "server_groups": 1})
    return stub(api, "quotas", Quotas, **dict.fromkeys(("get", "defaults", "set", "get_class", "set_class"), kept))


# -- limits -----------------------------------------------------------------------------------------
def test_limits_show_quota_and_usage_of_the_callers_project(api, quotas):
    answer = api.get("/v2.1/limits", version="2.57", roles="reader").json["limits"]
    assert answer == {"rate": [], "absolute": {
        "maxTotalInstances": 10, "maxTotalCores": 20, "maxTotalRAMSize": 51200, "maxTotalKeypairs": 100,
        "maxServerMeta": 128, "maxServerGroups": 11, "maxServerGroupMembers": 12, "totalInstancesUsed": 3,
        "totalCoresUsed": 4, "totalRAMUsed": 5, "totalServerGroupsUsed": 1}}
    assert quotas.last("get") == {"project_id": "p", "user_id": None, "usage": True}


def test_limits_of_other_projects_require_admin(api, quotas):
    assert api.get("/v2.1/limits?tenant_id=q", roles="member").status == 403
    assert not quotas.calls
    assert api.get("/v2.1/limits?tenant_id=q").status == 200
    assert quotas.last("get")["project_id"] == "q"


def test_unknown_query_parameters_of_limits_are_refused_from_2_75(api, quotas):
    """Refuse `reserved` like the upstream API does, although stock clients send it."""
    assert api.get("/v2.1/limits?reserved=False", version="2.74").status == 200
    answer = api.get("/v2.1/limits?reserved=False", version="2.104")
    assert answer.error[1] == 400
    assert "'reserved' was unexpected" in answer.text


# -- quota sets -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("version", "gone"), [
    ("2.1", set()), ("2.35", set()), ("2.36", OLD), ("2.56", OLD), ("2.57", OLD | FILES), ("2.104", OLD | FILES)])
def test_quota_set_resources_per_microversion(api, quotas, version, gone):
    expected = {name: limit for name, limit in LIMITS.items() if name not in gone}
    for path in ("", "/defaults"):
        assert api.get(PROJECT + path, version=version).json["quota_set"] == {"id": "p", **expected}
    detail = api.get(f"{PROJECT}/detail", version=version).json["quota_set"]
    assert detail.pop("id") == "p"
    assert {name: value["limit"] for name, value in detail.items()} == expected
    assert detail["instances"] == {"limit": 10, "in_use": 3, "reserved": 0}
    assert api("PUT", PROJECT, {"quota_set": {}}, version=version).json["quota_set"] == expected
    for name in gone:
        assert api("PUT", PROJECT, {"quota_set": {name: 1}}, version=version).status == 400


def test_quota_set_is_updated_and_reset_for_a_project_or_a_user(api, quotas):
    api("PUT", f"{PROJECT}?user_id=u", {"quota_set": {"cores": "30", "ram": -1, "instances": "-1", "force": "True"}})
    assert quotas.last("set") == {
        "project_id": "p", "limits": {"cores": 30, "ram": -1, "instances": -1}, "user_id": "u", "force": True}
    api("PUT", PROJECT, {"quota_set": {"cores": 30}})
    assert quotas.last("set") == {"project_id": "p", "limits": {"cores": 30}, "user_id": None, "force": False}
    assert api("DELETE", f"{PROJECT}?user_id=u").status == 202
    assert quotas.last("reset") == {"project_id": "p", "user_id": "u"}


@pytest.mark.parametrize("body", [{"cores": -2}, {"cores": "x"}, {"cores": None}, {"cores": 2**31}, {"volumes": 1},
                                  {"force": 1}])
def test_invalid_quota_set_limits_are_refused(api, quotas, body):
    answer = api("PUT", PROJECT, {"quota_set": body})
    assert answer.error[:2] == ("badRequest", 400)
    assert next(iter(body)) in answer.text
    assert not quotas.calls


@pytest.mark.parametrize("path", [
    "/os-quota-sets/" + "p" * 256, "/os-quota-sets/p?user_id=" + "u" * 256, "/os-quota-class-sets/" + "c" * 256])
def test_quota_ids_above_255_characters_are_refused(api, quotas, path):
    key = "quota_class_set" if "class" in path else "quota_set"
    assert api("PUT", f"/v2.1{path}", {key: {"cores": 1}}).error[1] == 400
    assert not quotas.calls


def test_quota_limits_accept_leading_zeros(api, quotas):
    api("PUT", PROJECT, {"quota_set": {"cores": "0" * 30 + "7", "ram": "-" + "0" * 30 + "1"}})
    assert quotas.last("set")["limits"] == {"cores": 7, "ram": -1}


def test_quota_limit_below_the_usage_is_refused(api, quotas):
    quotas.answers["set"] = exception.QuotaBelowUsage(limit=1, key="cores", minimum=4)
    assert api("PUT", PROJECT, {"quota_set": {"cores": 1}}).error == ("badRequest", 400, (
        "Quota limit 1 for cores must be greater than or equal to already used and reserved 4."))


@pytest.mark.parametrize(("method", "path", "own", "other"), [
    ("GET", "", 200, 403), ("GET", "/detail", 200, 403), ("GET", "/defaults", 200, 200), ("PUT", "", 403, 403),
    ("DELETE", "", 403, 403)])
def test_quota_sets_of_other_projects_require_admin(api, quotas, method, path, own, other):
    body = {"quota_set": {"cores": 1}} if method == "PUT" else None
    assert api(method, PROJECT + path, body, roles="reader").status == own
    assert api(method, f"/v2.1/os-quota-sets/q{path}", body, roles="reader").status == other
    assert api(method, f"/v2.1/os-quota-sets/q{path}", body).status in (200, 202)


# -- classes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("version", "gone"), [
    ("2.1", GROUPS), ("2.49", GROUPS), ("2.50", OLD), ("2.56", OLD), ("2.57", OLD | FILES)])
def test_quota_class_resources_per_microversion(api, quotas, version, gone):
    expected = {name: limit for name, limit in LIMITS.items() if name not in gone}
    assert api.get(CLASS, version=version).json["quota_class_set"] == {"id": "default", **expected}
    answer = api("PUT", CLASS, {"quota_class_set": {"cores": "7"}}, version=version)
    assert answer.json["quota_class_set"] == expected
    assert quotas.last("set_class") == {"name": "default", "limits": {"cores": 7}}


def test_quota_classes_require_admin(api, quotas):
    assert api.get(CLASS, roles="member").status == 403
    assert api("PUT", CLASS, {"quota_class_set": {}}, roles="member").status == 403
    assert not quotas.calls
