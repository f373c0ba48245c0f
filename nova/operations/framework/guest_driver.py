"""The interface of a hypervisor driver to the guests of a host, divided into roles.

A driver has one object per role (:class:`GuestDriver`). Each method is idempotent and declares a desired state: it may
be repeated after it ran partly or completely, with the same result. The instance alone describes the guest: its flavor
and image, ``network_info``, and ``block_devices`` with the result of ``HostVolumes.connect`` for each volume. A volume
that is not connected in the description stays as the guest has it on this host. A share with a ``path`` is a host
directory that the guest mounts.

Errors: GuestNotFound (no such guest), HypervisorUnavailable (retry later), InProgress (call again later), and other
NovaException subclasses with a message for the user. Any other exception counts as an unexpected driver error. Abstract
methods are required of every driver; other methods raise NotImplementedHere or do nothing, unless a driver implements
them."""

import abc
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.guest import Diagnostics, DiskImage, GuestStatus
from nova.objects.servers.instance import BlockDevice, DeviceAddress, Instance
from nova.objects.servers.moves import DiskSource, MigrationProgress, MigrationSource, MigrationTarget

# Seconds after which the quiesced file systems of a guest are thawed even without a request, since all writers in the
# guest are blocked meanwhile.
QUIESCE_TIMEOUT = 60.0


class InProgress(exception.NovaException, template="A change of the guest is in progress: {reason}"):
    """Raised by a method that has started a change which takes minutes. nova-compute calls the method again after
    ``seconds``, until it returns or the deadline of the step has passed; meanwhile no thread waits."""

    def __init__(self, message: str | None = None, seconds: float = 2.0, **kwargs: Any) -> None:
        super().__init__(message, seconds=seconds, **kwargs)
        self.seconds = seconds


# Numbers that a driver notes for its next call, by name, while a step that raised InProgress is called again.
_NOTES: contextvars.ContextVar[dict[str, int]] = contextvars.ContextVar("notes")


@contextlib.contextmanager
def repeated_step(notes: dict[str, int]) -> Iterator[None]:
    """Provide the notes of a step to the driver within the block. All calls of a step share them, and no other step
    does: the notes of a step that fails or is superseded must not influence the next step."""
    token = _NOTES.set(notes)
    try:
        yield
    finally:
        _NOTES.reset(token)


def step_notes() -> dict[str, int]:
    """Return the notes of the running step; outside of steps an empty dictionary."""
    return _NOTES.get({})


class Cancelled(Protocol):
    """A threading.Event, set when a long call should end early."""

    def is_set(self) -> bool: ...


@dataclasses.dataclass(frozen=True)
class BootFiles:
    """The local files from which a guest boots: cached images and extras. ``root``: the cached base image (None: no
    image). ``kernel``, ``ramdisk``: of a kernel/ramdisk/machine trio. ``config_drive``: path of a complete image file.
    ``alone``: the root disk is a full copy, because the image is not the server's own and is deleted soon."""

    root: str | None = None
    root_format: str = "qcow2"
    alone: bool = False
    kernel: str | None = None
    ramdisk: str | None = None
    config_drive: str | None = None


class Guests(abc.ABC):
    """The guests of Nova on this host: creation, removal and queries."""

    @abc.abstractmethod
    def spawn(self, instance: Instance, files: BootFiles, paused: bool = False) -> None:
        """Define and start the guest on prepared disks, connected volumes and plugged interfaces. ``paused``: the guest
        gets its devices but does not run until Power.unpause."""

    def define(self, instance: Instance) -> list[DeviceAddress] | None:
        """Define the guest, stopped, on prepared disks and connected volumes; return its device addresses. Returns None
        if the guest runs already or addresses are only known when it runs."""
        return None

    @abc.abstractmethod
    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        """Stop the guest immediately and remove it, its disks and console log. Succeeds if the guest does not exist.
        Never removes disks that moved to another host (shared storage) or that open_disks() renamed."""

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        """Remove all traces of a guest from this host, including disks of an incomplete move. Never removes disks that
        moved to another host. Succeeds if there is nothing to remove."""

    def stop(self, uuid: str) -> None:
        """Power off a guest of which only the uuid is known; keep its disks. Succeeds if the guest does not exist."""
        raise exception.NotImplementedHere(what="stop unknown guests")

    @abc.abstractmethod
    def all(self) -> list[GuestStatus]:
        """Return all guests of Nova on this host, running or not. Omits guests not managed by Nova and guests that a
        migration is moving to this host or has moved away."""

    @abc.abstractmethod
    def power_state(self, uuid: str) -> int:
        """Return the power state. Raises GuestNotFound, also for a guest that is migrating to this host."""

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        """Return the addresses of the guest's interfaces and disks, running or not. Raises GuestNotFound."""
        return []

    def diagnostics(self, instance: Instance) -> Diagnostics:
        """Return the current diagnostics of the guest. Raises GuestNotFound."""
        raise exception.NotImplementedHere(what="show diagnostics")

    def traces(self) -> set[str]:
        """Return the uuids of all guests with any remains on this host: a definition, a disk or a directory."""
        return {guest.uuid for guest in self.all()}

    def set_password(self, instance: Instance, password: str) -> None:
        """Change the administrator's password. Raises InstancePasswordSetFailed if the guest has no suitable agent."""
        raise exception.NotImplementedHere(what="set password on instance")


