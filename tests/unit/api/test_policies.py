"""Policy rules: defaults, roles, targets and scopes.

``tests/data/policy_defaults.json``: [name, check, operation, ...] of every rule.
"""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova import exception, policies
from nova.api.legacy import routes as legacy_routes
from nova.context import RequestContext
from tests.paths import DATA

DEFAULTS = json.loads((DATA / "policy_defaults.json").read_text())


def ctx(*roles, user="me", project="mine", **kwargs):
    made = RequestContext(user_id=user, project_id=project, roles=list(roles), overwrite=False, **kwargs)
    made.is_admin = policies.is_admin(made)
    return made


def test_policy_defaults_equal_upstream():
    found = [[rule.name, rule.check_str, *(f"{one['method']} {one['path']}" for one in getattr(rule, "operations", []))]
             for rule in policies.list_rules()]
    legacy = {route.policy for route in legacy_routes.SERVED} | {"os_compute_api:os-virtual-interfaces"}
    ours = [["nova:status", "rule:context_is_admin", "GET /status.json"]]
    placement = [rule for rule in found if rule[0].startswith("placement:")]
    assert {rule[1] for rule in placement if rule[0] != "placement:usages"} == {"rule:service_or_admin"}
    assert sorted(rule for rule in found if rule[0] not in legacy and rule not in placement) == sorted(
        [*DEFAULTS, *ours])
    assert legacy < {rule[0] for rule in found} | {None}


def test_policy_rules_of_operations_have_project_scope():
    for rule in policies.list_rules():
        if getattr(rule, "operations", None):
            assert rule.scope_types == ["project"]
            assert rule.description.endswith(".")


@pytest.mark.parametrize(("roles", "rule", "answer"), [
    (("reader",), "os_compute_api:servers:show", True), (("reader",), "os_compute_api:servers:create", False),
    (("member",), "os_compute_api:servers:create", True), (("member",), "os_compute_api:os-services:list", False),
    (("manager",), "os_compute_api:os-migrate-server:migrate", True),
    (("admin",), "os_compute_api:os-services:list", True),
    (("service",), "os_compute_api:os-server-external-events:create", True),
    (("admin",), "compute:servers:resize:cross_cell", False), ((), "os_compute_api:limits", True),
    (("admin",), "no:such:rule", False)])
def test_policy_rules_per_role(roles, rule, answer):
    assert policies.allowed(ctx(*roles), rule) == answer


def test_policy_target_defaults_to_the_callers_project_and_user():
    member = ctx("member")
    assert policies.allowed(member, "os_compute_api:servers:delete", {"project_id": "mine"})
    assert not policies.allowed(member, "os_compute_api:servers:delete", {"project_id": "other"})
    assert not policies.allowed(member, "os_compute_api:os-keypairs:show", {"user_id": "other"})


def test_system_scoped_token_is_refused():
    with pytest.raises(exception.PolicyNotAuthorized, match="Policy doesn't allow os_compute_api:servers:show"):
        policies.authorize(ctx("admin", system_scope="all"), "os_compute_api:servers:show")


_CHECKS = st.recursive(
    st.sampled_from(["role:admin", "role:member", "project_id:%(project_id)s", "user_id:%(user_id)s", "@", "!",
                     "rule:admin_api", "rule:nothing", "is_admin:True", "'mine':%(project_id)s"]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: f"({a} and {b})", inner, inner), st.builds(lambda a, b: f"({a} or {b})", inner, inner),
        st.builds(lambda a: f"(not {a})", inner)), max_leaves=6)


@pytest.fixture
def changing_policy_file(tmp_path, policy_file):
    """Return the policy file in use."""
    policy_file("{}")
    return tmp_path / "policy.yaml"


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[
    HealthCheck.function_scoped_fixture])
@given(check=_CHECKS, roles=st.sets(st.sampled_from(["admin", "member"])),
       target=st.sampled_from([{}, {"project_id": "mine"}, {"project_id": "other", "user_id": "me"}]))
def test_policy_checks_agree_with_oslo_policy(changing_policy_file, check, roles, target):
    changing_policy_file.write_text(json.dumps({"os_compute_api:limits": check}))
    enforcer = policies.get_enforcer()
    enforcer.load_rules(force_reload=True)
    caller = ctx(*roles)
    expected = enforcer.enforce("os_compute_api:limits", target, policies.credentials(caller))
    assert policies.allowed(caller, "os_compute_api:limits", target) == expected
    if policies.plain("os_compute_api:limits") and policies.allowed(caller, "os_compute_api:limits", {}):
        assert expected
