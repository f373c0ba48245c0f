"""The interface of a volume back end on the conductor: attachments of volumes to servers and hosts.

Its counterpart on the hosts is :class:`nova.volume.base.HostVolumes`. [volume]driver selects both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import AVAILABLE, Volume, VolumeContent, VolumeRemoval
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot

# A database connection, whose type this package must not import.
Connection = Any


class UserVolumes(Protocol):
    """The volumes of an external service, accessed with the token of the caller.

    The methods are those of :class:`nova.rpcapi.volumes.volumes.Volumes`.
    """

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[Volume]: ...

    def get(self, ctx: RequestContext, uuid: str) -> Volume: ...

    def create(self, ctx: RequestContext, volume: Volume) -> Volume: ...

    def delete(self, ctx: RequestContext, uuid: str) -> None: ...


class Snapshots(Protocol):
    """Snapshots of volumes.

    The first four methods are those of :class:`nova.rpcapi.volumes.volume_snapshots.VolumeSnapshots`.
    """

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]: ...

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot: ...

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot: ...

    def delete(self, ctx: RequestContext, uuid: str) -> None: ...

    # Snapshots of a server image, identified by the id of the image. of_image() and drop() use Nova's own credentials,
    # since the caller's token may have expired.
    def check_room(self, ctx: RequestContext, count: int) -> None:
        """Raise QuotaLimit if the project may not have ``count`` more snapshots, or InvalidVolume if snapshots are
        unsupported. Called outside of transactions, before a request is accepted.
        """

    def of_image(self, ctx: RequestContext, image_id: str) -> list[VolumeSnapshot]: ...

    def take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        """Create a snapshot of each volume, as the caller. Raises InvalidVolume, VolumeNotFound, QuotaLimit."""

    def drop(self, ctx: RequestContext, image_id: str) -> None:
        """Delete the snapshots of a server image."""

    # Snapshots that need the hypervisor of the guest, accessed with Nova's own credentials.
    def check_assisted(self, ctx: RequestContext, volume_id: str, uuid: str, status: str) -> None:
        """Check that this is a snapshot of the volume with this status. Raises SnapshotNotFound, InvalidVolume."""

    def end_assisted(self, ctx: RequestContext, uuid: str, status: str, done: bool) -> None:
        """Report to the service that the operation of a snapshot in this status succeeded (``done``) or failed.

        Succeeds if the snapshot has another status by now. Raises InvalidVolume if ``done``, but the service has
        recorded a failure.
        """


class Attachments(Protocol):
    """Attaches volumes to servers. All methods are idempotent. A device with a volume has an ``attachment_id``.

    ``external``: True if the back end calls an external service, outside of transactions, so that its methods run in
    external steps. Otherwise its methods run in the transaction of the step, on the given ``connection``. Methods of an
    external back end also raise VolumeServiceUnavailable; the request may have been executed then.
    """

    external: bool

    @property
    def volumes(self) -> UserVolumes | None:
        """The volumes of the external service, or None if the back end is not external."""

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of volumes."""

    def validate(self, ctx: RequestContext, project_id: str, volume_id: str, status: str = AVAILABLE) -> Volume:
        """Return a volume, read with the rights of the caller, and check its status.

        Called outside of transactions, before a request is accepted. Raises VolumeNotFound, InvalidVolume.
        """

    def volume_from_snapshot(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        """Return the properties (without an id) of a volume that will be created from a snapshot.

        Called outside of transactions, before a request is accepted. Raises SnapshotNotFound, InvalidVolume (the
        snapshot is not available).
        """

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        """Return the id of the volume's encryption key in the key manager, or "" if the volume is not encrypted.

        ``own_rights``: use Nova's credentials instead of the caller's. Called outside of transactions.
        Raises VolumeNotFound, InvalidVolume (the encryption is not supported).
        """

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        """Return True if the volume is deleted or in an error status. Called outside of transactions."""

    def owner(self, ctx: RequestContext, volume_id: str) -> str:
        """Return the project of a volume, or "" if unknown. Called outside of transactions. Raises VolumeNotFound."""

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        """Return the servers that a volume is attached to, as visible to the caller.

        Called outside of transactions. Raises VolumeNotFound.
        """

    def reserve(self, ctx: RequestContext, instance: Instance, device: BlockDevice, status: str,
                connection: Connection = None) -> Volume:
        """Reserve the device's volume for the server. Raises VolumeNotFound, InvalidVolume (the volume is in use)."""

    def create(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image | None,
               connection: Connection = None) -> Volume:
        """Create a volume for the server, empty or from an image. Raises QuotaLimit, InvalidVolume.

        A volume of an external back end has to be reserved when its status is available; other volumes are reserved
        by this method.
        """

    def connect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                connector: Mapping[str, Any], connection: Connection = None) -> BlockDevice:
        """Return the device with the ``connection_info`` for a host. ``connector``: the properties of the host.

        Raises InvalidVolume if the host cannot connect to the volume.
        """

    def disconnect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                   connection: Connection = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """Remove the connection of a host to a volume that the server keeps.

        Returns the device and the data that hosts have to delete.
        """

    def connect_also(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                     connector: Mapping[str, Any], connection: Connection = None) -> BlockDevice:
        """Return the device with the connection of a second host, for a move of the server.

        Raises InvalidVolume, VolumeNotFound.
        """

    def finish_move(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str = "",
                    connector: Mapping[str, Any] = {}, connection: Connection = None) -> BlockDevice:
        """Remove all connections to the volume except that of ``device``, after a move of the server.

        If the connection of ``device`` is lost, the volume is connected to ``host``, if given.
        """

    def complete(self, ctx: RequestContext, device: BlockDevice, connection: Connection = None) -> BlockDevice:
        """Record that the guest has the volume."""

    def reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image,
                connection: Connection = None) -> VolumeContent | None:
        """Rewrite a volume of the server from an image. Raises InvalidVolume.

        An external service reports the end by an event; its volume must be disconnected. Other back ends return the
        previous data, which exist until end_reimage().
        """

    def end_reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, before: VolumeContent,
                    done: bool, connection: Connection = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """Finish a reimage (``done``), or restore the data ``before``.

        Returns the device and the data that hosts have to delete.
        """

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        """Return True if the service migrates volume ``old`` into ``new``, so that the volume keeps its id.

        Called outside of transactions, before a request is accepted. Raises VolumeNotMigrated (``new`` cannot replace
        ``old``), VolumeNotFound, MultiattachSwapUnsupported.
        """

    def begin_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice,
                   connection: Connection = None) -> Volume:
        """Reserve the volume of ``new``, which replaces that of ``old``, for the server.

        Raises VolumeNotFound (the new volume), InvalidVolume (a volume is in use, or the sizes differ).
        """

    def end_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice, migrates: bool,
                 done: bool, connection: Connection = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """Release ``old`` if the swap succeeded (``done``), or else ``new``.

        ``migrates``: the result of check_swap(). Returns the remaining device and the data that hosts have to delete.
        """

    def extension(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> tuple[int, bool]:
        """Return the new size (GiB) of an extended volume, and True if the service waits for end_extension().

        The service waits if only the hypervisor of the guest can extend the volume. Called outside of transactions.
        Raises VolumeNotFound, InvalidVolume (not attached to the server, or the new size is not larger).
        """

    def end_extension(self, ctx: RequestContext, instance_uuid: str, volume_id: str, size_gb: int, done: bool) -> None:
        """Report to the service that an extension to ``size_gb`` (0: any size) succeeded (``done``) or failed.

        Succeeds if the service does not wait for it. Called outside of transactions. Raises InvalidVolume if ``done``,
        but the service has recorded a failure.
        """

    def begin_detaching(self, ctx: RequestContext, device: BlockDevice, connection: Connection = None) -> None:
        """Mark the volume as detaching. Raises InvalidVolume if another operation is detaching it."""

    def roll_detaching(self, ctx: RequestContext, device: BlockDevice, connection: Connection = None) -> None:
        """Remove the mark of begin_detaching(): the guest keeps the volume."""

    def release(self, ctx: RequestContext, instance: Instance, device: BlockDevice, delete: bool = False,
                connection: Connection = None) -> list[VolumeRemoval]:
        """Release a volume, and delete it if ``delete``. Returns the data that hosts have to delete."""

    def hosts(self, devices: Sequence[BlockDevice], connection: Connection = None) -> set[str]:
        """Return the hosts that can access these volumes; empty: all hosts."""
