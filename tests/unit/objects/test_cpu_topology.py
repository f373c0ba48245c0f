"""Topologies of virtual CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import exception
from nova.objects.requirements.cpu_topology import Topology, topology
from nova.objects.requirements.properties import Properties
from tests.unit.virt.guests import server


def arranged(vcpus: int, specs: dict[str, str] | None = None,
             properties: dict[str, str] | None = None) -> Topology | None:
    return topology(Properties.of(server(specs, properties, flavor={"vcpus": vcpus})))


def test_cpu_topology_without_a_request_is_none() -> None:
    assert arranged(4) is None


@pytest.mark.parametrize(("vcpus", "specs", "properties", "expected"), [
    (4, {"hw:cpu_sockets": "1"}, {}, (1, 4, 1)),
    (4, {"hw:cpu_cores": "2"}, {}, (2, 2, 1)),
    (8, {"hw:cpu_threads": "2"}, {}, (4, 1, 2)),
    (4, {}, {"hw_cpu_cores": "4"}, (1, 4, 1)),
    (4, {"hw:cpu_cores": "2"}, {"hw_cpu_cores": "4"}, (2, 2, 1)),
    (8, {"hw:cpu_max_sockets": "2"}, {}, (2, 4, 1)),
    (8, {"hw:cpu_max_sockets": "4"}, {"hw_cpu_max_sockets": "1"}, (1, 8, 1)),
    (6, {"hw:cpu_cores": "4"}, {}, (6, 1, 1)),
    (3, {"hw:cpu_sockets": "2"}, {}, (3, 1, 1)),
])
def test_cpu_topology_follows_flavor_and_image_preferences(vcpus: int, specs: dict[str, str],
                                                           properties: dict[str, str],
                                                           expected: tuple[int, int, int]) -> None:
    assert arranged(vcpus, specs, properties) == Topology(*expected)


@pytest.mark.parametrize(("specs", "properties"), [
    ({"hw:cpu_max_sockets": "1"}, {"hw_cpu_max_sockets": "2"}),
    ({"hw:cpu_max_cores": "1"}, {"hw_cpu_cores": "2"}),
    ({"hw:cpu_max_sockets": "1", "hw:cpu_max_cores": "1", "hw:cpu_max_threads": "1"}, {}),
    ({"hw:cpu_cores": "0"}, {}),
    ({"hw:cpu_cores": "x"}, {}),
])
def test_impossible_cpu_topologies_are_refused(specs: dict[str, str], properties: dict[str, str]) -> None:
    with pytest.raises(exception.InvalidInput):
        arranged(4, specs, properties)


@given(vcpus=st.integers(1, 96), sockets=st.integers(1, 8), cores=st.integers(1, 8), threads=st.integers(1, 4))
def test_cpu_topology_covers_all_vcpus_and_uses_consistent_requests(vcpus: int, sockets: int, cores: int,
                                                                    threads: int) -> None:
    found = arranged(vcpus, {"hw:cpu_sockets": str(sockets), "hw:cpu_cores": str(cores),
                             "hw:cpu_threads": str(threads)})
    assert found is not None
    assert found.sockets * found.cores * found.threads == vcpus
    if sockets * cores * threads == vcpus:
        assert found == Topology(sockets, cores, threads)
