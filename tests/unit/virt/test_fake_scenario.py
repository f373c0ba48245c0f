"""The scenario file that describes a fleet, and errors of invalid files."""

import pytest
import yaml

from nova import conf, exception
from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU
from nova.virt.fake import scenario as fake_scenario
from nova.virt.fake.driver import HARDWARE, FakeDriver

FULL = """
groups:
  - name: rack
    hosts: 3
    nodes: 2
    vcpus: 16
    inventories: {CUSTOM_FPGA: 2, PCPU: {total: 8, reserved: 1, ratio: 1.5, max_unit: 4}}
    traits: [HW_CPU_X86_AVX2]
    aggregates: [ssd]
    latency: {spawn: 0.5, "*": 0.1}
    failure: {spawn: 0.25}
  - name: lone
aggregates:
  ssd: {availability_zone: east, metadata: {ssd: "true"}}
"""


@pytest.fixture(autouse=True)
def options():
    conf.register()
    CONF.set_override("vcpus", 4, group="fake")
    CONF.set_override("memory_mb", 1024, group="fake")
    CONF.set_override("latency", {"spawn": "9", "destroy": "0.3"}, group="fake")
    yield
    for name in ("vcpus", "memory_mb", "latency", "scenario"):
        CONF.clear_override(name, group="fake")


@pytest.fixture
def scenario_file(tmp_path):
    def write(text):
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        CONF.set_override("scenario", str(path), group="fake")
        return str(path)

    return write


def test_process_serves_all_hosts_of_the_scenario(scenario_file):
    scenario_file(FULL)
    drivers = FakeDriver.of_all_hosts()
    assert [driver.host for driver in drivers] == ["rack-000", "rack-001", "rack-002", "lone"]
    nodes = drivers[1].nodes()
    assert [node.hypervisor_hostname for node in nodes] == ["rack-001-00000", "rack-001-00001"]
    assert {node.host for node in nodes} == {"rack-001"}
    every = [node.uuid for driver in drivers for node in driver.nodes()]
    assert len(set(every)) == 7
    assert [node.hypervisor_hostname for node in drivers[3].nodes()] == ["lone"]


def test_node_inventory_comes_from_its_group_or_the_options(scenario_file):
    scenario_file(FULL)
    first = FakeDriver.of_all_hosts()[0].nodes()[0]
    assert sorted(set(first.provider.traits) - set(HARDWARE)) == [
        "COMPUTE_NODE", "COMPUTE_RESCUE_BFV", "COMPUTE_STORAGE_VIRTIO_FS", "COMPUTE_VOLUME_MULTI_ATTACH",
        "HW_CPU_X86_AVX2", "OWNER_NOVA"]
    assert first.inventory(VCPU).total == 16
    assert first.inventory(VCPU).ratio == CONF.initial_cpu_allocation_ratio
    assert first.inventory(MEMORY_MB).total == 1024
    assert first.inventory(DISK_GB).total == CONF.fake.disk_gb
    fpga, cpus = first.inventory("CUSTOM_FPGA"), first.inventory("PCPU")
    assert (fpga.total, fpga.ratio, fpga.max_unit) == (2, 1.0, 2)
    assert (cpus.total, cpus.reserved, cpus.ratio, cpus.max_unit) == (8, 1, 1.5, 4)


def test_group_latencies_and_failures_override_the_options(scenario_file):
    scenario_file(FULL)
    rack, *_others, lone = FakeDriver.of_all_hosts()
    assert rack.behaviour.latency == {"spawn": 0.5, "*": 0.1, "destroy": 0.3}
    assert rack.behaviour.failure == {"spawn": 0.25}
    assert lone.behaviour.latency == {"spawn": 9.0, "destroy": 0.3}


def test_node_uuids_are_stable_across_restarts(scenario_file):
    scenario_file(FULL)
    assert [node.uuid for node in FakeDriver.of_all_hosts()[0].nodes()] == [
        node.uuid for node in FakeDriver("rack-000").nodes()]


def test_process_without_a_scenario_serves_its_own_host():
    assert FakeDriver.of_all_hosts() == ()


def test_aggregates_contain_the_hosts_of_their_groups():
    found = fake_scenario.parse(yaml.safe_load(FULL))
    assert found.hosts_of_aggregate("ssd") == ["rack-000", "rack-001", "rack-002"]
    assert found.aggregates["ssd"].availability_zone == "east"


