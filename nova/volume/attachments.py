"""The conductor's half of a volume back end: to whom volumes belong, and how hosts reach them.

The other half, on the hosts, is :class:`nova.volume.base.HostVolumes`. Both come from [volume]driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.image import Image
from nova.objects.instance import BlockDevice, Instance
from nova.objects.volume import AVAILABLE, Volume, VolumeContent, VolumeRemoval
from nova.objects.volume_snapshot import SnapshotRequest, VolumeSnapshot

# A database's; this side of the house knows nothing of it.
Connection = Any


class UserVolumes(Protocol):
    """The volumes of an outside service, as :class:`nova.rpcapi.volumes.Volumes` promises them; with the token of the
    caller, whose own they are."""

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[Volume]: ...

    def get(self, ctx: RequestContext, uuid: str) -> Volume: ...

    def create(self, ctx: RequestContext, volume: Volume) -> Volume: ...

    def delete(self, ctx: RequestContext, uuid: str) -> None: ...


class Snapshots(Protocol):
    """Snapshots of volumes, as :class:`nova.rpcapi.volume_snapshots.VolumeSnapshots` promises them."""

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]: ...

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot: ...

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot: ...

    def delete(self, ctx: RequestContext, uuid: str) -> None: ...

    # Those that an image of a server consists of, found again by the image's id; of_image() and drop() with Nova's own
    # rights, since the caller's token may be gone by then.
    def check_room(self, ctx: RequestContext, count: int) -> None:
        """Whether the caller's project may have so many more. Outside of any transaction, before the request is
        accepted. Raises QuotaLimit, InvalidVolume (such volumes have none)."""

    def of_image(self, ctx: RequestContext, image_id: str) -> list[VolumeSnapshot]: ...

    def take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        """One of each volume, made with the caller's own rights. Raises InvalidVolume, VolumeNotFound, QuotaLimit."""

    def drop(self, ctx: RequestContext, image_id: str) -> None:
        """There are none any more, or will be none soon."""

    # Those for which the service needs the guest's hypervisor; with Nova's own rights.
    def check_assisted(self, ctx: RequestContext, volume_id: str, uuid: str, status: str) -> None:
        """A snapshot of this volume is in this status. Raises SnapshotNotFound, InvalidVolume."""

    def end_assisted(self, ctx: RequestContext, uuid: str, status: str, done: bool) -> None:
        """Whether it was done for which the snapshot is in this status; the service goes on. Has it gone on already:
        fine. Raises InvalidVolume: it has given up what is done."""


