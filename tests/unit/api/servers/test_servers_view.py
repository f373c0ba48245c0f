"""Views of servers per microversion and caller.

``tests/data/server_keys.json`` has, per kind of response, [version, added keys, removed keys]; up to 2.89 for
administrators, from 2.90 for members.
"""

import datetime
import json

import pytest

from nova.api.compute.servers import servers_view
from nova.api.request import Request
from nova.context import RequestContext
from nova.objects.accounts.flavor import Flavor
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, FixedIp
from nova.objects.servers import states
from nova.objects.servers.instance import Fault, Instance, Key
from tests.paths import DATA

KEYS = json.loads((DATA / "server_keys.json").read_text())
VIEWS = {"show": servers_view.SHOW, "detail": servers_view.DETAIL, "update": servers_view.UPDATE}
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
ADMIN = ("admin", "manager", "member", "reader")
MEMBER = ("member", "reader")


class Hosts:
    """Fake clients that provide the status of hosts only."""

    def __init__(self, **status):
        self.status = status

    def cached(self, _name, _seconds, _ask):
        return self.status


def look(version, roles=ADMIN, clients=None, **kwargs):
    ctx = RequestContext(user_id="user", project_id="project", roles=list(roles), overwrite=False)
    ctx.is_admin = "admin" in roles
    req = Request(ctx, clients or Hosts(host="UP"), "http://api")
    req.version = version
    return servers_view.ViewContext(req, **kwargs)


def server(**changes):
    values = {
        "id": 255, "uuid": "uuid", "project_id": "project", "user_id": "user", "display_name": "name",
        "hostname": "name", "vm_state": "active", "power_state": 1, "host": "host", "node": "node",
        "availability_zone": "nova", "image_ref": "image", "created_at": WHEN, "launched_at": WHEN,
        "security_groups": ["default"],
        "flavor": Flavor(flavorid="1", name="m1.tiny", memory_mb=512, vcpus=1, root_gb=1, extra_specs={"a": "b"}),
        "image": Image(id="image", properties={"architecture": "x86_64", "owner_specified.secret": "x"}),
        "network_info": [VIF(id="v", network_id="n", label="private", mac="fa:16:3e:00:00:01", devname="tap0",
                             fixed_ips=[FixedIp(address="10.0.0.2", prefix=24)])],
    }
    return Instance(**{**values, **changes})


def expected_keys():
    for kind, rows in KEYS.items():
        keys = set()
        for version, came, went in rows:
            keys = (keys | set(came)) - set(went)
            yield pytest.param(kind, version, frozenset(keys), id=f"{kind}-2.{version}")


@pytest.mark.parametrize(("kind", "version", "keys"), expected_keys())
def test_server_view_has_the_keys_of_its_microversion(kind, version, keys):
    shown = VIEWS[kind].render(server(), look(version, ADMIN if version < 90 else MEMBER))
    assert set(shown) == keys


def test_server_view_never_loses_a_key_in_a_later_microversion():
    """A later microversion only adds keys."""
    for view in VIEWS.values():
        before = set()
        for version in range(1, 105):
            keys = set(view.render(server(), look(version)))
            assert before <= keys
            before = keys


def test_server_view_hides_host_attributes_from_members():
    shown = servers_view.SHOW.render(server(), look(104, MEMBER))
    assert "host_status" not in shown
    assert {key for key in shown if key.startswith("OS-EXT-SRV-ATTR:")} == {"OS-EXT-SRV-ATTR:hostname"}


def test_server_view_hides_the_hostname_from_members_before_2_90():
    assert "OS-EXT-SRV-ATTR:hostname" not in servers_view.SHOW.render(server(), look(89, MEMBER))


def test_server_view_embeds_the_flavor_from_2_47():
    assert servers_view.SHOW.render(server(), look(46))["flavor"] == {
        "id": "1", "links": [{"rel": "bookmark", "href": "http://api/flavors/1"}]}
    assert servers_view.SHOW.render(server(), look(47))["flavor"] == {
        "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "original_name": "m1.tiny",
        "extra_specs": {"a": "b"}}


