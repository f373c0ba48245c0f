"""Compute nodes and their resources: providers, inventories, allocations."""

from typing import Any

from nova.objects.base import Object
from nova.objects.dedicated_resources.numa import HostTopology
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.hosts.metric import Metric
from nova.objects.hosts.service import Service

VCPU = "VCPU"
MEMORY_MB = "MEMORY_MB"
DISK_GB = "DISK_GB"


class Inventory(Object, kw_only=True):
    """The inventory of a resource class. Room for a claim: (total - reserved) * ratio - used."""

    total: int
    reserved: int = 0
    ratio: float = 1.0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    used: int = 0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.ratio)


class Provider(Object, kw_only=True):
    """A resource provider in the provider tree of a host."""

    uuid: str
    name: str
    parent_uuid: str | None = None
    inventories: dict[str, Inventory] = {}
    traits: list[str] = []


class ComputeNode(Object, kw_only=True):
    """A hypervisor node as reported by its driver and shown by the API.

    ``provider`` is the root provider and has the node's uuid; ``children``: its sub-providers (GPUs, ...).
    ``disk_available_least`` and other disk sizes in GiB, memory in MiB.
    """

    id: int = 0
    uuid: str = ""
    host: str
    hypervisor_hostname: str
    hypervisor_type: str
    hypervisor_version: int
    host_ip: str = ""
    cpu_info: dict[str, Any] = {}
    # (architecture, hypervisor type, vm mode) triples
    supported_instances: list[tuple[str, str, str]] = []
    disk_available_least: int | None = None
    uptime: str | None = None
    provider: Provider
    children: list[Provider] = []
    # None: the driver reports no topology, so nothing can be pinned on the node.
    numa_topology: HostTopology | None = None
    # The devices that may be assigned to guests.
    pci_devices: list[PciDevice] | None = None
    # None: nothing is measured.
    metrics: list[Metric] | None = None
    # Maintained by the conductor, not reported:
    service_id: int = 0
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    generation: int = 0
    service: Service | None = None

    def inventory(self, resource_class: str) -> Inventory:
        return self.provider.inventories.get(resource_class, Inventory(total=0))
