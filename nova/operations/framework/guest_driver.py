"""The driver methods for one guest that steps use. Each method is idempotent and declares a desired state.

A method may be repeated after it ran partly or completely, with the same result. The instance alone describes the
guest: its flavor and image, ``network_info``, and ``block_devices`` with the result of ``HostVolumes.connect`` for each
volume. A volume that is not connected in the description stays as the guest has it on this host. A share with a
``path`` is a host directory that the guest mounts.

Errors: GuestNotFound (no such guest), HypervisorUnavailable (retry later), and other NovaException subclasses with a
message for the user. Any other exception counts as an unexpected driver error.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Protocol

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.networks.network import VIF
from nova.objects.servers.device_address import DeviceAddress
from nova.objects.servers.guest import DiskImage, GuestStatus
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import DiskSource, MigrationProgress, MigrationSource, MigrationTarget

# Seconds after which the quiesced file systems of a guest are thawed in any case: all writers in the guest are blocked
# meanwhile.
QUIESCE_TIMEOUT = 60.0


class Cancelled(Protocol):
    """A threading.Event, set when a long call should end early."""

    def is_set(self) -> bool: ...


class GuestDriver(abc.ABC):
    """The methods of a hypervisor driver (:class:`nova.virt.driver.Driver`) for one guest. Unsupported methods raise
    NotImplementedHere."""

    # --- life of a guest -------------------------------------------------------------------
    @abc.abstractmethod
    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        """Stop the guest at once and remove it, its disks and its console log. Succeeds if the guest does not exist.

        Never removes disks that moved to another host (shared storage) or that open_disks() set aside.
        """

    @abc.abstractmethod
    def power_on(self, instance: Instance, paused: bool = False) -> None:
        """Start a stopped guest with a definition renewed from ``instance``. ``paused``: see spawn()."""

    @abc.abstractmethod
    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        """Request a shutdown of the guest and wait ``timeout`` seconds, then power it off (0: at once)."""

    @abc.abstractmethod
    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        """Reboot the guest, soft or hard.

        Soft: the guest reboots itself, or hard after ``timeout`` seconds (None: the driver's default, 0: at once).
        Hard: power cycle with a renewed definition, from any state.
        """

    @abc.abstractmethod
    def pause(self, instance: Instance) -> None: ...

    @abc.abstractmethod
    def unpause(self, instance: Instance) -> None: ...

    @abc.abstractmethod
    def suspend(self, instance: Instance) -> None:
        """Save the guest's memory to disk and stop the guest."""

    @abc.abstractmethod
    def resume(self, instance: Instance) -> None:
        """Continue the guest from saved memory, or start it if there is none."""

    def unrescue(self, instance: Instance) -> None:
        """Undo a rescue: leave the guest stopped with its previous definition and remove the rescue disks.

        Does nothing if the guest is not rescued.
        """
        raise exception.NotImplementedHere(what="rescue servers")

    def define(self, instance: Instance) -> list[DeviceAddress] | None:
        """Define the guest, stopped, on prepared disks and connected volumes; return its device addresses. Returns None
        if the guest runs already or addresses are only known when it runs."""
        return None

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        """Return the addresses of the guest's interfaces and disks, running or not. Raises GuestNotFound."""
        return []

    # --- inside a running guest ---------------------------------------------------------------
    def set_password(self, instance: Instance, password: str) -> None:
        """Change the administrator's password. Raises InstancePasswordSetFailed if the guest has no agent that supports
        it."""
        raise exception.NotImplementedHere(what="set password on instance")

    def trigger_crash_dump(self, instance: Instance) -> None:
        """Send the guest a non-maskable interrupt. Raises GuestNotRunning."""
        raise exception.NotImplementedHere(what="trigger crash dumps")

    # --- snapshots ----------------------------------------------------------------------------
    def snapshot(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        """Return a file on this host with the guest's root disk at one moment. A running guest continues.

        The file systems are quiesced for that moment if the image declares a guest agent. A repeated call for the same
        image returns the same file, until discard_snapshot(). Raises InstanceQuiesceFailed (os_require_quiesce),
        SnapshotFailed, InvalidDiskInfo, DiskFull.
        """
        raise exception.NotImplementedHere(what="take snapshots of servers")

    def discard_snapshot(self, instance: Instance) -> None:
        """Remove the file of snapshot() and end an interrupted snapshot. Succeeds if there is none."""
        raise exception.NotImplementedHere(what="take snapshots of servers")

    def quiesce(self, instance: Instance) -> None:
        """Quiesce the file systems of the running guest until unquiesce() or the end of the guest.

        Raises InstanceQuiesceFailed (not supported by its agent), GuestNotFound.
        """
        raise exception.NotImplementedHere(what="bring the file systems of servers to rest")

    def unquiesce(self, instance: Instance) -> None:
        """Thaw the guest's file systems if they are quiesced. Succeeds if the guest does not exist."""

    # --- devices ------------------------------------------------------------------------------
    # Devices change in the running guest, if there is one, and in its definition. Names and addresses of devices
    # survive power cycles.
    def attach_volume(self, instance: Instance, device: BlockDevice) -> None:
        """Attach a connected volume to the guest as ``device.device_name`` (None: the next free name).

        It makes no difference whether ``instance`` already lists the volume.
        """
        raise exception.NotImplementedHere(what="attach volumes")

    def detach_volume(self, instance: Instance, device: BlockDevice) -> None:
        """Detach a volume; the hypervisor has released it on return. Succeeds if the volume or the guest is not there.

        Raises DeviceDetachFailed if the guest does not release the volume in time.
        """
        raise exception.NotImplementedHere(what="detach volumes")

    def swap_volume(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        """Copy the data of ``old`` to ``new``, a connected volume of the same size, and switch the running guest to it.

        Succeeds if the guest already uses ``new``. Continues a copy that a crash interrupted. Raises GuestNotRunning,
        VolumeSwapFailed; the guest then uses ``old``.
        """
        raise exception.NotImplementedHere(what="swap volumes")

    def cancel_swap(self, instance: Instance, old: BlockDevice, new: BlockDevice) -> bool:
        """Cancel swap_volume(), also one of a previous process. Returns True if the guest already uses ``new``; False
        without a guest."""
        raise exception.NotImplementedHere(what="swap volumes")

    def volume_files(self, instance: Instance, device: BlockDevice) -> list[str]:
        """Return the names of the volume's files that the guest uses, from the active file down to the base. Empty
        without the guest or the volume."""
        raise exception.NotImplementedHere(what="look at the files of volumes")

    def snapshot_volume(self, instance: Instance, new: BlockDevice) -> None:
        """Switch the running guest to the file of ``new``, an overlay of its current file of the same device.

        Succeeds if the guest already writes to that file. File systems are quiesced for the switch if possible. Raises
        GuestNotRunning, VolumeSnapshotFailed, InstanceQuiesceFailed (required by the image); the guest then keeps its
        previous file.
        """
        raise exception.NotImplementedHere(what="snapshot volumes")

    def merge_volume(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
                     cancelled: Cancelled) -> None:
        """Merge overlay files of a volume.

        With ``base``: commit the files from ``top`` down to ``base`` into ``base``. Without: pull all files between the
        active file and ``top`` (None: all files) into the active file; ``top`` itself is not merged. Succeeds if that
        is done already. Continues a merge that a crash interrupted. Raises GuestNotRunning, VolumeSnapshotFailed; the
        guest then keeps its previous files.
        """
        raise exception.NotImplementedHere(what="merge files of volumes")

    def cancel_merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        """Cancel merge_volume(), also one of a previous process. Returns True if the merge was complete; False without
        a guest."""
        raise exception.NotImplementedHere(what="merge files of volumes")

    def extend_volume(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        """Grow the guest's disk to the volume's future size in GiB; never shrinks it.

        Returns False if no guest runs: a guest reads the size of the volume when it starts. Raises VolumeExtendFailed.
        """
        raise exception.NotImplementedHere(what="extend volumes")

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        """Return True if a guest runs and its disk has at least this size."""
        raise exception.NotImplementedHere(what="extend volumes")

    def attach_interface(self, instance: Instance, vif: VIF) -> None:
        """Attach a plugged interface to the guest."""
        raise exception.NotImplementedHere(what="attach interfaces")

    def detach_interface(self, instance: Instance, vif: VIF) -> None:
        """Detach the interface with the MAC address of ``vif``. Succeeds if the interface or the guest is not there.
        Raises DeviceDetachFailed."""
        raise exception.NotImplementedHere(what="detach interfaces")

    # --- cold migration -----------------------------------------------------------------------------
    # Call sequence on the source: check_resize, open_disks, then close_disks and confirm_move, or revert_move. On the
    # destination: receive_disks, finish_move, power_on; destroy undoes them. Source and destination may be the same
    # host.
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        """Check, while the guest still runs, that its disks can be converted to ``flavor``. Raises ResizeError."""

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        """Shut the guest down (see power_off()), set its disks aside, and serve them until close_disks().

        The guest is no longer listed on this host. A repeated call serves the same disks, after a restart of the
        service under another address and key; the latest result is valid.
        """
        raise exception.NotImplementedHere(what="move servers")

    def close_disks(self, instance: Instance) -> None:
        """Stop serving the disks, which stay set aside. Succeeds if they are not served."""

    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        """Copy the disks to this host; continues a copy that a crash interrupted. Raises MigrationError, DiskFull."""
        raise exception.NotImplementedHere(what="move servers")

    def finish_move(self, instance: Instance) -> None:
        """Grow the received disks to ``instance.flavor`` and define the guest, stopped.

        Raises ResizeError, DiskFull.
        """
        raise exception.NotImplementedHere(what="move servers")

    def confirm_move(self, instance: Instance) -> None:
        """Remove the disks that open_disks() set aside on this host. Succeeds if there are none."""
        raise exception.NotImplementedHere(what="move servers")

    def revert_move(self, instance: Instance) -> None:
        """Restore the disks that open_disks() set aside and define the guest from ``instance``, stopped.

        Call destroy(instance) on the destination first. Succeeds if nothing is set aside or the guest is here already.
        """

    # --- live migration -------------------------------------------------------------------------
    # Call sequence: check_migration_source (source), prepare_migration (destination), live_migrate (source),
    # finish_migration (destination), destroy(instance, keep_disks=target.shared) (source). After a failure:
    # rollback_migration (destination).
    def check_migration_source(self, instance: Instance) -> MigrationSource:
        """Describe the running guest. Raises MigrationPreCheckError if it cannot leave this host.

        Files that the destination must copy in advance are served until live_migrate() or close_disks().
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    def prepare_migration(self, instance: Instance, source: MigrationSource,
                          block: bool | None = None) -> MigrationTarget:
        """Prepare this host for the guest; ``instance`` has the volumes and interfaces of this host.

        ``block``: copy disks (None: copy if the hosts do not share them). Base images are then copied from the source,
        too. Raises MigrationPreCheckError (CPU, hypervisor, storage), DiskFull.
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    def live_migrate(self, instance: Instance, target: MigrationTarget,
                     on_progress: Callable[[MigrationProgress], None], cancelled: Cancelled) -> None:
        """Migrate the running guest; return when it runs on the destination and is stopped on this host.

        Follows a migration that is under way, also one started by a previous process, instead of starting another one.
        Raises MigrationCancelled (``cancelled`` is set, or abort_migration() was called) and MigrationError; the guest
        then runs on this host.
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    def abort_migration(self, uuid: str) -> None:
        """Make live_migrate() end, from any thread. Succeeds if no migration is under way."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def force_complete_migration(self, uuid: str) -> None:
        """Make a migration end soon, by post-copy if permitted, else by pausing the guest. Succeeds if none is under
        way."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def finish_migration(self, instance: Instance) -> None:
        """Make the migrated guest, with definition and disks, permanent on this host. Raises GuestNotFound."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def rollback_migration(self, instance: Instance, target: MigrationTarget) -> None:
        """Remove what prepare_migration() created, and a partly migrated guest. Succeeds if there is nothing to remove.
        """
        raise exception.NotImplementedHere(what="migrate running servers")

    # --- status ----------------------------------------------------------------------------
    @abc.abstractmethod
    def guests(self) -> list[GuestStatus]:
        """Return all guests of Nova on this host, running or not. Omits guests not managed by Nova and guests that a
        migration is moving to this host or has moved away."""

    @abc.abstractmethod
    def power_state(self, uuid: str) -> int:
        """Return the power state of the guest. Raises GuestNotFound, also for a guest whose migration to this host is
        under way."""

    def has_disks(self, instance: Instance) -> bool:
        """Return True if this host can access the guest's local disks, which an evacuation then keeps. False for a
        guest without local disks."""
        return False

    # --- by uuid alone --------------------------------------------------------------------------
    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        """Remove all traces of a guest from this host, including disks of an incomplete move. Never removes disks that
        moved to another host. Succeeds if there is nothing to remove."""
