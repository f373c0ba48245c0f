"""The interface of a hypervisor driver.

:mod:`nova.operations.framework.guest_driver` has the methods that steps of operations use, and rules for all methods.
This module adds the methods that nova-compute itself needs.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

from nova import exception
from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.objects.images.image import Image
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.guest import Diagnostics, GuestStatus
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import GuestDriver


@dataclasses.dataclass(frozen=True)
class Disks:
    """The local files from which a guest boots: cached images and extras.

    ``root``: the cached base image (None: no image). ``kernel``, ``ramdisk``: of a kernel/ramdisk/machine trio.
    ``config_drive``: path of a complete image file. ``alone``: the root disk is a full copy without a base image,
    because the image does not belong to the server and is deleted soon.
    """

    root: str | None = None
    root_format: str = "qcow2"
    alone: bool = False
    kernel: str | None = None
    ramdisk: str | None = None
    config_drive: str | None = None


@dataclasses.dataclass(frozen=True)
class HostCpu:
    """CPU times of a host since its boot, summed over all CPUs, in ns, and the CPU frequency in MHz."""

    frequency: int = 0
    user: int = 0
    kernel: int = 0
    idle: int = 0
    iowait: int = 0


def rescue_disk_gb(instance: Instance) -> int:
    """Return the maximum size in GiB of a rescue disk; 0: images of any size, as the flavor allows."""
    return int(CONF.compute.rescue_disk_limit_gb) if instance.volume_backed else instance.flavor.root_gb


# Called with a GuestStatus when a guest changed by itself (for example stopped from inside, or crashed).
EventHandler = Callable[[GuestStatus], None]


class Driver(GuestDriver):
    """The connection of a nova-compute to its hypervisor, which may have several nodes.

    ``capabilities``: names that nova-compute and the API check: console_output, diagnostics, pause, suspend,
    attach_volume, attach_interface, move (cold), live_migration, snapshot. Methods without their capability raise
    NotImplementedHere.
    """

    capabilities: frozenset[str] = frozenset()
    # False if guests do not use cached images (virtual hosts).
    needs_images = True
    # True if the hosts exist in memory only, so that one machine can have many.
    virtual = False

    def __init__(self, host: str) -> None:
        self.host = host
        # Called once when the hypervisor becomes unreachable.
        self.on_unreachable: Callable[[exception.NovaException], None] = lambda _error: None

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

    @abc.abstractmethod
    def nodes(self) -> list[ComputeNode]:
        """Return the nodes with current inventories (total, reserved, ratio, units) and traits."""

    def host_cpu(self) -> HostCpu:
        """Return the current CPU times. Called by monitors, if enabled."""
        raise exception.NotImplementedHere(what="measure the CPU of the host")

    # --- life of a guest -------------------------------------------------------------------
    def check(self, instance: Instance) -> None:
        """Check flavor and image before anything is created. Raises InvalidInput, which names the unsupported property.
        """

    @abc.abstractmethod
    def prepare(self, instance: Instance, disks: Disks) -> None:
        """Create the guest's disks: an overlay on ``disks.root`` of size flavor.root_gb, ephemeral disks, swap and
        config drive.

        Existing disks are kept and taken over, also another host's disks on shared storage. Raises InvalidDiskInfo,
        FlavorDiskTooSmall, DiskFull, and the errors of check().
        """

    @abc.abstractmethod
    def spawn(self, instance: Instance, disks: Disks, paused: bool = False) -> None:
        """Define and start the guest on prepared disks, connected volumes and plugged interfaces.

        ``paused``: the guest gets its devices but does not run until unpause().
        """

    def rebuild(self, instance: Instance, disks: Disks, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        """Shut the guest down (see power_off()) and replace its local disks; the guest is then undefined.

        ``keep_ephemerals``: keep ephemeral disks. ``token`` identifies the new disks: a repeated call keeps them. The
        old disks are kept until all new ones exist. Succeeds without a guest or disks. Raises the errors of prepare().
        """
        raise exception.NotImplementedHere(what="rebuild servers")

    def rescue(self, instance: Instance, image: Image, disks: Disks, timeout: int = 0) -> None:
        """Shut the guest down (see power_off()) and start it from a disk made from ``image``, with its own disks
        attached.

        A guest that is rescued already is restarted. Raises the errors of prepare(), and InstanceNotRescuable for a
        disk larger than rescue_disk_gb().
        """
        raise exception.NotImplementedHere(what="rescue servers")

    # --- by uuid alone --------------------------------------------------------------------------
    def stop_guest(self, uuid: str) -> None:
        """Power off a guest of which only the uuid is known; its disks are kept. Succeeds if the guest does not exist.
        """
        raise exception.NotImplementedHere(what="stop unknown guests")

    # --- status ----------------------------------------------------------------------------
    @abc.abstractmethod
    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        """Return the end of the serial console log, which is kept across reboots. Raises ConsoleLogUnavailable."""

    def console_address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        """Return the address of the running guest's console, or None if it has none.

        ``protocol``: vnc, spice or serial (the first port). Raises GuestNotFound, GuestNotRunning.
        """
        raise exception.NotImplementedHere(what=f"open {protocol} consoles")

    def diagnostics(self, instance: Instance) -> Diagnostics:
        """Return the current diagnostics of the guest. Raises GuestNotFound."""
        raise exception.NotImplementedHere(what="show diagnostics")

    def traces(self) -> set[str]:
        """Return the uuids of all guests with any remains on this host: a definition, a disk or a directory."""
        return {guest.uuid for guest in self.guests()}

    def used_images(self) -> Sequence[str]:
        """Return the paths of cached base images that guests use."""
        return ()
