"""Dedicated resources of a guest in its definition, and those that a host reports."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from lxml import etree

from nova import conf, exception
from nova.conf import CONF
from nova.objects.dedicated_resources import pci, pci_spec
from nova.objects.dedicated_resources.numa import GuestCell, GuestTopology, HostTopology
from nova.objects.dedicated_resources.pci import GuestDevice, PciDevice
from nova.objects.servers.instance import Instance
from nova.virt.libvirt.node import capabilities
from nova.virt.libvirt.xml import migration_xml
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.settings import Settings, with_cells
from tests.unit.virt.guests import server
from tests.unit.virt.test_libvirt_domain_xml import DISKS, HOST, SCHEMA, define, domain_xml

CAPABILITIES = """
<capabilities><host><topology><cells num='2'>
  <cell id='0'><memory unit='KiB'>4194304</memory>
    <pages unit='KiB' size='4'>786432</pages><pages unit='KiB' size='2048'>512</pages>
    <pages unit='KiB' size='1048576'>0</pages>
    <cpus num='4'><cpu id='0' socket_id='0' core_id='0' siblings='0,4'/>
      <cpu id='1' socket_id='0' core_id='1' siblings='1,5'/>
      <cpu id='4' socket_id='0' core_id='0' siblings='0,4'/>
      <cpu id='5' socket_id='0' core_id='1' siblings='1,5'/></cpus></cell>
  <cell id='1'><memory unit='KiB'>2097152</memory><pages unit='KiB' size='4'>524288</pages>
    <cpus num='4'><cpu id='2' socket_id='1' core_id='0' siblings='2,6'/>
      <cpu id='3' socket_id='1' core_id='1' siblings='3,7'/>
      <cpu id='6' socket_id='1' core_id='0' siblings='2,6'/>
      <cpu id='7' socket_id='1' core_id='1' siblings='3,7'/></cpus></cell>
