"""The interface of a hypervisor driver.

Most of its verbs, and what holds for all of them, are in :mod:`nova.operations.guest_driver`: those that the steps of
operations use. Here is what nova-compute itself needs.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

from nova import exception
from nova.conf import CONF
from nova.objects.console import ConsoleAddress
from nova.objects.guest import Diagnostics, GuestStatus
from nova.objects.image import Image
from nova.objects.instance import Instance
from nova.objects.node import ComputeNode
from nova.operations.guest_driver import GuestDriver


@dataclasses.dataclass(frozen=True)
class Disks:
    """What a guest boots from: local files that the image cache has made ready, and extras.

    ``root`` is the cached base image (None: no image); kernel and ramdisk belong to a
    kernel/ramdisk/machine trio. ``config_drive`` is the path of a finished image file. ``alone``: the root disk stands
    on nothing, since its image is not the server's and will soon be gone.
    """

    root: str | None = None
    root_format: str = "qcow2"
    alone: bool = False
    kernel: str | None = None
    ramdisk: str | None = None
    config_drive: str | None = None


@dataclasses.dataclass(frozen=True)
class HostCpu:
    """What the CPUs of a host have done since its boot, all together, in ns; and how fast they are, in MHz."""

    frequency: int = 0
    user: int = 0
    kernel: int = 0
    idle: int = 0
    iowait: int = 0


def rescue_disk_gb(instance: Instance) -> int:
    """GiB that the disk may have which a server is rescued from; 0: its flavor takes images as large as they are."""
    return int(CONF.compute.rescue_disk_limit_gb) if instance.volume_backed else instance.flavor.root_gb


# Called with a GuestStatus when a guest changed by itself (stopped from inside, crashed...).
EventHandler = Callable[[GuestStatus], None]


class Driver(GuestDriver):
    """One hypervisor connection of a nova-compute; several nodes are possible.

    ``capabilities`` are names that the compute manager and the API look at: console_output, diagnostics, pause,
    suspend, attach_volume, attach_interface, move (cold), live_migration, snapshot. A verb whose capability a driver
    lacks raises NotImplementedHere.
    """

    capabilities: frozenset[str] = frozenset()
    # Whether guests stand on images of the cache (virtual hosts do not).
    needs_images = True
    # Whether its hosts exist in memory only, so that many may live on one machine.
    virtual = False

    def __init__(self, host: str) -> None:
        self.host = host
        # Called once when the hypervisor cannot be reached any more.
        self.on_unreachable: Callable[[exception.NovaException], None] = lambda _error: None

    @classmethod
    def of_all_hosts(cls) -> Sequence[Driver]:
        """A driver for each of the hosts that this process plays; none: it serves the one it runs on."""
        return ()

    @abc.abstractmethod
    def start(self, on_event: EventHandler) -> None:
        """Connect and begin to report events; returns when the first inventory can be taken."""

    def stop(self) -> None:
        """Stop reporting events; guests run on."""

    def boot_id(self) -> str:
        """Another one after each boot of the host; "": nobody knows."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    @abc.abstractmethod
    def nodes(self) -> list[ComputeNode]:
        """The nodes with inventories (total, reserved, ratio, units) and traits, taken now."""

    def host_cpu(self) -> HostCpu:
        """The CPUs now. Monitors ask it, where they are switched on."""
        raise exception.NotImplementedHere(what="measure the CPU of the host")

    # --- life of a guest -------------------------------------------------------------------
    def check(self, instance: Instance) -> None:
        """Look at flavor and image before anything is made. Raises InvalidInput naming the property that cannot be."""

    @abc.abstractmethod
    def prepare(self, instance: Instance, disks: Disks) -> None:
        """Make the guest's disks: an overlay on ``disks.root`` grown to flavor.root_gb, ephemeral,
        swap, config drive. Disks that are there are kept, also another host's on shared storage: they are this
        host's from now on. Raises InvalidDiskInfo, FlavorDiskTooSmall, DiskFull, and what check() raises."""

    @abc.abstractmethod
    def spawn(self, instance: Instance, disks: Disks, paused: bool = False) -> None:
        """Define and start the guest on prepared disks, connected volumes and plugged interfaces.

        ``paused``: it has its devices, and does nothing until unpause().
        """

    def rebuild(self, instance: Instance, disks: Disks, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        """Shut the guest down (as power_off) and give it new disks in place of all its local ones, but for the
        ephemeral ones if these are to be kept; it is not defined then. No guest, no disks: fine.

        ``token`` stands for the new disks: a guest that has them already keeps them. It has its old ones until all
        the new ones are made. Raises what prepare() raises.
        """
        raise exception.NotImplementedHere(what="rebuild servers")

    def rescue(self, instance: Instance, image: Image, disks: Disks, timeout: int = 0) -> None:
        """Shut the guest down (as power_off) and start it from a disk made from ``image``, its own disks beside it.

        A guest that is rescued already is started anew. Raises what prepare() raises, and InstanceNotRescuable for a
        disk of more than rescue_disk_gb().
        """
        raise exception.NotImplementedHere(what="rescue servers")

    # --- by uuid alone --------------------------------------------------------------------------
    def stop_guest(self, uuid: str) -> None:
        """Pull the plug of a guest of which nobody knows more; its disks stay. No guest: fine."""
        raise exception.NotImplementedHere(what="stop unknown guests")

    # --- looking ----------------------------------------------------------------------------
    @abc.abstractmethod
    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        """The end of the serial console log, kept across reboots. Raises ConsoleLogUnavailable."""

    def console_address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        """Where proxies reach the running guest's console: vnc, spice or serial (its first port); None: it has none.

        Raises GuestNotFound, GuestNotRunning.
        """
        raise exception.NotImplementedHere(what=f"open {protocol} consoles")

    def diagnostics(self, instance: Instance) -> Diagnostics:
        """What is known of the guest now. Raises GuestNotFound."""
        raise exception.NotImplementedHere(what="show diagnostics")

    def traces(self) -> set[str]:
        """The uuids of all guests of which anything is left here: a definition, a disk, a directory."""
        return {guest.uuid for guest in self.guests()}

    def used_images(self) -> Sequence[str]:
        """Paths of cached base images that guests still stand on."""
        return ()
