"""Resize, migrate, live migrate and evacuate over the API: the request to the conductor per microversion."""

import datetime

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.action import Accepted, Action
from nova.objects.servers.instance import Instance
from nova.operations import REGISTRY
from nova.rpcapi.servers import Servers
from tests.unit.api.canned import stub

SERVER = "66666666-0000-4000-8000-000000000000"
WHEN = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
ACCEPTED = Accepted(action=Action(uuid="a", instance_uuid=SERVER, action="x", request_id="r", start_time=WHEN))


@pytest.fixture
def servers(api):
    api.headers = {"X-Project-Id": "p"}
    return stub(api, "servers", Servers, operate=ACCEPTED, get=Instance(
        uuid=SERVER, project_id="p", user_id="u", display_name="s", hostname="s", created_at=WHEN,
        flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1)))


def act(api, name, value=None, version="2.96", roles="admin"):
    return api.post(f"/v2.1/servers/{SERVER}/action", {name: value}, version=version, roles=roles)


def asked(servers):
    """Return operation and payload of the last call. Fails if the operation does not have all of its fields."""
    *looks, (name, given) = servers.calls
    assert (name, given["uuid"]) == ("operate", SERVER)
    assert {look for look, _given in looks} <= {"get"}
    if given["payload"] is not None:
        assert set(given["payload"]) <= set(REGISTRY[given["operation"]].request_type.__struct_fields__)
    return given["operation"], given["payload"]


def project_of(servers):
    return servers.last("operate")["project_id"]


# -- resize -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("flavor", "flavor_id"), [
    ("7", "7"), (7, "7"), ("http://nova/v2.1/flavors/7", "7"), ("http://nova/flavors/m1.small/", "m1.small")])
def test_resize_accepts_a_flavor_id_or_link(api, servers, flavor, flavor_id):
    assert act(api, "resize", {"flavorRef": flavor}, roles="member").status == 202
    assert asked(servers) == ("resize", {"flavor_id": flavor_id, "disk_config": None})
    assert project_of(servers) == "p"


def test_resize_passes_the_disk_config(api, servers):
    assert act(api, "resize", {"flavorRef": "7", "OS-DCF:diskConfig": "MANUAL"}).status == 202
    assert asked(servers) == ("resize", {"flavor_id": "7", "disk_config": "MANUAL"})
    assert project_of(servers) is None


@pytest.mark.parametrize("wanted", [None, {}, {"flavorRef": ""}, {"flavorRef": None}, {"flavorRef": "7", "host": "h"},
                                    {"flavorRef": "7", "OS-DCF:diskConfig": "auto"}])
def test_invalid_resize_requests_are_refused(api, servers, wanted):
    assert act(api, "resize", wanted).error[1] == 400
    assert not servers.calls


def test_resize_to_an_unknown_flavor_returns_400(api, servers):
    servers.answers["operate"] = exception.FlavorNotFound(flavor_id="7")
    assert act(api, "resize", {"flavorRef": "7"}).error == ("badRequest", 400, "Flavor 7 could not be found.")


@pytest.mark.parametrize(("name", "operation", "status"), [
    ("confirmResize", "confirm_resize", 204), ("revertResize", "revert_resize", 202)])
def test_resize_is_confirmed_or_reverted(api, servers, name, operation, status):
    answer = act(api, name, roles="member")
    assert (answer.status, answer.text) == (status, "")
    assert asked(servers) == (operation, None)
    servers.answers["operate"] = exception.MigrationNotFoundByStatus(instance_id=SERVER, status="finished")
    assert act(api, name).error == (
        "badRequest", 400, f"Migration not found for instance {SERVER} with status finished.")


# -- migrate ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "version", "host"), [
    (None, "2.1", None), ({"host": "other"}, "2.55", None), ("anything", "2.55", None), (None, "2.56", None),
    ({}, "2.56", None), ({"host": None}, "2.56", None), ({"host": "other"}, "2.56", "other")])
