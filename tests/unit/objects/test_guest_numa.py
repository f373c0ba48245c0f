"""The CPU policy and NUMA topology requested by a flavor and an image, and refused combinations."""

from __future__ import annotations

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.dedicated_resources.numa import GuestCell, GuestTopology
from nova.objects.images.image import Image
from nova.objects.requirements.guest_numa import cpu_mask, cpu_policy, guest_topology, page_size


def flavor(extra_specs=None, vcpus=4, memory_mb=1024):
    return Flavor(flavorid="1", name="f", memory_mb=memory_mb, vcpus=vcpus, extra_specs=extra_specs or {})


def image(properties=None):
    return Image(id="i", properties=properties or {})


def topology(extra_specs=None, properties=None, **sizes):
    return guest_topology(flavor(extra_specs, **sizes), image(properties))


def cells(found):
    return [(cell.cpus, cell.pcpus, cell.memory_mb) for cell in found.cells]


def test_plain_server_has_no_numa_topology():
    assert topology() is None
    assert guest_topology(flavor(), None) is None
    assert topology({"hw:cpu_policy": "shared"}) is None


@pytest.mark.parametrize(("extra_specs", "properties", "expected"), [
    ({"hw:numa_nodes": "2"}, {}, [([0, 1], [], 512), ([2, 3], [], 512)]),
    ({}, {"hw_numa_nodes": "2"}, [([0, 1], [], 512), ([2, 3], [], 512)]),
    ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_mem.0": "1000", "hw:numa_cpus.1": "1-3",
      "hw:numa_mem.1": "24"}, {}, [([0], [], 1000), ([1, 2, 3], [], 24)]),
    ({"hw:cpu_policy": "dedicated"}, {}, [([], [0, 1, 2, 3], 1024)]),
    ({"hw:cpu_policy": "dedicated"}, {"hw_cpu_policy": "shared"}, [([], [0, 1, 2, 3], 1024)]),
    ({}, {"hw_cpu_policy": "dedicated"}, [([], [0, 1, 2, 3], 1024)]),
    ({"resources:PCPU": "4"}, {}, [([], [0, 1, 2, 3], 1024)]),
    ({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2"}, {}, [([], [0, 1], 512), ([], [2, 3], 512)]),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"}, {}, [([0], [1, 2, 3], 1024)]),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "1,3", "hw:numa_nodes": "2"}, {},
     [([0], [1], 512), ([2], [3], 512)]),
    ({"hw:mem_page_size": "2MB"}, {}, [([0, 1, 2, 3], [], 1024)]),
])
def test_guest_numa_cells_follow_flavor_and_image(extra_specs, properties, expected):
    assert cells(topology(extra_specs, properties)) == expected


def test_cpu_and_page_policies_are_part_of_the_topology():
    found = topology({"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate",
                      "hw:emulator_threads_policy": "isolate", "hw:mem_page_size": "large"}, vcpus=1)
    assert found == GuestTopology(cells=[GuestCell(id=0, pcpus=[0], memory_mb=1024)], thread_policy="isolate",
                                  emulator_policy="isolate", page_size="large")
    assert found.pinned


