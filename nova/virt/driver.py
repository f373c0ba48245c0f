"""The interface of a hypervisor driver: idempotent verbs on a described server ("make it so").

Every verb may be called again after it half ran or fully ran, and leaves the same world. Errors:
GuestNotFound (no such guest), HypervisorUnavailable (try later), NovaException subclasses with a
message that a user can read; anything else counts as an unexpected driver error.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from nova.objects.compute import ComputeNode, GuestStatus
from nova.objects.instance import Instance


@dataclasses.dataclass(frozen=True)
class Disks:
    """What a guest boots from: local files that the image cache has made ready, and extras.

    ``root`` is the cached base image (None: no image); kernel and ramdisk belong to a
    kernel/ramdisk/machine trio. ``config_drive`` is the path of a finished image file.
    """

    root: str | None = None
    root_format: str = "qcow2"
    kernel: str | None = None
    ramdisk: str | None = None
    config_drive: str | None = None


# Called with a GuestStatus when a guest changed by itself (stopped from inside, crashed...).
EventHandler = Callable[[GuestStatus], None]


class Driver(abc.ABC):
    """One hypervisor connection of a nova-compute; several nodes are possible.

    ``capabilities`` are names that the compute manager and the API look at.
    """

    capabilities: frozenset[str] = frozenset()
    # Whether guests stand on images of the cache (virtual hosts do not).
    needs_images = True

    def __init__(self, host: str) -> None:
        self.host = host

    @classmethod
    def of_all_hosts(cls) -> Sequence[Driver]:
        """A driver for each of the hosts that this process plays; none: it serves the one it runs on."""
        return ()

    @abc.abstractmethod
    def start(self, on_event: EventHandler) -> None:
        """Connect and begin to report events; returns when the first inventory can be taken."""

    def stop(self) -> None:
        """Stop reporting events; guests run on."""

    @abc.abstractmethod
    def nodes(self) -> list[ComputeNode]:
        """The nodes with inventories (total, reserved, ratio, units) and traits, taken now."""

    # --- life of a guest -------------------------------------------------------------------
    @abc.abstractmethod
    def prepare(self, instance: Instance, disks: Disks) -> None:
        """Make the guest's disks: an overlay on ``disks.root`` grown to flavor.root_gb, ephemeral,
        swap, config drive. Raises InvalidDiskInfo, FlavorDiskTooSmall, DiskFull."""

    @abc.abstractmethod
    def spawn(self, instance: Instance, disks: Disks) -> None:
        """Define and start the guest on prepared disks and plugged interfaces."""

    @abc.abstractmethod
    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        """Stop the guest at once and remove it, its disks and its console log. No guest: fine."""

    @abc.abstractmethod
    def power_on(self, instance: Instance) -> None:
        """Start a stopped guest (its definition is renewed from ``instance``)."""

    @abc.abstractmethod
    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        """Ask the guest to shut down and wait ``timeout`` seconds, then pull the plug (0: at once)."""

    @abc.abstractmethod
    def reboot(self, instance: Instance, hard: bool, timeout: int = 0) -> None:
        """Soft: from inside, falling back to hard after ``timeout`` seconds. Hard: power cycle with
        a renewed definition; works from any state."""

    @abc.abstractmethod
    def pause(self, instance: Instance) -> None: ...

    @abc.abstractmethod
    def unpause(self, instance: Instance) -> None: ...

    @abc.abstractmethod
    def suspend(self, instance: Instance) -> None:
        """Save memory to disk and stop."""

    @abc.abstractmethod
    def resume(self, instance: Instance) -> None:
        """Continue from saved memory; a guest without it is started."""

    # --- looking ----------------------------------------------------------------------------
    @abc.abstractmethod
    def guests(self) -> list[GuestStatus]:
        """Every guest of Nova on this host, running or not. Other people's guests are not listed."""

    @abc.abstractmethod
    def power_state(self, uuid: str) -> int:
        """Raises GuestNotFound."""

    @abc.abstractmethod
    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        """The end of the serial console log, kept across reboots. Raises ConsoleLogUnavailable."""

    def diagnostics(self, instance: Instance) -> dict[str, Any]:
        """Values of the standardised diagnostics (2.48) that this driver knows."""
        return {}

    def traces(self) -> set[str]:
        """The uuids of all guests of which anything is left here: a definition, a disk, a directory."""
        return {guest.uuid for guest in self.guests()}

    def remove_leftovers(self, uuid: str) -> None:
        """Destroy a guest (and its files) that is known by its uuid only."""

    def used_images(self) -> Sequence[str]:
        """Paths of cached base images that guests still stand on."""
        return ()