def test_migrate_passes_the_host_from_2_56(api, servers, value, version, host):
    assert act(api, "migrate", value, version).status == 202
    assert asked(servers) == ("migrate", {"host": host})


@pytest.mark.parametrize("value", ["host", {"host": ""}, {"host": "a b"}, {"host": "x" * 256}, {"node": "n"}])
def test_migrate_with_an_invalid_host_is_refused(api, servers, value):
    assert act(api, "migrate", value, "2.56").error[1] == 400
    assert not servers.calls


# -- live migrate -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("version", "value", "payload"), [
    ("2.1", {"host": "h", "block_migration": "yes", "disk_over_commit": False},
     {"host": "h", "block_migration": True, "force": True}),
    ("2.24", {"host": None, "block_migration": False, "disk_over_commit": False},
     {"host": None, "block_migration": False, "force": False}),
    ("2.25", {"host": None, "block_migration": "auto"}, {"host": None, "block_migration": None, "force": False}),
    ("2.29", {"host": "h", "block_migration": "auto"}, {"host": "h", "block_migration": None, "force": True}),
    ("2.30", {"host": "h", "block_migration": "auto"}, {"host": "h", "block_migration": None, "force": False}),
    ("2.30", {"host": "h", "block_migration": "auto", "force": "True"},
     {"host": "h", "block_migration": None, "force": True}),
    ("2.68", {"host": "h", "block_migration": True}, {"host": "h", "block_migration": True, "force": False})])
def test_live_migration_request_per_microversion(api, servers, version, value, payload):
    servers.answers["live_migration_checked"] = True
    assert act(api, "os-migrateLive", value, version).status == 202
    if version in ("2.1", "2.24", "2.25", "2.29", "2.30"):
        assert servers.calls.pop()[0] == "live_migration_checked", "the response did not wait for host checks"
    assert asked(servers) == ("live_migrate", payload)


def test_accepted_live_migration_returns_202_if_its_checks_are_unavailable(api, servers):
    """The conductor may be of the previous release, or the database or the broker may be unavailable."""
    servers.answers["live_migration_checked"] = exception.ServiceUnavailable("It is of a release without them.")
    wanted = {"host": None, "block_migration": "auto"}
    assert act(api, "os-migrateLive", wanted, "2.25").status == 202
    assert {name for name, _given in servers.calls} == {"operate", "live_migration_checked"}
    failures = iter([exception.ServiceUnavailable("restarts"), None, exception.Invalid("No host can take it.")])

    def checked(**_given):
        failure = next(failures)
        if failure is not None:
            raise failure
        return False

    servers.answers["live_migration_checked"] = checked
    assert act(api, "os-migrateLive", wanted, "2.25").error == ("badRequest", 400, "No host can take it.")


@pytest.mark.parametrize(("version", "value"), [
    ("2.1", {"host": None, "block_migration": False}),
    ("2.24", {"host": None, "block_migration": "auto", "disk_over_commit": False}),
    ("2.25", {"host": None, "block_migration": "auto", "disk_over_commit": False}),
    ("2.25", {"block_migration": "auto"}), ("2.25", {"host": None}),
    ("2.29", {"host": "h", "block_migration": "auto", "force": True}),
    ("2.30", {"host": None, "block_migration": "auto", "force": True}),
    ("2.68", {"host": "h", "block_migration": "auto", "force": True})])
def test_invalid_live_migration_requests_are_refused(api, servers, version, value):
    assert act(api, "os-migrateLive", value, version).error[1] == 400
    assert not servers.calls


@pytest.mark.parametrize(("name", "value"), [
    ("migrate", {"host": "h"}), ("os-migrateLive", {"host": "h", "block_migration": "auto"})])
def test_migration_to_an_unknown_host_returns_400(api, servers, name, value):
    servers.answers["operate"] = exception.ComputeHostNotFound(host="h")
    assert act(api, name, value).error == ("badRequest", 400, "Compute host h could not be found.")


