"""os-hypervisors per microversion."""

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.service import Service
from nova.objects.servers.instance import Instance
from nova.rpcapi.hosts import Hypervisors
from tests.unit.api.canned import stub
from tests.unit.api.hosts.test_services import WHEN

NODE, SERVICE = "b1e43b5f-eec1-44e0-9f10-7b4945c0226d", "5d343e1d-938e-4284-b98b-6a2b5406ba76"


def node(ident=1, host="host1", up=True, disabled=False, uptime="up 1 day"):
    service = Service(id=5, uuid=SERVICE, host=host, binary="nova-compute", up=up, disabled=disabled,
                      disabled_reason="why" if disabled else None)
    return ComputeNode(
        id=ident, uuid=NODE, host=host, hypervisor_hostname=f"{host}.example", hypervisor_type="QEMU",
        hypervisor_version=7002000, host_ip="192.0.2.1", cpu_info={"arch": "x86_64"}, disk_available_least=30,
        uptime=uptime, num_instances=3, num_io_ops=2, service=service,
        provider=Provider(uuid=NODE, name=host, inventories={
            "VCPU": Inventory(total=8, used=3), "MEMORY_MB": Inventory(total=8192, reserved=512, used=2048),
            "DISK_GB": Inventory(total=100, used=10)}))


def server(host="host1"):
    return Instance(id=26, uuid=SERVICE, project_id="p", user_id="u", display_name="s", hostname="s", host=host,
                    flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1), created_at=WHEN)


@pytest.fixture
def hypervisors(api):
    return stub(api, "hypervisors", Hypervisors, index=[node()], get=node(), servers=[server()])


def get(api, path="", version="2.1", **kwargs):
    return api.get(f"/v2.1/os-hypervisors{path}", version=version, **kwargs)


def test_hypervisor_fields_before_2_88(api, hypervisors):
    shown = get(api, "/1").json["hypervisor"]
    assert shown == {
        "id": 1, "hypervisor_hostname": "host1.example", "state": "up", "status": "enabled",
        "hypervisor_type": "QEMU", "hypervisor_version": 7002000, "host_ip": "192.0.2.1",
        "service": {"host": "host1", "id": 5, "disabled_reason": None},
        "vcpus": 8, "vcpus_used": 3, "memory_mb": 8192, "memory_mb_used": 2560, "free_ram_mb": 5632,
        "local_gb": 100, "local_gb_used": 10, "free_disk_gb": 90, "disk_available_least": 30,
        "running_vms": 3, "current_workload": 2, "cpu_info": '{"arch": "x86_64"}'}
    assert get(api, "/1", "2.28").json["hypervisor"]["cpu_info"] == {"arch": "x86_64"}


def test_hypervisor_fields_from_2_88(api, hypervisors):
    assert get(api, f"/{NODE}", "2.88").json["hypervisor"] == {
        "id": NODE, "hypervisor_hostname": "host1.example", "state": "up", "status": "enabled",
        "hypervisor_type": "QEMU", "hypervisor_version": 7002000, "host_ip": "192.0.2.1", "uptime": "up 1 day",
        "service": {"host": "host1", "id": SERVICE, "disabled_reason": None}}


def test_hypervisor_without_a_service_is_down(api, hypervisors):
    lonely = node()
    lonely.service, lonely.service_id = None, 7
    hypervisors.answers["get"] = lonely
    shown = get(api, "/1").json["hypervisor"]
    assert (shown["state"], shown["service"]) == ("down", {"host": "host1", "id": 7, "disabled_reason": None})


def test_hypervisors_are_paginated_from_2_33(api, hypervisors):
    assert get(api, "?limit=1", "2.32").json.keys() == {"hypervisors"}
    assert hypervisors.last("index")["limit"] is None
    links = get(api, "/detail?limit=1&marker=5", "2.33").json["hypervisors_links"]
    assert links[0]["href"] == "http://api:8774/v2.1/os-hypervisors/detail?limit=1&marker=1"
    assert hypervisors.last("index") == {"pattern": None, "limit": 1, "marker": "5", "host": None}
    links = get(api, "?limit=1", "2.53").json["hypervisors_links"]
    assert links[0]["href"] == f"http://api:8774/v2.1/os-hypervisors?limit=1&marker={NODE}"


@pytest.mark.parametrize(("query", "version"), [
    ("marker=abc", "2.33"), (f"marker={NODE}", "2.52"), ("marker=5", "2.53"), ("limit=-1", "2.33"),
    ("limit=1&limit=2", "2.53"), ("hypervisor_hostname_pattern=a&limit=1", "2.53"),
    (f"hypervisor_hostname_pattern=a&marker={NODE}", "2.53"), ("hypervisor_hostname_pattern=a%20b", "2.53"),
    ("with_servers=maybe", "2.53"), ("other=1", "2.53")])