class Attachments(Protocol):
    """A volume in a server is a device with an ``attachment_id``. Every verb finds what it did again after half a run.

    ``external`` says how: such a back end talks to a service of its own, never inside of a transaction, and its verbs
    are external steps. Others do everything in the transaction of the step, on the ``connection`` they are given.
    An external one raises VolumeServiceUnavailable, too: then what was asked for may be done.
    """

    external: bool

    @property
    def volumes(self) -> UserVolumes | None:
        """Where an outside service keeps them."""

    @property
    def snapshots(self) -> Snapshots:
        """Those of its volumes."""

    def validate(self, ctx: RequestContext, project_id: str, volume_id: str, status: str = AVAILABLE) -> Volume:
        """The volume as its owner may use it. Outside of any transaction, before the request is accepted.

        Raises VolumeNotFound, InvalidVolume (its status is another one).
        """

    def restored(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        """What a volume will be (without an id) that is made from a snapshot, as its owner may use it. Outside of any
        transaction, before the request is accepted.

        Raises SnapshotNotFound, InvalidVolume (it is not available).
        """

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        """The id of the secret in the key manager by which the volume is encrypted, as its owner may know it
        (``own_rights``: as Nova may); "": it is not encrypted. Outside of any transaction.

        Raises VolumeNotFound, InvalidVolume (no host could decrypt it).
        """

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        """Whether nobody has the volume any more, or only what is left of it. Outside of any transaction."""

    def owner(self, ctx: RequestContext, volume_id: str) -> str:
        """Its project; "": that is not told. Outside of any transaction. Raises VolumeNotFound."""

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        """Those that have the volume, as far as its owner may know. Outside of any transaction. Raises VolumeNotFound.
        """

    def reserve(self, ctx: RequestContext, instance: Instance, device: BlockDevice, status: str,
                connection: Connection = None) -> Volume:
        """Give the device's volume to the server. Raises VolumeNotFound, InvalidVolume (of two one wins)."""

    def create(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image | None,
               connection: Connection = None) -> Volume:
        """A new volume for the server: empty, or to be made from an image. Raises QuotaLimit, InvalidVolume.

        Without a service of its own it belongs to the server at once. One that is external has to be reserved when its
        status says that it was made.
        """

    def connect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                connector: Mapping[str, Any], connection: Connection = None) -> BlockDevice:
        """The device as this host reaches it (``connection_info``). ``connector``: what the host told of itself.

        Raises InvalidVolume when the host cannot.
        """

    def disconnect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                   connection: Connection = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """The host does not need the way any more; the server keeps the volume. Returns what hosts are to be told."""

    def connect_also(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                     connector: Mapping[str, Any], connection: Connection = None) -> BlockDevice:
        """The server moves: the device as this host reaches it, while another one reaches it as before.

        Raises InvalidVolume, VolumeNotFound.
        """

    def settle(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str = "",
               connector: Mapping[str, Any] = {}, connection: Connection = None) -> BlockDevice:
        """The move is over: the device is reached in the way that it has, and in no other one.

        If that way is gone it gets another one to ``host``, if there is one.
        """

    def complete(self, ctx: RequestContext, device: BlockDevice, connection: Connection = None) -> BlockDevice:
        """The guest has the volume."""

    def reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image,
                connection: Connection = None) -> VolumeContent | None:
        """Have the volume, which the server keeps, made anew from an image. Raises InvalidVolume.

        Without a service of its own: the data that it has stay until end_reimage(), and are returned. One that is
        external has been let go of by its host, and tells by an event when it is done.
        """

    def end_reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, before: VolumeContent,
                    done: bool, connection: Connection = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """The server has the new data (``done``), or keeps those that it had ``before``. Returns what hosts are told.
        """

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        """Whether the service of volume ``old`` migrates it into ``new``, so that it keeps its id. Outside of any
        transaction, before the request is accepted.

        Raises VolumeNotMigrated (one may not take the place of the other), VolumeNotFound, MultiattachSwapUnsupported.
        """

    def begin_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice,
                   connection: Connection = None) -> Volume:
        """The volume of ``new`` is the server's, too, and is to take the place of ``old``. Raises VolumeNotFound (the
        new one), InvalidVolume (one of them is not free for that, or they differ in size).
        """

    def end_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice, migrates: bool,
                 done: bool, connection: Connection = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """The guest has ``new`` and the server has ``old`` no longer (``done``), or the other way round.

        ``migrates``: as check_swap() said. Returns the device that the server has, and what hosts are to be told.
        """

    def extended(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> tuple[int, bool]:
        """The size (GiB) that the server's volume has, or is to have, and whether the service waits for
        end_extension(), since the guest's hypervisor alone can make it so. Outside of any transaction.

        Raises VolumeNotFound, InvalidVolume (the server does not have it, or it does not become larger).
        """

    def end_extension(self, ctx: RequestContext, instance_uuid: str, volume_id: str, size_gb: int, done: bool) -> None:
        """The service hears whether the server's volume has this size (0: whichever it is to have), if it waits for
        that. Does it not: fine. Outside of any transaction. Raises InvalidVolume: it has given up what is done.
        """

    def begin_detaching(self, ctx: RequestContext, device: BlockDevice, connection: Connection = None) -> None:
        """Raises InvalidVolume when somebody else is at it."""

    def roll_detaching(self, ctx: RequestContext, device: BlockDevice, connection: Connection = None) -> None:
        """The guest keeps the volume."""

    def release(self, ctx: RequestContext, instance: Instance, device: BlockDevice, delete: bool = False,
                connection: Connection = None) -> list[VolumeRemoval]:
        """The server does not have the volume any more; ``delete``: nobody shall. Returns what hosts are to be told."""

    def hosts(self, devices: Sequence[BlockDevice], connection: Connection = None) -> set[str]:
        """The hosts to which these volumes bind their server; none: it may be anywhere."""