class Disks(abc.ABC):
    """The local disks of guests."""

    @abc.abstractmethod
    def prepare(self, instance: Instance, files: BootFiles) -> None:
        """Create the guest's disks: an overlay on ``files.root`` of size flavor.root_gb, ephemeral disks, swap and
        config drive. Existing disks are kept and used, also another host's disks on shared storage. Raises
        InvalidInput before anything is created (it names the unsupported property of flavor or image), InvalidDiskInfo,
        FlavorDiskTooSmall, DiskFull."""

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        """Shut the guest down (see Power.off) and replace its local disks; the guest is then undefined.
        ``keep_ephemerals``: keep ephemeral disks. ``token`` identifies the new disks: a repeated call keeps them. The
        old disks are kept until all new disks exist. Succeeds if the guest does not exist. Raises the errors of
        prepare()."""
        raise exception.NotImplementedHere(what="rebuild servers")

    def exist(self, instance: Instance) -> bool:
        """Return True if the guest has local disks and this host can access them. An evacuation then keeps them."""
        return False

    def used_images(self) -> Sequence[str]:
        """Return the paths of cached base images that guests use."""
        return ()


class Power(abc.ABC):
    """The power state of guests."""

    @abc.abstractmethod
    def on(self, instance: Instance, paused: bool = False) -> None:
        """Start a stopped guest with a definition renewed from ``instance``. ``paused``: see Guests.spawn."""

    @abc.abstractmethod
    def off(self, instance: Instance, timeout: int = 0) -> None:
        """Request a shutdown of the guest and wait ``timeout`` seconds, then power it off (0: immediately)."""

    @abc.abstractmethod
    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        """Reboot the guest. Soft: request the guest to reboot itself; if it does not within ``timeout`` seconds (None:
        the driver's default), reboot it hard. Hard: power cycle with a renewed definition, from any state."""

    def pause(self, instance: Instance) -> None:
        """Stop the CPUs of the running guest. Raises InstanceInvalidState if the guest does not run."""
        raise exception.NotImplementedHere(what="pause servers")

    def unpause(self, instance: Instance) -> None:
        """Let a paused guest run."""
        raise exception.NotImplementedHere(what="unpause servers")

    def suspend(self, instance: Instance) -> None:
        """Save the guest's memory to disk and stop the guest."""
        raise exception.NotImplementedHere(what="suspend servers")

    def resume(self, instance: Instance) -> None:
        """Continue the guest from saved memory, or start it if there is none."""
        raise exception.NotImplementedHere(what="resume servers")

    def trigger_crash_dump(self, instance: Instance) -> None:
        """Send the guest a non-maskable interrupt. Raises GuestNotRunning."""
        raise exception.NotImplementedHere(what="trigger crash dumps")


class Consoles(abc.ABC):
    """Console logs and interactive consoles of guests."""

    @abc.abstractmethod
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        """Return the end of the serial console log, which is kept across reboots. Raises ConsoleLogUnavailable."""

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        """Return the address of the running guest's console, or None if it has none. ``protocol``: vnc, spice, mks or
        serial (the first port). Raises GuestNotFound, GuestNotRunning."""
        raise exception.NotImplementedHere(what=f"open {protocol} consoles")


class Rescue:
    """Guests that are started from another disk, so that users can repair their own disks."""

    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        """Shut the guest down (see Power.off) and start it from a disk made from ``image``, with its own disks
        attached. A guest that is rescued already is restarted. Raises the errors of Disks.prepare, and
        InstanceNotRescuable for a disk larger than rescue_disk_gb()."""
        raise exception.NotImplementedHere(what="rescue servers")

    def end(self, instance: Instance) -> None:
        """Stop a rescued guest, restore its previous definition and remove the rescue disks."""
        raise exception.NotImplementedHere(what="rescue servers")


