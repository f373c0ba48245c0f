"""Real guests with dedicated CPUs and a NUMA cell."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nova.conf import CONF
from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import AllocationRatios, DedicatedRequest, GuestDedicatedResources
from nova.objects.requirements.guest_numa import guest_topology
from nova.objects.requirements.requested_resources import PCPU
from tests.integration.libvirt_fixtures import PrivateLibvirt, kernel_disks, needs_libvirt, server, wait_for_console

pytestmark = needs_libvirt


@pytest.fixture(name="events")
def events_fixture() -> list[Any]:
    return []


@pytest.fixture(name="cpus")
def cpus_fixture(state: pathlib.Path) -> Iterator[tuple[int, int]]:
    """Return the shared and the dedicated CPU: the first two CPUs of this machine."""
    CONF.set_override("cpu_shared_set", "0", "compute")
    CONF.set_override("cpu_dedicated_set", "1", "compute")
    yield 0, 1
    CONF.clear_override("cpu_shared_set", "compute")
    CONF.clear_override("cpu_dedicated_set", "compute")


def domain(daemon: PrivateLibvirt, instance: Any) -> ET.Element:
    return ET.fromstring(daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid))


def test_guest_is_pinned_to_its_dedicated_cpu(cpus: tuple[int, int], driver: Any, libvirt_daemon: PrivateLibvirt,
                                              guest_image: pathlib.Path) -> None:
    shared, dedicated = cpus
    [node] = driver.nodes()
    assert {name: node.inventory(name).total for name in ("VCPU", PCPU)} == {"VCPU": 1, PCPU: 1}
    instance = server(specs={"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "share"})
    topology = guest_topology(instance.flavor, instance.image)
    has = fitting.choose(node.numa_topology, node.pci_devices, [], DedicatedRequest(topology, ()), AllocationRatios())
    assert has is not None
    instance = msgspec.structs.replace(instance, numa_topology=has.numa_topology)
    assert fitting.choose(node.numa_topology, None, [GuestDedicatedResources(numa_topology=has.numa_topology)],
                          DedicatedRequest(topology, ()), AllocationRatios()) is None
    disks = kernel_disks(guest_image)
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    wait_for_console(driver, instance, b"Linux version", seconds=300)
    defined = domain(libvirt_daemon, instance)
    assert [dict(pin.attrib) for pin in defined.findall("cputune/vcpupin")] == [{"vcpu": "0", "cpuset": str(dedicated)}]
    assert [dict(pin.attrib) for pin in defined.findall("cputune/emulatorpin")] == [{"cpuset": str(shared)}]
    told = libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "vcpuinfo", instance.uuid)
    assert f"CPU:            {dedicated}" in told
    plain = server()
    driver.disks.prepare(plain, disks)
    driver.guests.spawn(plain, disks)
    affinity = libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "vcpuinfo", plain.uuid, "--pretty")
    assert "CPU Affinity:   0 (out of" in affinity
