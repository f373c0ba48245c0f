"""Contexts of steps for the resources of an instance: interfaces, volumes, images, shares.

See :mod:`nova.operations.framework.contexts`. Server… classes write to the database in the transaction of their step.
Outside… classes call the external service that manages the resource, from external steps; every method is idempotent.
ServerShares and OutsideShares serve every share back end."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, NetworkRequest
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.share import ShareMapping
from nova.objects.volumes.volume import VolumeContent, VolumeEncryption, VolumeSnapshot


class Interfaces(Protocol):
    """Methods of ServerInterfaces and OutsideInterfaces. No ``vifs`` means all interfaces of the instance."""

    def take(self, host: str) -> None:
        """Allocate the requested interfaces, bound to the host. Interfaces that exist already are kept."""

    def add(self, wanted: NetworkRequest, host: str) -> VIF:
        """Add an interface to the instance, bound to the host. ServerInterfaces: in accept(). Raises NetworkNotFound,
        NoMoreFixedIps, FixedIpInUse, QuotaLimit."""

    def release(self, *vifs: VIF) -> None:
        """Remove the interfaces and free their addresses. Ports created by users are unbound and kept."""


class ServerInterfaces(Interfaces, Protocol):
    """The interfaces in the instance's row and, if Nova itself manages the networks, in their own rows. All changes are
    part of the transaction: that of accept(), or that in which the step ends."""

    def complete(self, *vifs: str) -> None:
        """Mark the interfaces with these ids as plugged into the guest."""

    def change(self, change: Callable[[list[VIF]], list[VIF]]) -> None:
        """Apply ``change`` to the interfaces in the instance's row, in the transaction of the step."""


class OutsideInterfaces(Interfaces, Protocol):
    """Interfaces managed by an external service (Neutron). Methods call the service immediately; the interfaces are
    stored when the step ends. All methods raise NetworkServiceUnavailable and the errors of the service."""

    def give_back(self, wanted: NetworkRequest | None) -> None:
        """Undo an add() that may be incomplete."""

    def bind_also(self, host: str) -> list[VIF]:
        """Bind all interfaces of the instance to this host, too, and return them as this host has to plug them. The
        present bindings stay active, and the row does not change. Raises PortBindingFailed, MigrationPreCheckError
        (Nova lacks the right to create bindings)."""

    def bind(self, host: str, *leaves: str) -> None:
        """Bind all interfaces of the instance to this host, and remove their bindings to the hosts ``leaves``.
        Interfaces that no longer exist are removed from the instance. Raises PortBindingFailed."""

    def unbind(self) -> None:
        """Unbind all interfaces from their host; the instance keeps them."""

    def set_group(self, name: str, add: bool) -> set[str]:
        """Add or remove a security group, given by name or id, with the rights of the caller. Return its name and id.
        Raises SecurityGroupNotFound, SecurityGroupNotOfServer, SecurityGroupCannotBeApplied (no interface has an
        address and packet filters), NoUniqueMatch, Forbidden."""

    def refreshed(self) -> list[VIF]:
        """Return the interfaces of the instance with current data of the service."""


class Volumes(Protocol):
    """Methods of ServerVolumes and OutsideVolumes. No ``devices`` means all volumes of the instance."""

    def complete(self, *devices: BlockDevice) -> None:
        """Mark the devices as attached to the guest."""

    def reimage(self, device: BlockDevice, image: Image) -> VolumeContent | None:
        """Start rewriting the boot volume from an image. ServerVolumes (in accept()) return its current content, kept
        until end_reimage(), or None if an external service manages the volume. OutsideVolumes need a volume that no
        host uses; the service sends an event at the end. Raises InvalidInput (the volume is too small), InvalidVolume
        (another operation uses it)."""

    def begin_swap(self, host: str, old: BlockDevice, new: BlockDevice) -> BlockDevice:
        """Reserve the volume of ``new`` for the instance and make it accessible from this host as the replacement of
        ``old``. Return the device of ``new``, which the API does not show. ServerVolumes: in accept(). Raises
        VolumeNotFound (the new volume), InvalidVolume (one of the two volumes is not available for a swap)."""

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        """End a swap: the guest uses ``new`` if ``done``, else ``old``. Release the other volume. ``migrates``: the
        swap is part of a volume migration, see PrecheckContext.check_swap(). OutsideVolumes do not change the row."""

    def begin_detaching(self, device: BlockDevice) -> None:
        """Mark the device as detaching. ServerVolumes: in accept(). Raises InvalidVolume."""

    def roll_detaching(self, device: BlockDevice) -> None:
        """Undo begin_detaching(): the device stays attached."""

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        """Remove the devices from the instance. Volumes with delete_on_termination are deleted unless ``keep``."""


