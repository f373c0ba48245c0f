"""The report of the compute node: inventories, ratios, reservations, traits, host information."""

import math
import os
import shutil
import socket
import subprocess
import uuid

import libvirt

from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU, ComputeNode, Inventory, Provider
from nova.objects.requirements.requested_resources import PCPU
from nova.virt.driver import HostCpu
from nova.virt.images.imagecache import ImageCache
from nova.virt.libvirt.files import disks
from nova.virt.libvirt.node import dedicated_resources, traits
from nova.virt.libvirt.node.capabilities import Capabilities

_GIB = 1 << 30
# Ids of nodes are derived from the names of host and node, so that a lost file never creates a second node.
_NODES = uuid.UUID("6a1e3c52-6f0f-4bd4-9c56-6b1a0a2a4f5e")


def take(connection: libvirt.virConnect, host: str, capabilities: Capabilities) -> ComputeNode:
    """Return the node with current values."""
    _arch, memory, cpus, *_rest = connection.getInfo()
    name = node_name(host, connection.getHostname())
    identity = node_uuid(host, name)
    usage = shutil.disk_usage(CONF.instances_path)
    shared, dedicated = _cpus(capabilities, cpus)
    inventories = {
        VCPU: _inventory(shared, CONF.reserved_host_cpus, CONF.cpu_allocation_ratio, CONF.initial_cpu_allocation_ratio),
        PCPU: _inventory(dedicated, 0, 1.0, 1.0),
        MEMORY_MB: _inventory(memory, CONF.reserved_host_memory_mb, CONF.ram_allocation_ratio,
                              CONF.initial_ram_allocation_ratio),
        DISK_GB: _inventory(usage.total // _GIB, _reserved_disk(usage.total), CONF.disk_allocation_ratio,
                            CONF.initial_disk_allocation_ratio)}
    return ComputeNode(
        uuid=identity, host=host, hypervisor_hostname=name, hypervisor_type=connection.getType(),
        hypervisor_version=connection.getVersion(), host_ip=CONF.my_ip, cpu_info=capabilities.cpu_info,
        supported_instances=_supported(capabilities), uptime=_uptime(),
        numa_topology=capabilities.cells, pci_devices=dedicated_resources.pci_devices(connection),
        disk_available_least=(usage.free - disks.promised_bytes()) // _GIB,
        provider=Provider(uuid=identity, name=name, inventories={
            resource_class: inventory for resource_class, inventory in inventories.items() if inventory.total},
                          traits=traits.of_node(capabilities)))


def _supported(capabilities: Capabilities) -> list[tuple[str, str, str]]:
    """Return what guests of this host may be: KVM's only where the driver uses KVM, of architectures it offers."""
    offered = {capabilities.arch, *(architecture.name for architecture in capabilities.foreign)}
    kinds = {"kvm", "qemu"} if CONF.libvirt.virt_type == "kvm" else {CONF.libvirt.virt_type}
    return [triple for triple in capabilities.guests if triple[0] in offered and triple[1] in kinds]


def cpu(connection: libvirt.virConnect) -> HostCpu:
    """Return the host's CPU frequency and CPU times. A time that the host does not report is 0."""
    times = connection.getCPUStats(libvirt.VIR_NODE_CPU_STATS_ALL_CPUS)
    return HostCpu(frequency=connection.getInfo()[3], **{kind: times.get(kind, 0) for kind in (
        "user", "kernel", "idle", "iowait")})


def _cpus(capabilities: Capabilities, online: int) -> tuple[int, int]:
    if capabilities.cells is None or not (CONF.compute.cpu_shared_set or CONF.compute.cpu_dedicated_set):
        return online, 0
    cells = capabilities.cells.cells
    return sum(len(cell.cpus) for cell in cells), sum(len(cell.pcpus) for cell in cells)


def _reserved_disk(total: int) -> int:
    """Return the GiB of ``total`` bytes reserved for the host (reserved_host_disk_mb) and for the image cache."""
    for_guests = max(0, total - ImageCache().space.reserved()) // _GIB
    return min(total // _GIB, total // _GIB - for_guests + math.ceil(int(CONF.reserved_host_disk_mb) / 1024))


def node_name(host: str, machine: str) -> str:
    """Return the machine's name in libvirt, or ``host`` if the host was configured with another name (several computes
    share a machine and need different nodes)."""
    short = socket.gethostname().partition(".")[0]
    return machine if host.partition(".")[0] == short else host


def node_uuid(host: str, name: str) -> str:
    """Return the id in ``state_path``/compute_id if an operator stored one, else one derived from the names."""
    try:
        with open(os.path.join(CONF.state_path, "compute_id"), encoding="utf-8") as file:
            return str(uuid.UUID(file.read().strip()))
    except FileNotFoundError:
        return str(uuid.uuid5(_NODES, f"{host}\n{name}"))


def _inventory(total: int, reserved: int, ratio: float | None, initial: float) -> Inventory:
    # 0 counts as unset, as in earlier releases.
    return Inventory(total=total, reserved=reserved, ratio=ratio or initial, max_unit=max(total, 1))


def _uptime() -> str | None:
    try:
        done = subprocess.run(["uptime"], capture_output=True, text=True, timeout=10, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