@pytest.mark.parametrize(("extra_specs", "properties", "says"), [
    ({"hw:cpu_policy": "exclusive"}, {}, "hw:cpu_policy must be one of"),
    ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "dedicated"}, "not permitted to override CPU pinning policy"),
    ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "mixed"}, "not permitted to override CPU pinning policy"),
    ({"hw:cpu_policy": "mixed"}, {"hw_cpu_policy": "dedicated"}, "not permitted to override CPU pinning policy"),
    ({"hw:cpu_policy": "mixed"}, {}, "needs hw:cpu_dedicated_mask"),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-3"}, {}, "at least one CPU pinned and one not"),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "x"}, {}, "not a list of CPUs"),
    ({"hw:cpu_policy": "dedicated", "hw:cpu_dedicated_mask": "0"}, {}, "needs hw:cpu_policy mixed"),
    ({"resources:PCPU": "3"}, {}, "resources:PCPU must be 4"),
    ({"resources:PCPU": "4", "resources:VCPU": "1"}, {}, "cannot be used together"),
    ({"hw:cpu_thread_policy": "isolate"}, {}, "non dedicated"),
    ({"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"}, {"hw_cpu_thread_policy": "prefer"},
     "thread pinning policy"),
    ({"hw:emulator_threads_policy": "isolate"}, {}, "requires a dedicated CPU policy"),
    ({"hw:numa_nodes": "0"}, {}, "hw:numa_nodes must be"), ({"hw:numa_nodes": "x"}, {}, "hw:numa_nodes must be"),
    ({"hw:numa_nodes": "999999999"}, {}, "hw:numa_nodes must be"), ({"hw:numa_nodes": "3"}, {}, "evenly distributed"),
    ({"hw:numa_cpus.0": "0"}, {}, "needs hw:numa_nodes"),
    ({"hw:numa_nodes": "2"}, {"hw_numa_nodes": "2"}, "not permitted to override NUMA"),
    ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3"}, {}, "hw:numa_mem.0 are needed"),
    ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-2", "hw:numa_mem.0": "1024"}, {}, "exactly once"),
    ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-5", "hw:numa_mem.0": "1024"}, {}, "does not have"),
    ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3", "hw:numa_mem.0": "1000"}, {}, "sum up"),
    ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3", "hw:numa_mem.0": "much"}, {}, "number of MiB"),
    ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3", "hw:numa_mem.0": "1024", "hw:numa_mem.1": "1"}, {}, "beyond"),
    ({}, {"hw_mem_page_size": "2048"}, "hw:mem_page_size of the flavor is not set"),
    ({"hw:mem_page_size": "small"}, {"hw_mem_page_size": "2048"}, "hw:mem_page_size of the flavor is small"),
    ({"hw:mem_page_size": "big"}, {}, "not a memory page size"),
    # Properties of Glance images are arbitrary text: Python refuses to parse more than 4,300 digits.
    ({}, {"hw_numa_nodes": "1" * 5000}, "hw:numa_nodes must be"),
    ({}, {"hw_numa_nodes": "1", "hw_numa_cpus.0": "0-3", "hw_numa_mem.0": "1" * 5000}, "number of MiB"),
    ({}, {"hw_numa_nodes": "1", "hw_numa_cpus.0": "0-" + "1" * 5000, "hw_numa_mem.0": "1024"}, "not a list of CPUs"),
])
def test_invalid_numa_and_cpu_requests_are_refused(extra_specs, properties, says):
    with pytest.raises(exception.InvalidInput, match=says):
        topology(extra_specs, properties)


@pytest.mark.parametrize(("asked", "of_image", "size"), [
    ("2048", None, "2048"), ("2MB", None, "2048"), ("2Mi", None, "2048"), ("1GB", None, "1048576"),
    ("1GiB", None, "1048576"), ("small", None, "small"), ("large", "1GB", "1048576"), ("any", "large", "large"),
    ("16384kbit", None, "2048"), (None, None, "")])
def test_requested_page_size_is_from_flavor_or_image(asked, of_image, size):
    assert page_size(flavor({"hw:mem_page_size": asked} if asked else {}),
                     image({"hw_mem_page_size": of_image} if of_image else {})) == size


@pytest.mark.parametrize(("mask", "cpus"), [
    ("0-2", {0, 1, 2}), ("^0", {1, 2, 3}), ("0-3,^2", {0, 1, 3}), ("3,0", {0, 3}), ("0-999999999999", {0, 1, 2, 3}),
    ("9", set()), ("", {0, 1, 2, 3})])
def test_cpu_mask_is_parsed_to_a_set_of_cpus(mask, cpus):
    assert cpu_mask(mask, 4) == cpus


def test_isolated_emulator_thread_counts_as_a_pcpu():
    assert cpu_policy(flavor({"resources:PCPU": "5", "hw:emulator_threads_policy": "isolate"}), None) == "dedicated"