# -- evacuate ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("version", "value", "payload"), [
    ("2.1", {"onSharedStorage": False, "adminPass": "x"},
     {"host": None, "admin_pass": "x", "force": False, "stay_off": False}),
    ("2.13", {"onSharedStorage": "True", "host": "h"},
     {"host": "h", "admin_pass": None, "force": True, "stay_off": False}),
    ("2.28", {"host": "h", "adminPass": "x"}, {"host": "h", "admin_pass": "x", "force": True, "stay_off": False}),
    ("2.29", {"host": "h", "adminPass": "x"}, {"host": "h", "admin_pass": "x", "force": False, "stay_off": False}),
    ("2.67", {"host": "h", "adminPass": "x", "force": True},
     {"host": "h", "admin_pass": "x", "force": True, "stay_off": False}),
    ("2.94", {"adminPass": "x"}, {"host": None, "admin_pass": "x", "force": False, "stay_off": False}),
    ("2.95", {"adminPass": "x"}, {"host": None, "admin_pass": "x", "force": False, "stay_off": True})])
def test_evacuate_request_per_microversion(api, servers, version, value, payload):
    assert act(api, "evacuate", value, version).status == 200
    assert asked(servers) == ("evacuate", payload)


@pytest.mark.parametrize(("version", "value"), [
    ("2.13", {}), ("2.14", {"onSharedStorage": False}), ("2.28", {"host": "h", "force": True}),
    ("2.29", {"force": True}), ("2.68", {"host": "h", "force": True}), ("2.96", {"host": None}),
    ("2.13", {"onSharedStorage": True, "adminPass": "x"})])
def test_invalid_evacuate_requests_are_refused(api, servers, version, value):
    assert act(api, "evacuate", value, version).error[1] == 400
    assert not servers.calls


def test_evacuate_returns_the_admin_password_before_2_14(api, servers):
    given = act(api, "evacuate", {"onSharedStorage": False}, "2.13").json["adminPass"]
    assert len(given) == CONF.api.password_length
    assert servers.last("operate")["payload"]["admin_pass"] == given
    assert act(api, "evacuate", {"onSharedStorage": True}, "2.13").json == {}
    assert act(api, "evacuate", {"adminPass": "x"}, "2.14").text == ""


def test_evacuate_returns_no_password_if_instance_passwords_are_disabled(api, servers):
    CONF.set_override("enable_instance_password", False, group="api")
    try:
        assert act(api, "evacuate", {"onSharedStorage": False}, "2.13").json == {}
    finally:
        CONF.clear_override("enable_instance_password", group="api")


def test_evacuate_to_an_unknown_host_returns_404(api, servers):
    servers.answers["operate"] = exception.ComputeHostNotFound(host="h")
    assert act(api, "evacuate", {"host": "h"}).error == ("itemNotFound", 404, "Compute host h could not be found.")


# -- roles ------------------------------------------------------------------------------------------
_LIVE = {"host": None, "block_migration": "auto"}


@pytest.mark.parametrize(("name", "value", "roles", "allowed"), [
    ("resize", {"flavorRef": "7"}, "reader", False), ("confirmResize", None, "reader", False),
    ("revertResize", None, "reader", False), ("migrate", None, "member", False), ("migrate", None, "manager", True),
    ("migrate", {"host": "h"}, "manager", False), ("migrate", {"host": "h"}, "admin", True),
    ("os-migrateLive", _LIVE, "member", False), ("os-migrateLive", _LIVE, "manager", True),
    ("os-migrateLive", {**_LIVE, "host": "h"}, "manager", False), ("evacuate", {}, "manager", False)])
def test_roles_for_resize_migrate_and_evacuate(api, servers, name, value, roles, allowed):
    assert act(api, name, value, roles=roles).status == (202 if allowed else 403)
    assert ("operate" in [called for called, _given in servers.calls]) == allowed


def test_migrate_with_a_down_compute_service_returns_409(api, servers):
    servers.answers["operate"] = exception.ComputeServiceUnavailable()
    assert act(api, "migrate").error == ("conflictingRequest", 409, "Service is unavailable at this time.")
