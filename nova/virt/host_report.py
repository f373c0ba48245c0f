"""The parts of the report of a compute node that do not depend on the hypervisor."""

import math
import os
import socket
import subprocess
import uuid
from collections.abc import Collection

from nova.common import files
from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU, Inventory, Provider
from nova.virt.images.imagecache import ImageCache

_GIB = 1 << 30
# Namespace of node ids. They are derived from the names of host and node: a lost compute_id file creates no second node
_NODES = uuid.UUID("6a1e3c52-6f0f-4bd4-9c56-6b1a0a2a4f5e")


def inventories(cpus: int, memory_mb: int, disk_bytes: int) -> dict[str, Inventory]:
    """Return the inventories of CPUs, memory and disk with the configured ratios and reservations."""
    return {
        VCPU: inventory(cpus, CONF.reserved_host_cpus, CONF.cpu_allocation_ratio, CONF.initial_cpu_allocation_ratio),
        MEMORY_MB: inventory(memory_mb, CONF.reserved_host_memory_mb, CONF.ram_allocation_ratio,
                             CONF.initial_ram_allocation_ratio),
        DISK_GB: inventory(disk_bytes // _GIB, _reserved_disk(disk_bytes), CONF.disk_allocation_ratio,
                           CONF.initial_disk_allocation_ratio)}


def inventory(total: int, reserved: int, ratio: float | None, initial: float) -> Inventory:
    """Return an inventory. A ``ratio`` of 0 counts as unset, as in earlier releases."""
    return Inventory(total=total, reserved=reserved, ratio=ratio or initial, max_unit=max(total, 1))


def provider(identity: str, name: str, offered: dict[str, Inventory], traits: Collection[str]) -> Provider:
    """Return the root provider of a node, without empty inventories."""
    return Provider(uuid=identity, name=name, traits=sorted(traits), inventories={
        resource_class: item for resource_class, item in offered.items() if item.total})


def _reserved_disk(total: int) -> int:
    """Return the GiB of ``total`` bytes reserved for the host (reserved_host_disk_mb) and for the image cache."""
    for_guests = max(0, total - ImageCache().space.reserved()) // _GIB
    return min(total // _GIB, total // _GIB - for_guests + math.ceil(int(CONF.reserved_host_disk_mb) / 1024))


def node_name(host: str, machine: str) -> str:
    """Return the name of a node: ``machine``, the name of the machine, unless the option ``host`` has another name.
    Then ``host``, because several nova-compute on one machine need different nodes."""
    return machine if host.partition(".")[0] == socket.gethostname().partition(".")[0] else host


def node_uuid(host: str, name: str) -> str:
    """Return the id in ``state_path``/compute_id if an operator stored one, else one derived from the names."""
    stored = files.text_of(os.path.join(CONF.state_path, "compute_id"))
    return str(uuid.uuid5(_NODES, f"{host}\n{name}") if stored is None else uuid.UUID(stored.strip()))


def uptime() -> str | None:
    """Return the output of the command uptime, or None if the command fails."""
    try:
        done = subprocess.run(["uptime"], capture_output=True, text=True, timeout=10, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