</cells></topology></host></capabilities>"""


@pytest.fixture(autouse=True)
def options() -> Iterator[Any]:
    conf.register()
    changed: list[tuple[str, str | None]] = []

    def override(name: str, value: Any, group: str | None = None) -> None:
        CONF.set_override(name, value, group)
        changed.append((name, group))

    yield override
    for name, group in changed:
        CONF.clear_override(name, group)


# --- the host --------------------------------------------------------------------------------------
def host() -> HostTopology:
    found = capabilities.numa_topology(ET.fromstring(CAPABILITIES))
    assert found is not None
    return capabilities.shared_out(found)


def test_numa_cells_are_read_from_libvirt_capabilities() -> None:
    first, second = host().cells
    assert (first.cpus, first.pcpus, first.siblings) == ([0, 1, 4, 5], [], [[0, 4], [1, 5]])
    assert (first.memory_mb, second.memory_mb, first.socket, second.socket) == (4096, 2048, 0, 1)
    assert [(pages.size_kb, pages.total) for pages in first.pages] == [(4, 786432), (2048, 512)]
    assert capabilities.numa_topology(ET.fromstring("<capabilities><host/></capabilities>")) is None


def test_cpu_sets_and_reserved_huge_pages_are_applied(options: Any) -> None:
    options("cpu_dedicated_set", "1,5,2-7,^3,^7", "compute")
    options("reserved_huge_pages", ["node:0,size:2048,count:100"])
    first, second = host().cells
    assert (first.cpus, first.pcpus, second.cpus, second.pcpus) == ([], [1, 4, 5], [], [2, 6])
    assert first.pages[1].reserved == 100
    options("cpu_shared_set", "0,3", "compute")
    first, second = host().cells
    assert (first.cpus, second.cpus) == ([0], [3])


@pytest.mark.parametrize(("name", "value", "group"), [
    ("cpu_dedicated_set", "0-x", "compute"), ("cpu_dedicated_set", "64-70", "compute"),
    ("reserved_huge_pages", ["node:0"], None), ("cpu_shared_set", "0-7", "compute")])
def test_invalid_cpu_or_page_option_is_reported_by_name(options: Any, name: str, value: Any, group: str | None) -> None:
    options("cpu_dedicated_set", "4-5", "compute")
    options(name, value, group)
    with pytest.raises(exception.InvalidInput, match=name):
        host()


def _pci(name: str, bus: int, function: int, inside: str = "", vendor: str = "0x8086") -> str:
    return (f"<device><name>{name}</name><parent>computer</parent><capability type='pci'><domain>0</domain>"
            f"<bus>{bus}</bus><slot>0</slot><function>{function}</function><product id='0x10ca'>x</product>"
            f"<vendor id='{vendor}'>y</vendor>{inside}</capability></device>")


NODE_DEVICES = [
    _pci("pci_1", 129, 0, "<capability type='virt_functions' maxCount='7'><address domain='0x0000' bus='0x81' "
                          "slot='0x00' function='0x1'/></capability><numa node='1'/>"),
    _pci("pci_2", 129, 1, "<capability type='phys_function'><address domain='0x0000' bus='0x81' slot='0x00' "
                          "function='0x0'/></capability><numa node='1'/>"),
    _pci("pci_3", 1, 0, "<capability type='pci-bridge'/>"), _pci("pci_4", 2, 0, vendor="0x10de"),
    "<device><name>net_eth1</name><parent>pci_4</parent><capability type='net'><interface>eth1</interface>"
    "</capability></device>"]


def test_pci_devices_are_read_from_libvirt() -> None:
    found = capabilities.chosen(NODE_DEVICES, pci_spec.parse(["{}"]))
    assert found == [
        PciDevice(address="0000:02:00.0", vendor_id="10de", product_id="10ca"),
        PciDevice(address="0000:81:00.0", vendor_id="8086", product_id="10ca", dev_type=pci.PF, numa_node=1),
        PciDevice(address="0000:81:00.1", vendor_id="8086", product_id="10ca", dev_type=pci.VF, numa_node=1,
                  parent="0000:81:00.0")]
    [named] = capabilities.chosen(NODE_DEVICES, pci_spec.parse(['{"devname": "eth1"}']))
    assert named.address == "0000:02:00.0"


# --- the guest -------------------------------------------------------------------------------------
def settings(**changes: Any) -> Settings:
    return dataclasses.replace(with_cells(HOST, host()), **changes)


PINNED = {"hw:cpu_policy": "dedicated"}


def pinned(*, page: int | None = None, devices: list[GuestDevice] | None = None, **values: Any) -> Instance:
    """Return a server with two NUMA cells, with a pinned and a floating CPU per cell."""
    both = [GuestCell(id=0, cpus=[1], pcpus=[0], memory_mb=256, host_cell=1, pinning={0: 6}, reserved_cpus=[2],
                      pagesize_kb=page),
            GuestCell(id=1, cpus=[3], pcpus=[2], memory_mb=256, host_cell=0, pinning={2: 4}, pagesize_kb=4)]
    return server(PINNED, flavor={"vcpus": 4, "memory_mb": 512}, pci_devices=devices,
                  numa_topology=GuestTopology(cells=both, **values))


def attributes(root: ET.Element, path: str) -> list[dict[str, str]]:
    return [dict(item.attrib) for item in root.findall(path)]


def test_guest_is_pinned_to_its_cpus_and_memory(options: Any) -> None:
    options("cpu_dedicated_set", "4-7", "compute")
    options("cpu_shared_set", "0-3", "compute")
    domain = define(pinned(page=2048), host=settings())
    assert attributes(domain, "cputune/vcpupin") == [
        {"vcpu": "0", "cpuset": "6"}, {"vcpu": "1", "cpuset": "2-3"}, {"vcpu": "2", "cpuset": "4"},
        {"vcpu": "3", "cpuset": "0-1"}]
    assert attributes(domain, "cputune/emulatorpin") == [{"cpuset": "0-4,6"}]
    assert attributes(domain, "numatune/*") == [
        {"mode": "strict", "nodeset": "0-1"}, {"cellid": "0", "mode": "strict", "nodeset": "1"},
        {"cellid": "1", "mode": "strict", "nodeset": "0"}]
    assert attributes(domain, "memoryBacking/hugepages/page") == [{"size": "2048", "unit": "KiB", "nodeset": "0"}]
    assert attributes(domain, "cpu/numa/cell") == [
        {"id": "0", "cpus": "0-1", "memory": "262144", "unit": "KiB"},
        {"id": "1", "cpus": "2-3", "memory": "262144", "unit": "KiB"}]


@pytest.mark.parametrize(("policy", "cpuset"), [("isolate", "2"), ("share", "0-3"), ("", "0-4,6")])
def test_emulator_threads_follow_their_policy(options: Any, policy: str, cpuset: str) -> None:
    options("cpu_dedicated_set", "4-7", "compute")
    options("cpu_shared_set", "0-3", "compute")
    domain = define(pinned(emulator_policy=policy), host=settings())
    assert attributes(domain, "cputune/emulatorpin") == [{"cpuset": cpuset}]


def test_guest_without_cells_runs_on_shared_cpus_only(options: Any) -> None:
    assert "cpuset" not in define(server(), host=settings()).find("vcpu").attrib  # type: ignore[union-attr]
    options("cpu_dedicated_set", "4-7", "compute")
    options("cpu_shared_set", "0-3", "compute")
    domain = define(server(), host=settings())
    assert attributes(domain, "vcpu") == [{"cpuset": "0-3"}]
    assert domain.find("cputune") is None


def gpu(address: str = "0000:82:1f.3", **tags: str) -> GuestDevice:
    return GuestDevice(alias="gpu", device=PciDevice(address=address, vendor_id="10de", product_id="20b0", tags=tags))


def test_pci_devices_are_passed_through() -> None:
    domain = define(pinned(devices=[gpu(), gpu("0001:02:00.0", managed="no")]), host=settings())
    assert attributes(domain, "devices/hostdev") == [
        {"mode": "subsystem", "type": "pci", "managed": "yes"}, {"mode": "subsystem", "type": "pci", "managed": "no"}]
    assert attributes(domain, "devices/hostdev/source/address") == [
        {"domain": "0x0000", "bus": "0x82", "slot": "0x1f", "function": "0x3"},
        {"domain": "0x0001", "bus": "0x02", "slot": "0x00", "function": "0x0"}]


@pytest.mark.parametrize("cpu_mode", ["host-model", None])
def test_definition_with_dedicated_resources_is_valid(options: Any, cpu_mode: str | None) -> None:
    if not os.path.exists(SCHEMA):
        pytest.skip("libvirt's schemas are not installed")
    options("cpu_dedicated_set", "4-7", "compute")
    schema = etree.RelaxNG(etree.parse(pathlib.Path(SCHEMA)))
    for instance in (pinned(page=2048, devices=[gpu()]), server()):
        text = domain_xml(instance, DISKS, settings(cpu_mode=cpu_mode))
        schema.assertValid(etree.fromstring(text))


def test_hostdev_address_in_the_guest_is_stable() -> None:
    first = define(pinned(devices=[gpu()]), host=settings())
    device = first.find("devices/hostdev")
    assert device is not None
    ET.SubElement(device, "address", type="pci", domain="0x0000", bus="0x00", slot="0x09", function="0x0")
    text = domain_xml(pinned(devices=[gpu("0000:99:00.0")]), DISKS, settings(), ET.tostring(first, encoding="unicode"))
    again = ET.fromstring(text)
    assert attributes(again, "devices/hostdev/address")[0]["slot"] == "0x09"
    assert attributes(again, "devices/hostdev/source/address")[0]["bus"] == "0x99"


def test_server_without_its_promised_resources_is_refused() -> None:
    with pytest.raises(exception.InvalidInput, match="hw:cpu_policy=dedicated"):
        define(server(PINNED), host=settings())
    with pytest.raises(exception.InvalidInput, match="pci_passthrough:alias"):
        define(server({"pci_passthrough:alias": "gpu:1"}), host=settings())


def test_live_migrated_guest_is_pinned_by_its_destination(options: Any) -> None:
    options("cpu_dedicated_set", "4-7", "compute")
    here, there = pinned(page=2048), pinned()
    assert there.numa_topology is not None
    there.numa_topology.cells[0].pinning = {0: 7}
    text = migration_xml.for_destination(domain_xml(here, DISKS, settings()), domain_xml(there, DISKS, settings()))
    root = ET.fromstring(text)
    assert attributes(root, "cputune/vcpupin")[0] == {"vcpu": "0", "cpuset": "7"}
    assert root.find("memoryBacking") is None
    plain = migration_xml.for_destination(domain_xml(server(), DISKS, settings(shared_cpus=(1,))),
                                          domain_xml(server(), DISKS, settings(shared_cpus=(2,))))
    assert attributes(ET.fromstring(plain), "vcpu") == [{"cpuset": "2"}]
    assert Definition(plain).disks


def test_live_migrated_guest_has_its_memory_in_the_cells_of_its_destination() -> None:
    here, there = pinned(), pinned()
    assert there.numa_topology is not None
    there.numa_topology.cells[0].host_cell = 0
    text = migration_xml.for_destination(domain_xml(here, DISKS, settings()), domain_xml(there, DISKS, settings()))
    assert attributes(ET.fromstring(text), "numatune/*") == [
        {"mode": "strict", "nodeset": "0"}, {"cellid": "0", "mode": "strict", "nodeset": "0"},
        {"cellid": "1", "mode": "strict", "nodeset": "0"}]