class ServerVolumes(Volumes, Protocol):
    """The volumes in the instance's row and, if Nova itself manages the volumes, in their own rows. All changes are
    part of the transaction: that of accept(), or that in which the step ends. Detached volumes are ignored."""

    @property
    def are_outside(self) -> bool:
        """Return True if the instance has, or is to have, volumes managed by an external service."""

    # --- in accept() -------------------------------------------------------------------------------------
    def add(self, device: BlockDevice) -> BlockDevice:
        """Attach a volume of the instance's project; return the device with its name. Raises VolumeNotFound,
        InvalidVolume (another server reserved it), DevicePathInUse, TooManyDiskDevices."""

    def bound_host(self) -> str | None:
        """Return the only host on which the instance's volumes are accessible, or None for no restriction."""

    def bound_elsewhere(self, host: str) -> list[str]:
        """Return the ids of the instance's volumes that are not accessible from this host."""

    # --- changes in the transaction of the step ------------------------------------------------------------
    def bind(self, host: str) -> None:
        """Bind embedded volumes to this host, where new volumes are created. Raises InvalidVolume."""

    def unbind(self) -> None:
        """Unbind embedded volumes from their host. Volumes that no guest used yet may be created elsewhere."""

    def end_reimage(self, before: VolumeContent, done: bool) -> None:
        """End the rewrite of the boot volume: keep the new data if ``done``, else restore ``before``."""

    def reach(self, device: BlockDevice) -> None:
        """Store the device's connection_info if the device is still attached as before."""

    def resize(self, device: BlockDevice, size_gb: int) -> None:
        """Store the new size of the device's volume if it is still attached."""

    def adopt(self, devices: Iterable[BlockDevice]) -> None:
        """Store the connections of these devices."""

    def record(self, devices: Iterable[BlockDevice]) -> None:
        """Store these devices, also in the instance, except for changes of delete_on_termination by users."""


