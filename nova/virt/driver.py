"""The interface of a hypervisor driver.

:mod:`nova.operations.framework.guest_driver` defines the roles, which act on single guests. This module adds the host's
methods."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from nova import exception
from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import GuestDriver


@dataclasses.dataclass(frozen=True)
class HostCpu:
    """CPU times of a host since its boot, summed over all CPUs, in ns, and the CPU frequency in MHz."""

    frequency: int = 0
    user: int = 0
    kernel: int = 0
    idle: int = 0
    iowait: int = 0


def rescue_disk_gb(instance: Instance) -> int:
    """Return the maximum size in GiB of a rescue disk; 0: no limit, since the flavor does not limit the root disk."""
    return int(CONF.compute.rescue_disk_limit_gb) if instance.volume_backed else instance.flavor.root_gb


# Called with the new status of a guest that changed without a request of Nova (for example one that crashed).
EventHandler = Callable[[GuestStatus], None]


@dataclasses.dataclass(kw_only=True, eq=False)
class Driver(GuestDriver, abc.ABC):
    """The connection of a nova-compute to its hypervisor, which may have several nodes. A driver class is called with
    the name of its host and passes its roles to this constructor. A missing required role or method raises TypeError,
    which names the role or method. ``capabilities``: features that nova-compute and the API check: console_output,
    diagnostics, pause, suspend, attach_volume, attach_interface, move (cold migration), live_migration, snapshot, vtpm.
    Methods of a feature that is not declared raise NotImplementedHere. ``on_unreachable``: called once when the
    hypervisor becomes unreachable."""

    capabilities: ClassVar[frozenset[str]] = frozenset()
    # False if guests do not use cached images (virtual hosts).
    needs_images: ClassVar[bool] = True
    # False if the hypervisor plugs the interfaces of guests, so that nova-compute plugs none on its host.
    plugs_interfaces: ClassVar[bool] = True
    # True if the hosts exist in memory only, so that one machine can have many.
    virtual: ClassVar[bool] = False

    host: str
    on_unreachable: Callable[[exception.NovaException], None] = lambda _error: None

    @classmethod
    def of_all_hosts(cls) -> Sequence[Driver]:
        """Return a driver for each virtual host of this process; empty if it serves the real host."""
        return ()

    @abc.abstractmethod
    def start(self, on_event: EventHandler) -> None:
        """Connect to the hypervisor and start reporting events; return when an inventory can be read."""

    def stop(self) -> None:
        """Stop reporting events. Guests keep running."""

    def boot_id(self) -> str:
        """Return an id that changes with each boot of the host, or "" if unknown."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def connector(self) -> dict[str, Any]:
        """Return properties of the host that conductors need, in addition to the properties for access to volumes."""
        return {}

    def shared_nodes(self) -> list[str] | None:
        """Return the uuids of all nodes that this host and other hosts can manage, or None if hosts share no nodes."""
        return None

    def manage(self, nodes: Collection[str]) -> None:
        """Set the shared nodes that this host manages; nodes() reports only these."""

    @abc.abstractmethod
    def nodes(self) -> list[ComputeNode]:
        """Return the nodes with current inventories (total, reserved, ratio, units) and traits."""

    def host_cpu(self) -> HostCpu:
        """Return the current CPU times. Called by monitors, if enabled."""
        raise exception.NotImplementedHere(what="measure the CPU of the host")
