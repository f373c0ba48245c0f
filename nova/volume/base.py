"""The interfaces of a volume back end: one on hosts, one on conductors. [volume]driver selects both.

The conductor assigns volumes to servers."""

import abc
from collections.abc import Callable
from typing import Any, Protocol

from nova import exception
from nova.context import RequestContext
from nova.objects.images.image import Image
from nova.objects.volumes.volume import (
    AVAILABLE,
    ConnectionInfo,
    SnapshotRequest,
    Volume,
    VolumeConnection,
    VolumeKey,
    VolumeRemoval,
    VolumeSnapshot,
)
from nova.operations.framework.contexts import ServiceControl
from nova.operations.framework.resource_contexts import OutsideVolumes

# Fetches and checks an image of at most the given size in bytes, and returns its path and format (raw or qcow2).
Fetch = Callable[[Image, int], tuple[str, str]]


class DiskTools(Protocol):
    """Operations on disk image files of the hypervisor. All methods raise DiskFull, InvalidDiskInfo."""

    def create(self, path: str, disk_format: str, size: int) -> None:
        """Create an empty, sparse disk of ``size`` bytes."""

    def copy(self, source: str, source_format: str, path: str, disk_format: str) -> None:
        """Create a sparse disk with the content and size of ``source``."""

    def grow(self, path: str, disk_format: str, size: int) -> None:
        """Extend a disk to ``size`` bytes."""

    def size(self, path: str, disk_format: str) -> int:
        """Return the virtual size in bytes of a disk. A disk of several files is rejected with InvalidDiskInfo."""

    def backing_file(self, path: str, disk_format: str) -> tuple[str, str | None] | None:
        """Return name and format (None: unspecified) of the backing file of a disk, or None if it has none. The backing
        file itself is not opened. A disk with an external data file is rejected with InvalidDiskInfo."""

    def encrypted_format(self, path: str) -> str:
        """Return the format of a LUKS-encrypted file: raw (a plain LUKS container) or qcow2 with LUKS inside. Only the
        header is probed, which a guest cannot write."""


class HostVolumes(abc.ABC):
    """The volumes of a host, as used by nova-compute. All methods are idempotent. Arguments include the connection info
    from the conductor's part of the back end."""

    def __init__(self, tools: DiskTools) -> None:
        self.tools = tools

    @abc.abstractmethod
    def start(self) -> None:
        """Prepare the host for volumes, when the service starts."""

    def connector(self, host: str) -> dict[str, Any]:
        """Return properties of this machine (service ``host``) that the volume service needs for connections."""
        return {}

    @abc.abstractmethod
    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        """Connect a volume to this host. Raises VolumeUnusable, DiskFull, ImageUnacceptable. ``fetch``: None on hosts
        of the fake driver, where volumes with an image are empty. ``key``: the volume's key, for the hypervisor."""

    @abc.abstractmethod
    def disconnect(self, info: ConnectionInfo) -> None:
        """Disconnect a volume, keeping its data. Succeeds if the volume is not connected."""

    @abc.abstractmethod
    def remove(self, removal: VolumeRemoval) -> None:
        """Delete data of a volume. Succeeds if there are none."""


class NoVolumes(HostVolumes):
    """A host without volumes, which cannot have servers with volumes."""

    def __init__(self, tools: DiskTools | None = None) -> None:
        """Ignore the tools, since no disks are created."""

    def start(self) -> None: ...
    def disconnect(self, info: ConnectionInfo) -> None: ...
    def remove(self, removal: VolumeRemoval) -> None: ...

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        raise exception.VolumeUnusable(volume_id=str(info.get("volume_id")), reason="the host does not support volumes")


class UserVolumes(Protocol):
    """The volumes of an external service, accessed with the token of the caller. The methods are those of
    :class:`nova.rpcapi.volumes.Volumes`."""

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[Volume]: ...
    def get(self, ctx: RequestContext, uuid: str) -> Volume: ...
    def create(self, ctx: RequestContext, volume: Volume) -> Volume: ...
    def delete(self, ctx: RequestContext, uuid: str) -> None: ...


class Snapshots(Protocol):
    """Snapshots of volumes. The first four methods are those of :class:`nova.rpcapi.volumes.VolumeSnapshots`."""

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]: ...
    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot: ...
    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot: ...
    def delete(self, ctx: RequestContext, uuid: str) -> None: ...

    def check_room(self, ctx: RequestContext, count: int) -> None:
        """Raise QuotaLimit if the project may not have ``count`` more snapshots, or InvalidVolume if snapshots are
        unsupported. Called outside of transactions, before a request is accepted."""


class Attachments(Protocol):
    """Checks of requests that concern volumes, and access to the volumes of an external service. All methods are called
    outside of transactions. ``external``: True if an external service manages the volumes; methods then also raise
    VolumeServiceUnavailable. Otherwise the volumes are rows of this database."""

    external: bool

    @property
    def volumes(self) -> UserVolumes | None:
        """Return the volumes of the external service, or None if the back end is not external."""

    @property
    def snapshots(self) -> Snapshots:
        """Return the snapshot service of the back end."""

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        """Return the id of the volume's encryption key in the key manager, or "" if the volume is not encrypted.
        ``own_rights``: use Nova's credentials instead of the caller's. Raises VolumeNotFound, InvalidVolume (the
        encryption is not supported)."""

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        """Return the servers to which a volume that the caller may read is attached. Raises VolumeNotFound."""

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        """Return True if the service migrates volume ``old`` into ``new``, so that the volume keeps its id. Raises
        VolumeNotMigrated (``new`` cannot replace ``old``), VolumeNotFound, MultiattachSwapUnsupported."""

    # --- only of an external service -----------------------------------------------------------------------
    def of_server(self, ctl: ServiceControl) -> OutsideVolumes:
        """Return the volumes of the server of a step."""

    def validate(self, ctx: RequestContext, project_id: str, volume_id: str, status: str = AVAILABLE) -> Volume:
        """Return a volume that the caller may read, and check its status. Raises VolumeNotFound, InvalidVolume."""

    def volume_from_snapshot(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        """Return the properties (without an id) of a volume that will be created from a snapshot. Raises
        SnapshotNotFound, InvalidVolume (the snapshot is not available)."""

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        """Return True if the volume is deleted or in an error status."""