class OutsideVolumes(Volumes, Protocol):
    """Volumes managed by an external service (Cinder). Methods call the service immediately; the changed devices are
    stored when the step ends. All methods raise VolumeServiceUnavailable and the errors of the service: InvalidVolume,
    VolumeNotFound, Forbidden, QuotaLimit."""

    def make(self, polls: int, encryptions: dict[str, VolumeEncryption]) -> None:
        """Create the new volumes of the instance and reserve all its volumes. Raises Wait while volumes are being
        created; ``polls``: the number of previous waits. Adds the encryption of each new volume to ``encryptions``."""

    def unmake(self) -> None:
        """Undo make(): release existing volumes and delete new ones."""

    def reserve(self, device: BlockDevice, owner: str) -> BlockDevice:
        """Reserve the volume for the instance. ``owner``: the project that owned the volume at the request ("" if
        unknown). Raises VolumeNotFound if the volume has another owner now."""

    def connect(self, host: str, *devices: BlockDevice) -> list[BlockDevice]:
        """Make the volumes accessible from this host."""

    def disconnect(self, *devices: BlockDevice) -> None:
        """Remove the access of hosts to the volumes; the instance keeps them."""

    def connect_also(self, host: str) -> list[BlockDevice]:
        """Make the volumes accessible from this host, too, and return their devices. The row does not change."""

    def reconcile(self, host: str = "") -> None:
        """Remove all accesses that are not in the row. Reconnect volumes without access to ``host``, if given."""

    def take_snapshots(self, image: Image) -> bool:
        """Create a snapshot of each volume for this image; return True if all snapshots are ready. Needs the user's
        token to create missing snapshots."""

    def snapshots(self, image: Image, polls: int) -> dict[str, VolumeSnapshot]:
        """Return the finished snapshots for the image by volume id. Raises Wait while a snapshot is not ready;
        ``polls`` is the number of previous waits."""

    def drop_snapshots(self, image: Image) -> None:
        """Delete the snapshots made by take_snapshots()."""

    def check_assisted(self, device: BlockDevice, snapshot_id: str, status: str) -> None:
        """Check that a snapshot of the volume has this status. Raises SnapshotNotFound, InvalidVolume."""

    def end_assisted(self, snapshot_id: str, status: str, done: bool) -> None:
        """Report the result of an assisted snapshot with this status: ``done`` if the guest uses the requested files,
        else it keeps the previous files. Does nothing if the snapshot has another status meanwhile. Raises
        InvalidVolume if the service cancelled a finished snapshot."""

    def extended(self, device: BlockDevice) -> tuple[int, bool]:
        """Return the size in GiB that the volume has or will have, and True if the service waits for end_extension().
        The service waits if only the hypervisor of the guest can extend the volume. Raises InvalidVolume if the volume
        is not attached to the instance, or the new size is not larger."""

    def end_extension(self, volume_id: str, size_gb: int, done: bool) -> None:
        """Report the result of an extension to ``size_gb`` (0: any size) if the service waits for it. Without ``done``
        the volume keeps its size. Raises InvalidVolume if the service cancelled a finished extension."""


class ServerImages(Protocol):
    """Images made of the instance, for external steps; every method is idempotent. All methods but describe() raise
    ImageBackendUnavailable and the errors of the image service."""

    def describe(self, name: str, more: Mapping[str, str], kind: str = "snapshot") -> Image:
        """Return the description of a new image of the instance in the caller's project, with a new id and these
        additional properties. Does not call the image service. Raises InvalidInput for an invalid property."""

    def make(self, wanted: Image) -> None:
        """Create the image record, queued for its data."""

    def fill(self, image_id: str, properties: Mapping[str, str]) -> None:
        """Add these properties to an image without data and make it active. Raises ImageNotFound."""

    def get(self, image_id: str) -> Image:
        """Return the image. Raises ImageNotFound."""

    def delete(self, image_id: str) -> None:
        """Delete the image unless it is protected or in use. Succeeds if it does not exist."""

    def rotate(self, newest: Image, keep: int) -> None:
        """Delete all backups of the instance of the same type as ``newest`` except the ``keep`` newest."""


class ServerShares(Protocol):
    """The shares in the instance's row, for every back end."""

    def add(self, mapping: ShareMapping) -> None:
        """Add the share to the instance, in the accepting transaction."""

    def become(self, mapping: ShareMapping, status: str) -> None:
        """Set the status of the share if the instance still has it."""

    def remove(self, mapping: ShareMapping) -> None:
        """Remove the share from the instance."""


class OutsideShares(Protocol):
    """Access of hosts to shares, for external steps and for every back end: recorded in the database first, then
    granted or revoked by :class:`nova.share.base.ShareService`; every method is idempotent. All methods raise
    ShareServiceUnavailable and the errors of the service: ShareAccessGrantError, ShareAccessRemovalError."""

    def allow(self, host: str, polls: int, *share_ids: str) -> None:
        """Grant the host access to these shares (default: all shares of the instance) for this server. Raises Wait
        while another server releases the same access; ``polls`` is the number of previous waits."""

    def deny(self, host: str, *share_ids: str) -> None:
        """Revoke the access of the host ("": of all hosts) to these shares (default: all), unless another server needs
        it."""

    def leave(self, *hosts: str) -> None:
        """Revoke accesses like reconcile(), but record refused revocations for a later retry."""

    def reconcile(self, *hosts: str) -> None:
        """Make the shares accessible from these hosts (default: the possible hosts) and from no other host. """

    def release(self) -> None:
        """Revoke all accesses for the server; refused revocations are recorded for a later retry."""
