"""The interface of a volume back end on the conductor.

Its counterpart on the hosts is :class:`nova.volume.base.HostVolumes`. [volume]driver selects both."""

from typing import Protocol

from nova.context import RequestContext
from nova.objects.volumes.volume import AVAILABLE, SnapshotRequest, Volume, VolumeSnapshot
from nova.operations.framework.contexts import ServiceControl
from nova.operations.framework.resource_contexts import OutsideVolumes


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
        """The volumes of the external service, or None if the back end is not external."""

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of volumes."""

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        """Return the id of the volume's encryption key in the key manager, or "" if the volume is not encrypted.
        ``own_rights``: use Nova's credentials instead of the caller's. Raises VolumeNotFound, InvalidVolume (the
        encryption is not supported)."""

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        """Return the servers that a volume is attached to, as visible to the caller. Raises VolumeNotFound."""

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        """Return True if the service migrates volume ``old`` into ``new``, so that the volume keeps its id. Raises
        VolumeNotMigrated (``new`` cannot replace ``old``), VolumeNotFound, MultiattachSwapUnsupported."""

    # --- only of an external service -----------------------------------------------------------------------
    def of_server(self, ctl: ServiceControl) -> OutsideVolumes:
        """Return the volumes of the server of a step."""

    def validate(self, ctx: RequestContext, project_id: str, volume_id: str, status: str = AVAILABLE) -> Volume:
        """Return a volume, read with the rights of the caller, and check its status. Raises VolumeNotFound,
        InvalidVolume."""

    def volume_from_snapshot(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        """Return the properties (without an id) of a volume that will be created from a snapshot. Raises
        SnapshotNotFound, InvalidVolume (the snapshot is not available)."""

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        """Return True if the volume is deleted or in an error status."""
