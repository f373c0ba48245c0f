"""The VMware driver: guests are machines in one cluster of a vCenter server.

A nova-compute has one node, the cluster; vCenter chooses the host of each guest. The driver uses vCenter's SOAP API,
and the datastores through HTTPS. The machine of nova-compute has files of guests only while they are transferred."""

import math
import uuid as uuidlib
from typing import Any

from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU, ComputeNode, Inventory
from nova.virt import host_report
from nova.virt.driver import Driver, EventHandler
from nova.virt.vmware.cold_migration import ColdMigration
from nova.virt.vmware.events import Watcher
from nova.virt.vmware.guests import Guests
from nova.virt.vmware.roles import Consoles, Disks, Interfaces, Power, Rescue, Snapshots, Volumes
from nova.virt.vmware.specs import TRAITS

_GIB, _MIB = 1 << 30, 1 << 20
# Ids of nodes are derived from the id of the cluster, which is unique in all vCenter servers.
_NODES = uuidlib.UUID("0f9d8a3f-55f4-4f5e-8d46-0ccf0c1e0a55")


class VmwareDriver(Driver):
    """The driver of one cluster. Actions on one guest are serialized, with two exceptions: no action waits for a guest
    that shuts down slowly, and a delete or hard reboot does not wait for an action that hangs."""

    capabilities = frozenset({"console_output", "diagnostics", "suspend", "attach_volume", "attach_interface", "move",
                              "snapshot"})
    plugs_interfaces = False

    def __init__(self, host: str) -> None:
        self._guests = guests = Guests(host)
        super().__init__(host=host, guests=guests, disks=Disks(guests), power=Power(guests), consoles=Consoles(guests),
                         rescue=Rescue(guests), snapshots=Snapshots(guests), volumes=Volumes(guests),
                         interfaces=Interfaces(guests), cold_migration=ColdMigration(guests))
        self._watcher = Watcher(guests.cluster)

    def start(self, on_event: EventHandler) -> None:
        self._guests.vcenter.start()
        try:
            self._guests.cluster.start()
        except BaseException:
            self._guests.vcenter.stop()
            raise
        self._guests.machines.images.remove_conversions()
        self._watcher.lost = lambda error: self.on_unreachable(error)
        self._watcher.start(on_event)

    def stop(self) -> None:
        self._watcher.stop()
        self._guests.vcenter.stop()

    def boot_id(self) -> str:
        """Return the id of vCenter, which never changes: guests survive a boot of the machine of nova-compute."""
        return self._guests.vcenter.uuid

    def nodes(self) -> list[ComputeNode]:
        cluster, about = self._guests.cluster, self._guests.vcenter.content.about
        hosts = list(cluster.hosts().values())
        datastores = cluster.datastores(hosts)
        name = cluster.node_name
        identity = str(uuidlib.uuid5(_NODES, name))
        free = max((datastore.free for datastore in datastores), default=0)
        return [ComputeNode(
            uuid=identity, host=self.host, hypervisor_hostname=name, hypervisor_type="VMware vCenter Server",
            hypervisor_version=_version(about.version), host_ip=CONF.vmware.host_ip, cpu_info=_cpu_info(hosts),
            supported_instances=[("x86_64", "vmware", "hvm"), ("i686", "vmware", "hvm")], uptime=None,
            disk_available_least=free // _GIB,
            provider=host_report.provider(identity, name, _inventories(hosts, datastores), TRAITS))]


def _inventories(hosts: list[dict[str, Any]], datastores: list[Any]) -> dict[str, Inventory]:
    """Return the sums over all hosts and datastores. max_unit is the size of the largest host or datastore."""
    cpus = [int(host["summary.hardware"].numCpuThreads) for host in hosts]
    memory = [int(host["summary.hardware"].memorySize) // _MIB for host in hosts]
    disks = [datastore.capacity // _GIB for datastore in datastores]
    result = {
        VCPU: host_report.inventory(sum(cpus), CONF.reserved_host_cpus, CONF.cpu_allocation_ratio,
                                    CONF.initial_cpu_allocation_ratio),
        MEMORY_MB: host_report.inventory(sum(memory), CONF.reserved_host_memory_mb, CONF.ram_allocation_ratio,
                                         CONF.initial_ram_allocation_ratio),
        DISK_GB: host_report.inventory(sum(disks), math.ceil(CONF.reserved_host_disk_mb / 1024),
                                       CONF.disk_allocation_ratio, CONF.initial_disk_allocation_ratio)}
    for name, sizes in ((VCPU, cpus), (MEMORY_MB, memory), (DISK_GB, disks)):
        result[name].max_unit = max([1, *sizes])
        result[name].reserved = min(result[name].reserved, result[name].total)
    return result


def _cpu_info(hosts: list[dict[str, Any]]) -> dict[str, object]:
    hardware = [host["summary.hardware"] for host in hosts]
    return {"arch": "x86_64", "model": sorted({item.cpuModel for item in hardware}),
            "vendor": sorted({item.vendor for item in hardware}), "features": [],
            "topology": {"cores": sum(item.numCpuCores for item in hardware), "sockets": sum(
                item.numCpuPkgs for item in hardware), "threads": sum(item.numCpuThreads for item in hardware)}}


def _version(text: str) -> int:
    """Return a version as a number: 6.5.0 -> 6005000."""
    numbers = [int(part) for part in text.split(".")[:3] if part.isdigit()]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major * 1_000_000 + minor * 1_000 + patch
