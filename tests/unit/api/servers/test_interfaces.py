"""servers/{server_id}/os-interface."""

import datetime

import msgspec
import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.networks.network import VIF, FixedIp
from nova.objects.servers.action import Accepted, Action
from nova.objects.servers.instance import Instance
from nova.rpcapi.servers import Servers
from tests.unit.api.canned import stub

PORT, NETWORK, SUBNET, SERVER = (f"{digit * 8}-f747-4d71-a389-46d078ebf047" for digit in "1234")
CREATED = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
VIF_ = VIF(id=PORT, network_id=NETWORK, label="net", mac="fa:16:3e:00:00:01", devname="tap1", tag="data", active=False,
           fixed_ips=[FixedIp(address="10.0.0.3", prefix=24, subnet_id=SUBNET)])
SHOWN = {"port_id": PORT, "net_id": NETWORK, "mac_addr": "fa:16:3e:00:00:01", "port_state": "DOWN",
         "fixed_ips": [{"ip_address": "10.0.0.3", "subnet_id": SUBNET}]}
PATH = f"/v2.1/servers/{SERVER}/os-interface"


@pytest.fixture
def servers(api):
    api.headers = {"X-Project-Id": "p", "X-User-Id": "u"}
    instance = Instance(uuid=SERVER, project_id="p", user_id="u", display_name="s", hostname="s", created_at=CREATED,
                        flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1, root_gb=1), network_info=[VIF_])
    action = Action(uuid="x", instance_uuid=SERVER, action="attach_interface", request_id="r", start_time=CREATED)
    return stub(api, "servers", Servers, get=instance,
                operate=Accepted(action=action, answer=msgspec.to_builtins(VIF_)))


@pytest.mark.parametrize(("version", "tag"), [("2.1", {}), ("2.69", {}), ("2.70", {"tag": "data"})])
def test_interfaces_are_listed_and_shown(api, servers, version, tag):
    assert api.get(PATH, roles="reader", version=version).json == {"interfaceAttachments": [{**SHOWN, **tag}]}
    assert api.get(f"{PATH}/{PORT}", roles="reader", version=version).json == {"interfaceAttachment": {**SHOWN, **tag}}
    assert api.get(f"{PATH}/{NETWORK}").error[1:] == (404, f"Port id {NETWORK} could not be found.")


@pytest.mark.parametrize(("version", "body", "payload"), [
    ("2.1", {}, {}), ("2.1", {"interfaceAttachment": {}}, {}),
    ("2.1", {"interfaceAttachment": {"net_id": NETWORK, "fixed_ips": [{"ip_address": "fd00::3"}]}},
     {"network_id": NETWORK, "fixed_ip": "fd00::3"}),
    ("2.49", {"interfaceAttachment": {"port_id": PORT, "tag": "data"}}, {"port_id": PORT, "tag": "data"})])
def test_attach_interface_returns_the_new_interface(api, servers, version, body, payload):
    answer = api.post(PATH, body, version=version, roles="member")
    assert (answer.status, answer.json) == (200, {"interfaceAttachment": SHOWN})
    assert servers.last("operate") == {
        "uuid": SERVER, "operation": "attach_interface", "project_id": "p",
        "payload": {"network_id": None, "port_id": None, "fixed_ip": None, "tag": None, **payload}}
    assert [name for name, _given in servers.calls] == ["operate"]


@pytest.mark.parametrize("body", [
    {"net_id": NETWORK, "port_id": PORT}, {"fixed_ips": [{"ip_address": "10.0.0.3"}]},
    {"port_id": PORT, "fixed_ips": [{"ip_address": "10.0.0.3"}]},
    {"net_id": NETWORK, "fixed_ips": [{"ip_address": "10.0.0.300"}]}, {"net_id": NETWORK, "fixed_ips": []},
    {"net_id": "blue"}, {"tag": "a,b"}, {"colour": "red"}])
def test_invalid_interface_attachments_are_refused(api, servers, body):
    assert api.post(PATH, {"interfaceAttachment": body}, version="2.49").error[1] == 400
    assert servers.calls == []


def test_interface_tag_is_refused_before_2_49(api, servers):
    assert api.post(PATH, {"interfaceAttachment": {"tag": "data"}}, version="2.48").error[1] == 400


@pytest.mark.parametrize(("error", "code"), [
    (exception.NetworkAmbiguous(), 400), (exception.NoMoreFixedIps(network_id=NETWORK), 400),
    (exception.FixedIpInUse(address="10.0.0.3"), 409), (exception.PortNotFound(port_id=PORT), 404),
    (exception.NetworkNotFound(network_id=NETWORK), 404), (exception.InstanceIsLocked(instance_uuid=SERVER), 409)])
def test_attach_interface_errors_have_their_status_codes(api, servers, error, code):
    servers.answers["operate"] = error
    assert api.post(PATH, {"interfaceAttachment": {}}).error[1:] == (code, error.message)


def test_detach_interface_starts_an_operation(api, servers):
    assert api("DELETE", f"{PATH}/{PORT}", roles="member").status == 202
    assert servers.last("operate") == {
        "uuid": SERVER, "operation": "detach_interface", "project_id": "p", "payload": {"port_id": PORT}}


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_readers_cannot_attach_or_detach_interfaces(api, servers, method):
    path, body = (PATH, {}) if method == "POST" else (f"{PATH}/{PORT}", None)
    assert api(method, path, body, roles="reader").error[1] == 403


# -- addFixedIp, removeFixedIp ------------------------------------------------------------------------
ACTION = f"/v2.1/servers/{SERVER}/action"


def test_add_fixed_ip_attaches_an_interface(api, servers):
    assert api.post(ACTION, {"addFixedIp": {"networkId": NETWORK}}, version="2.43", roles="member").status == 202
    assert servers.last("operate") == {"uuid": SERVER, "operation": "attach_interface", "project_id": "p",
                                       "payload": {"network_id": NETWORK}}
    servers.answers["operate"] = exception.NoMoreFixedIps(network_id=NETWORK)
    assert api.post(ACTION, {"addFixedIp": {"networkId": NETWORK}}).error[1] == 400


def test_remove_fixed_ip_detaches_its_interface(api, servers):
    assert api.post(ACTION, {"removeFixedIp": {"address": "10.0.0.3"}}, version="2.43", roles="member").status == 202
    assert servers.last("operate") == {"uuid": SERVER, "operation": "detach_interface", "project_id": "p",
                                       "payload": {"port_id": PORT}}
    assert api.post(ACTION, {"removeFixedIp": {"address": "10.0.0.4"}}).error[1:] == (
        400, f"Instance {SERVER} does not have fixed IP address 10.0.0.4.")


def test_remove_fixed_ip_of_an_interface_with_more_addresses_is_refused(api, servers):
    servers.answers["get"].network_info = [msgspec.structs.replace(VIF_, fixed_ips=[
        *VIF_.fixed_ips, FixedIp(address="10.0.0.4", prefix=24)])]
    assert api.post(ACTION, {"removeFixedIp": {"address": "10.0.0.3"}}).error[1] == 400
    assert [name for name, _given in servers.calls] == ["get"]


@pytest.mark.parametrize("body", [{"addFixedIp": {"networkId": NETWORK}}, {"removeFixedIp": {"address": "10.0.0.3"}}])
def test_fixed_ip_actions_are_unavailable_from_2_44(api, servers, body):
    assert api.post(ACTION, body, version="2.44").status in (400, 404)
    assert api.post(ACTION, body, roles="reader").error[1] == 403
    assert not [name for name, _given in servers.calls if name == "operate"]
