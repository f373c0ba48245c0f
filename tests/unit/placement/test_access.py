"""Access to the Placement API: every URL but the version document needs a token and a policy."""

import pytest

from nova import policies
from nova.api import auth
from nova.placement.app import ROUTES


@pytest.mark.parametrize(("path", "public"), [
    ("/placement", True), ("/placement/", True), ("/placement/traits", False), ("/placement/allocations/x", False),
    ("/placement//", False), ("/placement/\n", False)])
def test_only_the_version_document_is_public(path, public):
    assert auth.is_public(path) == public


def test_every_route_has_a_registered_policy():
    registered = {rule.name for rule in policies.list_rules() if rule.name.startswith("placement:")}
    assert {route.policy or "placement:usages" for route in ROUTES} == registered
