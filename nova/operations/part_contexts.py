"""What steps may do with what a server has (interfaces, volumes, images, shares); see :mod:`nova.operations.contexts`.

The Server… ones write with their step; the Outside… ones ask the service that keeps the thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from nova.objects.image import Image
from nova.objects.instance import BlockDevice
from nova.objects.network import VIF, NetworkRequest
from nova.objects.share import ShareMapping
from nova.objects.volume import VolumeContent, VolumeEncryption
from nova.objects.volume_snapshot import VolumeSnapshot


class ServerInterfaces(Protocol):
    """The interfaces of the instance; without ``vifs`` all of them."""

    def take(self) -> None:
        """Give the instance the interfaces that it asked for; kept when it has them already."""

    def complete(self, *vifs: str) -> None:
        """Those with these ids are plugged, and the guest has them."""

    def release(self, *vifs: VIF) -> None:
        """They are not the instance's any more, and neither are their addresses."""


class OutsideInterfaces(Protocol):
    """The same for interfaces that an outside service keeps: for external steps, each as often as needed.

    All raise NetworkServiceUnavailable and what the service refuses.
    """

    def take(self, host: str) -> None:
        """The interfaces that the instance asked for exist, are its own, and are bound to the host."""

    def add(self, wanted: NetworkRequest, host: str) -> VIF:
        """The instance has one interface more, on this host."""

    def give_back(self, wanted: NetworkRequest | None) -> None:
        """Nothing is left of an add() that may have come half-way."""

    def bind(self, host: str) -> None:
        """All interfaces of the instance are bound to this host; it loses those that are gone."""

    def unbind(self) -> None:
        """All interfaces of the instance are its own still, and bound to no host."""

    def release(self, *vifs: VIF) -> None:
        """They (without ``vifs`` all) are not the instance's any more; ports that users made stay, unbound."""


class ServerVolumes(Protocol):
    """The volumes of the instance; without ``devices`` all of them. What is not the instance's any more is left out."""

    def connect(self, host: str) -> None:
        """They are used on this host from now on, where the data of new ones will be made. Raises InvalidVolume."""

    def disconnect(self, host: str) -> None:
        """They are not used on this host any more; those that no guest had yet may be made elsewhere."""

    def complete(self, *devices: BlockDevice) -> None:
        """The guest has them."""

    def end_reimage(self, before: VolumeContent, done: bool) -> None:
        """The volume that the server boots from has its new data (``done``), or those that it had ``before``."""

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        """The guest has ``new`` in the place of ``old`` (``done``), or keeps that; the other one is not the
        instance's any more. ``migrates``: as Desk.check_swap() said."""

    def reach(self, device: BlockDevice) -> None:
        """The guest has the device by its connection_info from now on, if it is attached as it was."""

    def resize(self, device: BlockDevice, size_gb: int) -> None:
        """The device's volume has this size, if it is attached still."""

    def roll_detaching(self, device: BlockDevice) -> None:
        """The guest keeps it."""

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        """They are not the instance's any more; those that are to go with it are deleted, unless ``keep``."""