class Snapshots:
    """Images of root disks, and quiesced file systems."""

    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        """Return a file on this host with the guest's root disk at one moment. A running guest continues. The file
        systems are quiesced for that moment if the image declares a guest agent. A repeated call for the same image
        returns the same file, until discard(). Raises InstanceQuiesceFailed (os_require_quiesce), SnapshotFailed,
        InvalidDiskInfo, DiskFull."""
        raise exception.NotImplementedHere(what="take snapshots of servers")

    def discard(self, instance: Instance) -> None:
        """Remove the file that take() created and end an interrupted snapshot. Succeeds if no snapshot exists."""
        raise exception.NotImplementedHere(what="take snapshots of servers")

    def quiesce(self, instance: Instance) -> None:
        """Quiesce the file systems of the running guest until unquiesce() or the end of the guest. Raises
        InstanceQuiesceFailed (not supported by its agent), GuestNotFound."""
        raise exception.NotImplementedHere(what="quiesce the file systems of servers")

    def unquiesce(self, instance: Instance) -> None:
        """Thaw the guest's file systems if they are quiesced. Succeeds if the guest does not exist."""


class Volumes:
    """Volumes of guests. Devices change in the running guest, if there is one, and in its definition. Names and
    addresses of devices survive power cycles."""

    def attach(self, instance: Instance, device: BlockDevice) -> None:
        """Attach a connected volume to the guest as ``device.device_name`` (None: the next free name). It makes no
        difference whether ``instance`` already lists the volume."""
        raise exception.NotImplementedHere(what="attach volumes")

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        """Detach a volume; the hypervisor has released it on return. Succeeds if the volume or the guest is not there.
        Raises DeviceDetachFailed if the guest does not release the volume within the time limit of the driver."""
        raise exception.NotImplementedHere(what="detach volumes")

    def extend(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        """Grow the guest's disk to the volume's future size in GiB; never shrinks it. Returns False if no guest runs: a
        guest reads the size of the volume when it starts. Raises VolumeExtendFailed."""
        raise exception.NotImplementedHere(what="extend volumes")

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        """Return True if a guest runs and its disk has at least this size."""
        raise exception.NotImplementedHere(what="extend volumes")


class VolumeSwaps:
    """Replacement of volumes under running guests."""

    def swap(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        """Copy the data of ``old`` to ``new``, a connected volume of the same size, and switch the running guest to it.
        Succeeds if the guest already uses ``new``. Continues a copy that a crash interrupted. Raises GuestNotRunning,
        VolumeSwapFailed; the guest then uses ``old``."""
        raise exception.NotImplementedHere(what="swap volumes")

    def cancel(self, instance: Instance, new: BlockDevice) -> bool:
        """Cancel a swap(), even if a previous process began it. Returns True if a guest already uses ``new``."""
        raise exception.NotImplementedHere(what="swap volumes")


class VolumeFiles:
    """The files of volumes with snapshots under running guests."""

    def names(self, instance: Instance, device: BlockDevice) -> list[str]:
        """Return the names of the volume's files that the guest uses, from the active file down to the base. Empty if
        the guest does not exist or does not have the volume."""
        raise exception.NotImplementedHere(what="list the files of volumes")

    def snapshot(self, instance: Instance, new: BlockDevice) -> None:
        """Switch the running guest to the file of ``new``, an overlay of its current file of the same device. Succeeds
        if the guest already writes to that file. File systems are quiesced for the switch if possible. Raises
        GuestNotRunning, VolumeSnapshotFailed, InstanceQuiesceFailed (required by the image); the guest then keeps its
        previous file."""
        raise exception.NotImplementedHere(what="snapshot volumes")

    def merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
              cancelled: Cancelled) -> None:
        """Merge overlay files of a volume. With ``base``: commit the files from ``top`` down to ``base`` into ``base``.
        Without it: pull all files between the active file and ``top`` (None: all files) into the active file; ``top``
        itself is not merged. Succeeds if that is done already. Continues a merge that a crash interrupted. Raises
        GuestNotRunning, VolumeSnapshotFailed; the guest then keeps its previous files."""
        raise exception.NotImplementedHere(what="merge files of volumes")

    def cancel(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        """Cancel a merge(), even if a previous process began it. Returns True if it was already complete."""
        raise exception.NotImplementedHere(what="merge files of volumes")


class Interfaces:
    """Network interfaces of guests. A change applies to the running guest, if there is one, and to its definition."""

    def attach(self, instance: Instance, vif: VIF) -> None:
        """Attach a plugged interface to the guest."""
        raise exception.NotImplementedHere(what="attach interfaces")

    def detach(self, instance: Instance, vif: VIF) -> None:
        """Detach the interface with the MAC address of ``vif``, if it is there. Raises DeviceDetachFailed."""
        raise exception.NotImplementedHere(what="detach interfaces")


class ColdMigration:
    """Moves of stopped guests. Call sequence on the source: check_resize, open_disks, then close_disks and confirm, or
    revert. On the destination (or the same host): receive_disks, finish, Power.on; Guests.destroy undoes these calls.
    """

    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        """Check, while the guest still runs, that its disks can be converted to ``flavor``. Raises ResizeError."""

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        """Shut the guest down (see Power.off), rename its disks, and serve them until close_disks(). The guest is no
        longer listed on this host. A repeated call serves the same disks; after a restart of the service it returns a
        new address and key, and the former ones are invalid. Removes renamed disks of an earlier move."""
        raise exception.NotImplementedHere(what="move servers")

    def close_disks(self, instance: Instance) -> None:
        """Stop serving the disks, which stay renamed. Succeeds if they are not served."""

    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        """Copy the disks to this host; continues a copy that a crash interrupted. Raises MigrationError, DiskFull."""
        raise exception.NotImplementedHere(what="move servers")

    def finish(self, instance: Instance) -> None:
        """Grow the disks to ``instance.flavor`` and define the guest, stopped. Raises ResizeError, DiskFull."""
        raise exception.NotImplementedHere(what="move servers")

    def confirm(self, instance: Instance) -> None:
        """Remove the disks that open_disks() renamed on this host. Succeeds if there are none."""
        raise exception.NotImplementedHere(what="move servers")

    def revert(self, instance: Instance, former: str = "") -> None:
        """Restore the disks that open_disks() renamed and define the guest from ``instance``, stopped. Call
        Guests.destroy on the destination first. Succeeds if nothing is renamed or the guest is here already.
        ``former``: a failed host; disks that it uses for the server on shared storage are replaced."""


class LiveMigrationSource:
    """Live migration on the source host. Call sequence: check; LiveMigrationTarget.prepare; migrate;
    LiveMigrationTarget.finish; Guests.destroy(instance, keep_disks=target.shared). After a failure:
    LiveMigrationTarget.rollback."""

    def check(self, instance: Instance) -> MigrationSource:
        """Describe the running guest. Raises MigrationPreCheckError if it cannot leave this host. Files that the
        destination must copy in advance are served until migrate() or ColdMigration.close_disks."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def migrate(self, instance: Instance, target: MigrationTarget, on_progress: Callable[[MigrationProgress], None],
                cancelled: Cancelled) -> None:
        """Migrate the running guest; return when it runs on the destination and is stopped on this host. Follows a
        migration that is under way, also one started by a previous process, instead of starting another one. Raises
        MigrationCancelled (``cancelled`` is set) and MigrationError; the guest then still runs on this host."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def force_complete(self, uuid: str) -> None:
        """Make a running migration, if any, end soon, by post-copy if permitted, else by pausing the guest."""
        raise exception.NotImplementedHere(what="migrate running servers")


class LiveMigrationTarget:
    """Live migration on the destination host. LiveMigrationSource has the call sequence."""

    def prepare(self, instance: Instance, source: MigrationSource, block: bool | None = None) -> MigrationTarget:
        """Prepare this host for the guest; ``instance`` has volumes and interfaces as on this host. ``block``: copy
        disks (None: copy if the hosts do not share them). Base images are then copied from the source, too. Raises
        MigrationPreCheckError (CPU, hypervisor, storage), DiskFull."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def finish(self, instance: Instance) -> None:
        """Make the migrated guest, with definition and disks, permanent on this host. Raises GuestNotFound."""
        raise exception.NotImplementedHere(what="migrate running servers")

    def rollback(self, instance: Instance, target: MigrationTarget) -> None:
        """Remove what prepare() created, and a partly migrated guest. Succeeds if there is nothing to remove."""
        raise exception.NotImplementedHere(what="migrate running servers")


@dataclasses.dataclass(kw_only=True, eq=False)
class GuestDriver:
    """The roles of a hypervisor driver. Roles without a default are required; the other roles refuse by default."""

    guests: Guests
    disks: Disks
    power: Power
    consoles: Consoles
    rescue: Rescue = dataclasses.field(default_factory=Rescue)
    snapshots: Snapshots = dataclasses.field(default_factory=Snapshots)
    volumes: Volumes = dataclasses.field(default_factory=Volumes)
    volume_swaps: VolumeSwaps = dataclasses.field(default_factory=VolumeSwaps)
    volume_files: VolumeFiles = dataclasses.field(default_factory=VolumeFiles)
    interfaces: Interfaces = dataclasses.field(default_factory=Interfaces)
    cold_migration: ColdMigration = dataclasses.field(default_factory=ColdMigration)
    live_source: LiveMigrationSource = dataclasses.field(default_factory=LiveMigrationSource)
    live_target: LiveMigrationTarget = dataclasses.field(default_factory=LiveMigrationTarget)
