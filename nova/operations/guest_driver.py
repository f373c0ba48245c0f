"""The verbs of a hypervisor driver that steps use: idempotent, on a described server ("make it so").

Every verb may be called again after it half ran or fully ran, and leaves the same world. The instance alone describes
the guest: its flavor and image, ``network_info``, and ``block_devices`` with what ``HostVolumes.connect`` returned for
each volume. A volume that is not connected in the description stays as the guest had it on this host. A share
that has a ``path`` there is a directory that the guest gets.

Errors: GuestNotFound (no such guest), HypervisorUnavailable (try later), NovaException subclasses with a
message that a user can read; anything else counts as an unexpected driver error.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Protocol

from nova import exception
from nova.objects.device_address import DeviceAddress
from nova.objects.flavor import Flavor
from nova.objects.guest import DiskImage, GuestStatus
from nova.objects.instance import BlockDevice, Instance
from nova.objects.moves import DiskSource, MigrationProgress, MigrationSource, MigrationTarget
from nova.objects.network import VIF

# Seconds after which a guest's file systems are at rest no longer, whoever wanted it: all that writes in it stands
# still meanwhile.
LONGEST_REST = 60.0


class Cancelled(Protocol):
    """Whether somebody wants a long verb to end: a threading.Event."""

    def is_set(self) -> bool: ...


class GuestDriver(abc.ABC):
    """What a hypervisor driver (:class:`nova.virt.driver.Driver`) does with one guest; what it lacks raises
    NotImplementedHere."""

    # --- life of a guest -------------------------------------------------------------------
    @abc.abstractmethod
    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        """Stop the guest at once and remove it, its disks and its console log. No guest: fine.

        Disks that went to another host (shared storage) are never removed, nor are those that open_disks() set aside.
        """

    @abc.abstractmethod
    def power_on(self, instance: Instance, paused: bool = False) -> None:
        """Start a stopped guest (its definition is renewed from ``instance``); ``paused`` as for spawn()."""

    @abc.abstractmethod
    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        """Ask the guest to shut down and wait ``timeout`` seconds, then pull the plug (0: at once)."""

    @abc.abstractmethod
    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        """Soft: from inside, falling back to hard after ``timeout`` seconds (None: the driver's default, 0: at once).

        Hard: power cycle with a renewed definition; works from any state.
        """

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

    def unrescue(self, instance: Instance) -> None:
        """Undo a rescue: the guest is off, defined as it was before, and nothing is left of what the rescue made.

        One that is not rescued stays as it is.
        """
        raise exception.NotImplementedHere(what="rescue servers")

    def define(self, instance: Instance) -> list[DeviceAddress] | None:
        """Define the guest on prepared disks and connected volumes, and leave it off; returns where it finds its
        devices. None: it runs already, or nobody knows before it does."""
        return None

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        """Where the guest, running or not, finds its interfaces and disks. Raises GuestNotFound."""
        return []

    # --- inside a running guest ---------------------------------------------------------------
    def set_password(self, instance: Instance, password: str) -> None:
        """Change the administrator's password. Raises InstancePasswordSetFailed (nobody in the guest does it)."""
        raise exception.NotImplementedHere(what="set password on instance")

    def trigger_crash_dump(self, instance: Instance) -> None:
        """Send the guest a non-maskable interrupt. Raises GuestNotRunning."""
        raise exception.NotImplementedHere(what="trigger crash dumps")

    # --- snapshots ----------------------------------------------------------------------------
    def snapshot(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        """A file of this host with all of the guest's root disk as it is at one moment; a guest that runs goes on.

        Its file systems are brought to rest for that moment if its image says that it has a guest agent. Again for the
        same image: the same file, until discard_snapshot(). Raises InstanceQuiesceFailed (os_require_quiesce),
        SnapshotFailed, InvalidDiskInfo, DiskFull.
        """
        raise exception.NotImplementedHere(what="take snapshots of servers")

    def discard_snapshot(self, instance: Instance) -> None:
        """Remove what snapshot() made, and end one that was cut short. Nothing there: fine."""
        raise exception.NotImplementedHere(what="take snapshots of servers")

    def quiesce(self, instance: Instance) -> None:
        """The file systems of the running guest are at rest, until unquiesce() or its end.

        Raises InstanceQuiesceFailed (its agent does not do it), GuestNotFound.
        """
        raise exception.NotImplementedHere(what="bring the file systems of servers to rest")

    def unquiesce(self, instance: Instance) -> None:
        """They go on, if they were at rest. No guest: fine."""

    # --- devices ------------------------------------------------------------------------------
    # Live if the guest runs, and always in its definition. Names and addresses of devices last over power cycles.
    def attach_volume(self, instance: Instance, device: BlockDevice) -> None:
        """Give the guest a connected volume under ``device.device_name`` (None: the next free name).

        Whether ``instance`` names the volume already makes no difference.
        """
        raise exception.NotImplementedHere(what="attach volumes")

    def detach_volume(self, instance: Instance, device: BlockDevice) -> None:
        """Take a volume away; when this returns the hypervisor has let go of it. No such volume, no guest: fine.

        Raises DeviceDetachFailed when the guest does not release it in time.
        """
        raise exception.NotImplementedHere(what="detach volumes")

    def swap_volume(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        """Have the running guest go on with ``new``, the same device on another, connected volume of the same size,
        which gets all data of ``old`` while the guest uses them. Has it that already: fine.

        It goes on where a crash cut it short. Raises GuestNotRunning, VolumeSwapFailed; then the guest has ``old``.
        """
        raise exception.NotImplementedHere(what="swap volumes")

    def cancel_swap(self, instance: Instance, old: BlockDevice, new: BlockDevice) -> bool:
        """End what swap_volume() does, or did when this process ended. Returns whether the guest has ``new``: it was
        too late. No guest: it does not."""
        raise exception.NotImplementedHere(what="swap volumes")

    def volume_files(self, instance: Instance, device: BlockDevice) -> list[str]:
        """The names of the files that the guest has of a volume: the one that it writes to, then those below it, the
        newest first. No guest, or one without the volume: none."""
        raise exception.NotImplementedHere(what="look at the files of volumes")

    def snapshot_volume(self, instance: Instance, new: BlockDevice) -> None:
        """Have the running guest write to the file of ``new``, the same device connected by a file that stands on the
        one that it has. Writes it to that already: fine. Its file systems are brought to rest for it, if they can be.

        Raises GuestNotRunning, VolumeSnapshotFailed, InstanceQuiesceFailed (its image says that it has to be); then
        the guest writes to the file that it had.
        """
        raise exception.NotImplementedHere(what="snapshot volumes")

    def merge_volume(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
                     cancelled: Cancelled) -> None:
        """Put the files from ``top`` down to ``base`` together in ``base``, or (None) those from the one that the guest
        writes to down to ``top`` (None: all), which is not put in, in the former. Is it done already: fine.

        It goes on where a crash cut it short. Raises GuestNotRunning, VolumeSnapshotFailed; then the guest has the
        files that it had.
        """
        raise exception.NotImplementedHere(what="merge files of volumes")

    def cancel_merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        """End what merge_volume() does, or did when this process ended. Returns whether it was done. No guest: it was
        not."""
        raise exception.NotImplementedHere(what="merge files of volumes")

    def extend_volume(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        """Have the guest's disk be as large as the volume is to be (GiB); it never becomes smaller. Returns False if
        no guest runs: one sees the size that the volume has when it starts.

        Raises VolumeExtendFailed.
        """
        raise exception.NotImplementedHere(what="extend volumes")

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        """Whether a guest runs whose disk is that large."""
        raise exception.NotImplementedHere(what="extend volumes")

    def attach_interface(self, instance: Instance, vif: VIF) -> None:
        """Give the guest a plugged interface."""
        raise exception.NotImplementedHere(what="attach interfaces")

    def detach_interface(self, instance: Instance, vif: VIF) -> None:
        """Take an interface away (by its MAC address). No such interface, no guest: fine. Raises DeviceDetachFailed."""
        raise exception.NotImplementedHere(what="detach interfaces")

    # --- cold moves -----------------------------------------------------------------------------
    # Source: check_resize, open_disks, then close_disks and confirm_move, or revert_move. Destination: receive_disks,
    # finish_move, power_on; its way back is destroy. Both may be the same host.
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        """While the guest still runs: raises ResizeError when its disks cannot become those of ``flavor``."""

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        """Shut the guest down (as power_off), set its disks aside, and serve them until close_disks().

        The guest is no longer listed here. Again: the same disks, perhaps under another address and key (this
        restarted): the newest answer counts.
        """
        raise exception.NotImplementedHere(what="move servers")

    def close_disks(self, instance: Instance) -> None:
        """Serve the disks no longer; they stay set aside. Nothing is served: fine."""

    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        """Make copies of the disks, and goes on where a crash cut it short. Raises MigrationError, DiskFull."""
        raise exception.NotImplementedHere(what="move servers")

    def finish_move(self, instance: Instance) -> None:
        """Grow the received disks to ``instance.flavor`` and define the guest, stopped.

        Raises ResizeError, DiskFull.
        """
        raise exception.NotImplementedHere(what="move servers")

    def confirm_move(self, instance: Instance) -> None:
        """Remove what open_disks() set aside here. Nothing there: fine."""
        raise exception.NotImplementedHere(what="move servers")

    def revert_move(self, instance: Instance) -> None:
        """Put back what open_disks() set aside and define the guest as ``instance`` says, stopped.

        Before that on the destination: destroy(instance). Nothing set aside, or a guest that is here anyway: fine.
        """

    # --- live migration -------------------------------------------------------------------------
    # check_migration_source (source), prepare_migration (destination), live_migrate (source), finish_migration
    # (destination), destroy(instance, keep_disks=target.shared) (source); after a failure rollback_migration
    # (destination).
    def check_migration_source(self, instance: Instance) -> MigrationSource:
        """Describe the running guest. Raises MigrationPreCheckError when it cannot leave this host.

        What the destination has to copy beforehand is served until live_migrate() or close_disks().
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    def prepare_migration(self, instance: Instance, source: MigrationSource,
                          block: bool | None = None) -> MigrationTarget:
        """Make room for the guest: ``instance`` with volumes and interfaces as they are on this host.

        ``block``: whether disks are to be copied (None: if both hosts do not see the same ones); what they
        are based on comes from the source, too. Raises MigrationPreCheckError (CPU, hypervisor, storage), DiskFull.
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    def live_migrate(self, instance: Instance, target: MigrationTarget,
                     on_progress: Callable[[MigrationProgress], None], cancelled: Cancelled) -> None:
        """Move the running guest; returns when it runs on the destination and is off here.

        A migration that is under way, or was when this process ended, is watched and not begun again; one that is
        over is found over. Raises MigrationCancelled (``cancelled`` was set, or abort_migration() was called) and
        MigrationError; then the guest runs here.
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    def abort_migration(self, uuid: str) -> None:
        """Have live_migrate() end, from any thread. No migration under way: fine."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def force_complete_migration(self, uuid: str) -> None:
        """Have a migration end soon: by post-copy if that is permitted, else by pausing the guest. None: fine."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def finish_migration(self, instance: Instance) -> None:
        """The guest that came over is this host's for good: its definition and its disks. Raises GuestNotFound."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def rollback_migration(self, instance: Instance, target: MigrationTarget) -> None:
        """Remove what prepare_migration() made, and a guest that half came over. Nothing there: fine."""
        raise exception.NotImplementedHere(what="migrate running servers")

    # --- looking ----------------------------------------------------------------------------
    @abc.abstractmethod
    def guests(self) -> list[GuestStatus]:
        """Every guest of Nova on this host, running or not. Other people's guests are not listed, nor is one that a
        migration is just bringing, or took away."""

    @abc.abstractmethod
    def power_state(self, uuid: str) -> int:
        """Raises GuestNotFound, also for a guest that a migration is just bringing; once it came over, it is here."""

    def has_disks(self, instance: Instance) -> bool:
        """Whether this host sees the guest's local disks (an evacuation keeps them then); a guest without any: no."""
        return False

    # --- by uuid alone --------------------------------------------------------------------------
    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        """Remove all traces of a guest from this host, also what a move set aside or made ready; nothing there: fine.
        Disks that went to another host are never removed."""