def test_server_view_omits_unknown_image_properties():
    assert servers_view.SHOW.render(server(), look(98))["image"]["properties"] == {"architecture": "x86_64"}


def test_server_view_without_an_image_shows_an_empty_string():
    assert servers_view.SHOW.render(server(image_ref=""), look(104))["image"] == ""


def test_server_view_shows_ipv4_and_ipv6_addresses():
    vif = server().network_info[0]
    vif.fixed_ips.append(FixedIp(address="fd00::5", version=6, prefix=64))
    shown = servers_view.SHOW.render(server(network_info=[vif]), look(1))["addresses"]
    assert [(item["version"], item["addr"], item["OS-EXT-IPS-MAC:mac_addr"]) for item in shown["private"]] == [
        (4, "10.0.0.2", vif.mac), (6, "fd00::5", vif.mac)]


def test_server_view_hides_addresses_while_building():
    assert servers_view.SHOW.render(server(vm_state=states.BUILDING), look(1))["addresses"] == {}


def test_server_view_omits_address_type_and_mac_in_update_responses():
    complete = servers_view.SHOW.render(server(), look(1))["addresses"]
    assert complete == {"private": [{"version": 4, "addr": "10.0.0.2", "OS-EXT-IPS:type": "fixed",
                                     "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01"}]}
    short = servers_view.UPDATE.render(server(), look(1, precise_addresses=False))["addresses"]
    assert short == {"private": [{"version": 4, "addr": "10.0.0.2"}]}


@pytest.mark.parametrize(("vm_state", "task_state", "shown"), [
    ("active", None, True), ("building", None, True), ("resized", None, True), ("active", "migrating", True),
    ("active", "rebooting_hard", False), ("stopped", None, False), ("error", None, False)])
def test_server_view_shows_progress_per_status(vm_state, task_state, shown):
    keys = servers_view.SHOW.render(server(vm_state=vm_state, task_state=task_state), look(1))
    assert ("progress" in keys) == shown


def test_server_view_shows_faults_of_error_and_deleted_servers_only():
    fault = Fault(code=500, message="No valid host was found.", details="traceback", created=WHEN)
    assert "fault" not in servers_view.SHOW.render(server(fault=fault), look(1))
    shown = servers_view.SHOW.render(server(fault=fault, vm_state="error"), look(1, MEMBER))
    assert shown["fault"] == {"code": 500, "message": "No valid host was found.", "created": "2026-01-02T03:04:05Z"}
    assert servers_view.SHOW.render(server(fault=fault, deleted=True), look(1))["fault"]["details"] == "traceback"


@pytest.mark.parametrize("code", [400, 404, 409, 500, 503])
def test_server_view_shows_fault_details_to_admin_only(code):
    fault = Fault(code=code, message="It failed.", details="traceback", created=WHEN)
    assert "details" not in servers_view.SHOW.render(server(fault=fault, vm_state="error"), look(1, MEMBER))["fault"]
    assert servers_view.SHOW.render(server(fault=fault, vm_state="error"), look(1))["fault"]["details"] == "traceback"


@pytest.mark.parametrize(("host", "status"), [("host", "DOWN"), ("other", "UNKNOWN"), (None, "")])
def test_server_view_shows_the_host_status(host, status):
    shown = servers_view.SHOW.render(server(host=host), look(16, clients=Hosts(host="DOWN")))
    assert shown["host_status"] == status


def test_server_view_formats_times_keys_and_flags():
    shown = servers_view.SHOW.render(server(
        config_drive=True, key=Key(name="mykey", public_key="ssh-rsa A")), look(1))
    assert shown["created"] == shown["updated"] == "2026-01-02T03:04:05Z"
    assert shown["OS-SRV-USG:launched_at"] == "2026-01-02T03:04:05.000006"
    assert shown["OS-SRV-USG:terminated_at"] is None
    assert (shown["config_drive"], shown["key_name"], shown["accessIPv4"]) == ("True", "mykey", "")
    assert shown["OS-EXT-SRV-ATTR:instance_name"] == "instance-000000ff"


def test_server_view_without_security_groups_omits_the_key():
    assert "security_groups" not in servers_view.SHOW.render(server(security_groups=[]), look(1))
