"""servers/{server_id}/topology."""

import datetime

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.dedicated_resources.numa import GuestCell, GuestTopology
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance
from nova.rpcapi.servers import Servers
from tests.unit.api.canned import stub

SERVER = "5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f"
PATH = f"/v2.1/servers/{SERVER}/topology"
CREATED = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
PINNED = GuestTopology(cells=[
    GuestCell(id=0, pcpus=[0, 1], memory_mb=1024, host_cell=0, pinning={1: 5, 0: 0}, pagesize_kb=4),
    GuestCell(id=1, pcpus=[2, 3], memory_mb=2048, host_cell=1, pinning={2: 1, 3: 8}, pagesize_kb=4)])
NODES = [{"memory_mb": 1024, "siblings": [[0, 1]], "vcpu_set": [0, 1]},
         {"memory_mb": 2048, "siblings": [[2, 3]], "vcpu_set": [2, 3]}]
ON_HOST = [{"host_node": 0, "cpu_pinning": {"0": 0, "1": 5}}, {"host_node": 1, "cpu_pinning": {"2": 1, "3": 8}}]


@pytest.fixture
def shown(api):
    """Return a function that requests the topology of a server with the given NUMA cells, as the given role."""
    def ask(topology=PINNED, specs=None, properties=None, roles="admin", version="2.78"):
        flavor = Flavor(flavorid="1", name="f", memory_mb=3072, vcpus=4, root_gb=1, extra_specs=specs or {})
        stub(api, "servers", Servers, get=Instance(
            uuid=SERVER, project_id="p", user_id="u", display_name="s", hostname="s", created_at=CREATED, flavor=flavor,
            image=Image(id="image", properties=properties or {}), numa_topology=topology))
        answer = api.get(PATH, roles=roles, version=version, headers={"X-Project-Id": "p", "X-User-Id": "u"})
        assert answer.status == 200
        return answer.json

    return ask


@pytest.mark.parametrize("roles", ["reader", "member", "manager"])
def test_topology_hides_host_cells_and_pinning_from_users(shown, roles):
    assert shown(specs={"hw:cpu_threads": "2"}, roles=roles) == {"nodes": NODES, "pagesize_kb": 4}


def test_topology_shows_host_cells_and_pinning_to_admin(shown):
    expected = [{**node, **host} for node, host in zip(NODES, ON_HOST, strict=True)]
    assert shown(specs={"hw:cpu_threads": "2"}) == {"nodes": expected, "pagesize_kb": 4}


def test_topology_of_a_server_without_numa_is_empty(shown):
    assert shown(None) == {"nodes": [], "pagesize_kb": None}


@pytest.mark.parametrize(("specs", "properties", "siblings"), [
    ({}, {}, [[], []]), ({"hw:cpu_cores": "2"}, {}, [[], []]), ({}, {"hw_cpu_threads": "2"}, [[[0, 1]], [[2, 3]]]),
    # A core that spans two cells is split; an impossible topology has no siblings.
    ({"hw:cpu_threads": "4"}, {}, [[[0, 1]], [[2, 3]]]), ({"hw:cpu_threads": "x"}, {}, [[], []])])
def test_topology_siblings_are_the_threads_of_a_core(shown, specs, properties, siblings):
    assert [node["siblings"] for node in shown(specs=specs, properties=properties)["nodes"]] == siblings


def test_topology_omits_the_pinning_of_shared_cpus(shown):
    mixed = GuestTopology(cells=[GuestCell(id=0, cpus=[1, 3], pcpus=[0, 2], memory_mb=3072, host_cell=1,
                                           pinning={0: 4, 2: 6})])
    assert shown(mixed) == {"pagesize_kb": None, "nodes": [{
        "memory_mb": 3072, "siblings": [], "vcpu_set": [0, 1, 2, 3], "host_node": 1, "cpu_pinning": {"0": 4, "2": 6}}]}


def test_topology_of_an_unknown_server_returns_404(api):
    stub(api, "servers", Servers, get=exception.InstanceNotFound(instance_id=SERVER))
    assert api.get(PATH, version="2.78").status == 404
    assert api.get(PATH, version="2.77").status == 404


def test_topology_query_parameters_are_refused_from_2_102(api):
    stub(api, "servers", Servers, get=exception.InstanceNotFound(instance_id=SERVER))
    assert api.get(f"{PATH}?colour=red", version="2.101").status == 404
    assert api.get(f"{PATH}?colour=red", version="2.102").status == 400