class OutsideVolumes(Protocol):
    """The same for volumes that an outside service keeps: for external steps, each as often as needed.

    Returns devices as they are then. All raise VolumeServiceUnavailable and what the service refuses: InvalidVolume,
    VolumeNotFound, Forbidden, QuotaLimit.
    """

    def make(self, looks: int, encryptions: dict[str, VolumeEncryption]) -> None:
        """All volumes of the instance exist and are its own. Raises Wait while new ones are being made; ``looks``: how
        often it has waited. ``encryptions`` of new ones, by the ids of their devices: those that are had are added."""

    def unmake(self) -> None:
        """As before make(): what was there is free, what was new is gone."""

    def reserve(self, device: BlockDevice, owner: str) -> BlockDevice:
        """It is the instance's. Raises VolumeNotFound: it is not the project's any more that it belonged to ("": that
        is not known) when it was asked for."""

    def connect(self, host: str, *devices: BlockDevice) -> list[BlockDevice]:
        """They can be used on this host."""

    def disconnect(self, host: str, *devices: BlockDevice) -> None:
        """They cannot be used on this host any more, and are still the instance's."""

    def connect_also(self, host: str) -> list[BlockDevice]:
        """They can be used on this host, too, while the instance moves: how. The instance's row stays as it is."""

    def adopt(self, devices: Iterable[BlockDevice]) -> None:
        """The instance's row has these ways to its volumes. Nobody outside is asked."""

    def settle(self, host: str = "") -> None:
        """They are reached in the ways of the instance's row, and in no other ones; what has lost its way gets one to
        ``host``, if there is one."""

    def reimage(self, device: BlockDevice, image: Image) -> None:
        """Have it, which no host can use, made anew from an image; the service tells by an event when it is done."""

    def begin_swap(self, host: str, old: BlockDevice, new: BlockDevice) -> BlockDevice:
        """``new`` is the instance's, too, can be used on this host, and is to take the place of ``old``. Returns it."""

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        """The guest has ``new`` in the place of ``old`` (``done``), or keeps that; the other one is not the
        instance's any more, and a migration is over. The instance's row stays as it is."""

    def complete(self, *devices: BlockDevice) -> None:
        """The guest has them."""

    def take_snapshots(self, image: Image) -> bool:
        """All volumes of the instance have a snapshot for this image; returns whether those are made, too. Their user's
        token is needed for what is not there yet."""

    def snapshots(self, image: Image, looks: int) -> dict[str, VolumeSnapshot]:
        """By the ids of the instance's volumes their snapshots for the image, which are made. Raises Wait while they
        are not; ``looks``: how often it has waited."""

    def drop_snapshots(self, image: Image) -> None:
        """Nothing is left of take_snapshots()."""

    def check_assisted(self, device: BlockDevice, snapshot_id: str, status: str) -> None:
        """A snapshot of the volume is in this status. Raises SnapshotNotFound, InvalidVolume."""

    def end_assisted(self, snapshot_id: str, status: str, done: bool) -> None:
        """The service goes on with a snapshot that is in this status: the guest has the files that it asked for
        (``done``), or those that it had. Raises InvalidVolume: it has given up what is done."""

    def extended(self, device: BlockDevice) -> tuple[int, bool]:
        """The size (GiB) that it has, or is to have, and whether the service waits for end_extension(), since the guest
        has to make it so. Raises InvalidVolume: it is not the instance's for the service."""

    def end_extension(self, device: BlockDevice, size_gb: int, done: bool) -> None:
        """The service, if it waits to hear of this size (0: whichever), goes on: the volume has it (``done``), or the
        one that it had. Raises InvalidVolume: it has given up what is done."""

    def begin_detaching(self, device: BlockDevice) -> None:
        """Raises InvalidVolume when it cannot be detached."""

    def roll_detaching(self, device: BlockDevice) -> None:
        """The guest keeps it."""

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        """They are not the instance's any more; those that are to go with it are deleted, unless ``keep``."""


class ServerImages(Protocol):
    """Images that the instance is saved in: for external steps, each as often as needed.

    All but describe() raise ImageBackendUnavailable and what the image service refuses.
    """

    def describe(self, name: str, more: Mapping[str, str], kind: str = "snapshot") -> Image:
        """What an image of the instance is to be, with an id of its own and these properties more; it belongs to the
        caller's project. Nobody outside is asked. Raises InvalidInput for what is no property."""

    def make(self, wanted: Image) -> None:
        """The image service knows of it, and waits for its data."""

    def fill(self, image_id: str, properties: Mapping[str, str]) -> None:
        """The image has these properties, too, and can be used: it has no data. Raises ImageNotFound."""

    def get(self, image_id: str) -> Image:
        """Raises ImageNotFound."""

    def delete(self, image_id: str) -> None:
        """There is no such image, unless somebody protects it or the image service has it in use."""

    def rotate(self, newest: Image, keep: int) -> None:
        """Of the backups of the instance that are of one type with this one the ``keep`` newest are left."""


class ServerShares(Protocol):
    """The shares in the server's row."""

    def add(self, mapping: ShareMapping) -> None:
        """The server is to have it; in its accepting transaction."""

    def become(self, mapping: ShareMapping, status: str) -> None:
        """That is its status from now on, if the server has it still."""

    def remove(self, mapping: ShareMapping) -> None:
        """The server has it no longer."""


class OutsideShares(Protocol):
    """The accesses of hosts to shares, for external steps, each as often as needed.

    All raise ShareServiceUnavailable and what the service refuses: ShareAccessGrantError, ShareAccessRemovalError.
    """

    def allow(self, host: str, looks: int, *share_ids: str) -> None:
        """The host may reach these shares (without ``share_ids`` all that the guest is to have), for this server.

        Raises Wait while another server gives up the same access; ``looks``: how often it has waited.
        """

    def deny(self, host: str, *share_ids: str) -> None:
        """The host ("": no host) may not reach these (without ``share_ids`` any), unless another server needs it."""

    def leave(self, *hosts: str) -> None:
        """As settle(); but what the service refuses to take away stays, and is looked at again later.

        Raises ShareServiceUnavailable.
        """

    def settle(self, *hosts: str) -> None:
        """What the server has may be reached from these hosts (without ``hosts`` from its places), and from no other.
        """

    def release(self) -> None:
        """The server has none any more; what the service refuses to take away is looked at again later.

        Raises ShareServiceUnavailable.
        """