@pytest.mark.parametrize(("text", "field", "problem"), [
    ("", "", "Expected `object`, got `null`"),
    ("[]", "", "Expected `object`, got `array`"),
    ("aggregates: {}", "", "missing required field `groups`"),
    ("groups: []", "`groups`", "length >= 1"),
    ("groups: [{}]", "`groups[0]`", "missing required field `name`"),
    ("groups: [{name: 'a b'}]", "`groups[0].name`", "matching regex"),
    ("groups: [{name: a}, {name: b, hosts: 0}]", "`groups[1].hosts`", ">= 1"),
    ("groups: [{name: a, nodes: many}]", "`groups[0].nodes`", "Expected `int`, got `str`"),
    ("groups: [{name: a, cpus: 3}]", "`groups[0]`", "unknown field `cpus`"),
    ("groups: [{name: a, latency: {boot: 1}}]", "`groups[0].latency`", "Invalid enum value 'boot'"),
    ("groups: [{name: a, latency: {spawn: -1}}]", "`groups[0].latency[...]`", ">= 0"),
    ("groups: [{name: a, failure: {spawn: 2}}]", "`groups[0].failure[...]`", "<= 1"),
    ("groups: [{name: a, inventories: {custom: 2}}]", "`groups[0].inventories`", "matching regex"),
    ("groups: [{name: a, inventories: {FPGA: {totl: 2}}}]", "`groups[0].inventories[...]`", "field `tot"),
    ("groups: [{name: a, inventories: {FPGA: {total: 2, reserved: 3}}}]",
     "`groups[0].inventories.FPGA.reserved`", "reserved is more than total"),
    ("groups: [{name: a, traits: [avx]}]", "`groups[0].traits[0]`", "matching regex"),
    ("groups: [{name: a}, {name: a}]", "`groups[1].name`", "the host a is described twice"),
    ("groups: [{name: a, aggregates: [x]}]", "`groups[0].aggregates`", "aggregate x is not described"),
    ("groups: [{name: a, aggregates: [x, y]}]\n"
     "aggregates: {x: {availability_zone: e}, y: {availability_zone: w}}",
     "`groups[0].aggregates`", "in the zones e and w at once"),
    ("groups: [{name: a, hosts: 1001, nodes: 1000}]", "`groups`", "more than 1000000 nodes"),
    ("groups: [", "", "it is not YAML"),
])
def test_invalid_scenario_is_refused_with_file_and_field(scenario_file, text, field, problem):
    path = scenario_file(text)
    with pytest.raises(exception.InvalidInput) as refused:
        FakeDriver.of_all_hosts()
    message = str(refused.value)
    assert path in message
    assert field in message
    assert problem in message


def test_missing_scenario_file_is_reported():
    CONF.set_override("scenario", "/nowhere/fleet.yaml", group="fake")
    with pytest.raises(exception.InvalidInput, match=r"/nowhere/fleet\.yaml.*cannot be read"):
        FakeDriver.of_all_hosts()


PARTS = """
groups:
  - name: parts
    vcpus: 8
    memory_mb: 1024
    cells: {count: 2, threads: 2, dedicated: 2, pages: {2048: 16}}
    devices:
      - {vendor_id: "10de", product_id: "20b0", cells: [0, 1]}
      - {vendor_id: "8086", product_id: "1572", functions: 2, tags: {physical_network: one}}
    children: {gpu: {inventories: {VGPU: 4}, traits: [CUSTOM_FAST]}}
"""


def test_hosts_have_numa_cells_pci_devices_and_child_providers(scenario_file):
    scenario_file(PARTS)
    [node] = FakeDriver("parts").nodes()
    first, second = node.numa_topology.cells
    assert (first.cpus, first.pcpus, second.pcpus) == ([0, 1], [2, 3], [6, 7])
    assert first.siblings == [[0, 1], [2, 3]]
    assert [(pages.size_kb, pages.total) for pages in second.pages] == [(4, (512 - 32) * 256), (2048, 16)]
    assert {name: node.inventory(name).total for name in ("VCPU", "PCPU")} == {"VCPU": 4, "PCPU": 4}
    assert [(device.numa_node, device.dev_type, device.parent) for device in node.pci_devices] == [
        (0, "type-PCI", None), (1, "type-PCI", None), (None, "type-PF", None),
        (None, "type-VF", node.pci_devices[2].address), (None, "type-VF", node.pci_devices[2].address)]
    [child] = node.children
    assert (child.parent_uuid, child.inventories["VGPU"].total, child.traits) == (node.uuid, 4, ["CUSTOM_FAST"])
    assert FakeDriver("parts").nodes()[0].children[0].uuid == child.uuid


def test_device_spec_selects_among_scenario_devices(scenario_file):
    scenario_file(PARTS)
    CONF.set_override("device_spec", ['{"vendor_id": "10de", "resource_class": "CUSTOM_GPU"}'], group="pci")
    try:
        devices = FakeDriver("parts").nodes()[0].pci_devices
    finally:
        CONF.clear_override("device_spec", group="pci")
    assert [device.tags for device in devices] == [{"resource_class": "CUSTOM_GPU"}] * 2


@pytest.mark.parametrize(("group", "field"), [
    ("cells: {count: 3}", "cells"), ("cells: {dedicated: 9}", "cells.dedicated"),
    ("cells: {pages: {1048576: 2}}", "cells.pages"),
    ('devices: [{vendor_id: "10de", product_id: "20b0", cells: [0]}]', "devices[0].cells"),
    ('devices: [{vendor_id: "gpu", product_id: "20b0"}]', "vendor_id"),
])
def test_invalid_cells_and_devices_are_reported_by_field(scenario_file, group, field):
    scenario_file(f"groups:\n  - name: rack\n    vcpus: 8\n    memory_mb: 1024\n    {group}\n")
    with pytest.raises(exception.InvalidInput) as refused:
        fake_scenario.configured()
    assert field in str(refused.value)