def test_invalid_hypervisor_queries_are_refused(api, hypervisors, query, version):
    assert get(api, f"?{query}", version).error[1] == 400
    assert not hypervisors.calls


def test_hypervisors_with_servers_lists_the_servers_per_host(api, hypervisors):
    hypervisors.answers.update(index=[node(), node(2, "host2")])
    found = get(api, "?with_servers=true", "2.53").json["hypervisors"]
    assert found[0]["servers"] == [{"name": "instance-0000001a", "uuid": SERVICE}]
    assert "servers" not in found[1]
    assert hypervisors.last("servers") == {"hosts": ["host1", "host2"]}
    assert get(api, "?with_servers=true", "2.75").json["hypervisors"][1]["servers"] == []
    assert "servers" not in get(api, "?with_servers=false", "2.75").json["hypervisors"][0]


@pytest.mark.parametrize(("path", "version"), [
    ("/host/search", "2.52"), ("/host/servers", "2.52"), ("?hypervisor_hostname_pattern=host", "2.53")])
def test_hypervisor_search_without_a_match_returns_404(api, hypervisors, path, version):
    assert get(api, path, version).status == 200
    assert hypervisors.last("index")["pattern"] == "host"
    hypervisors.answers["index"] = []
    assert get(api, path, version).error == (
        "itemNotFound", 404, "No hypervisor matching 'host' could be found.")


def test_hypervisor_servers_search_shows_the_servers(api, hypervisors):
    assert get(api, "/host/servers").json["hypervisors"][0]["servers"] == [
        {"name": "instance-0000001a", "uuid": SERVICE}]
    assert "servers" not in get(api, "/host/search").json["hypervisors"][0]


@pytest.mark.parametrize("path", ["/host/search", "/host/servers"])
def test_hypervisor_searches_are_unavailable_from_2_53(api, hypervisors, path):
    assert get(api, path, "2.53").error[1] == 404


@pytest.mark.parametrize("path", [f"/{NODE}/uptime", "/statistics"])
def test_hypervisor_uptime_and_statistics_are_unavailable_from_2_88(api, hypervisors, path):
    assert get(api, path, "2.87").status == 200
    assert get(api, path, "2.88").error[1] == 404


@pytest.mark.parametrize(("ident", "version", "status"), [
    ("abc", "2.52", 404), (NODE, "2.52", 404), ("abc", "2.53", 400), ("1", "2.53", 400)])
def test_hypervisor_id_format_per_microversion(api, hypervisors, ident, version, status):
    assert get(api, f"/{ident}", version).error[1] == status
    assert not hypervisors.calls


def test_unknown_hypervisor_returns_404(api, hypervisors):
    hypervisors.answers["get"] = exception.ComputeHostNotFound(host="9")
    assert get(api, "/9").error == ("itemNotFound", 404, "Hypervisor with ID '9' could not be found.")


def test_hypervisor_statistics_sum_the_enabled_nodes(api, hypervisors):
    hypervisors.answers["index"] = [node(), node(2, "host2", up=False), node(3, "host3", disabled=True)]
    assert get(api, "/statistics").json == {"hypervisor_statistics": {
        "count": 2, "vcpus": 16, "vcpus_used": 6, "memory_mb": 16384, "memory_mb_used": 5120, "free_ram_mb": 11264,
        "local_gb": 200, "local_gb_used": 20, "free_disk_gb": 180, "disk_available_least": 60, "running_vms": 6,
        "current_workload": 4}}


@pytest.mark.parametrize(("found", "status"), [
    (node(), 200), (node(uptime=None), 501), (node(up=False), 400)])
def test_hypervisor_uptime_requires_an_up_host_with_a_reported_uptime(api, hypervisors, found, status):
    hypervisors.answers["get"] = found
    answer = get(api, "/1/uptime")
    assert answer.status == status
    assert status != 200 or answer.json["hypervisor"] == {
        "id": 1, "hypervisor_hostname": "host1.example", "state": "up", "status": "enabled", "uptime": "up 1 day"}


@pytest.mark.parametrize("path", ["", "/detail", "/1", "/1/uptime", "/statistics", "/a/search", "/a/servers"])
def test_hypervisors_require_admin(api, hypervisors, path):
    assert get(api, path, roles="manager").status == 403
    assert not hypervisors.calls
