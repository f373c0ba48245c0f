"""RPC interfaces for volumes, volume snapshots and shares."""

from nova.bus import by_hosts, with_token
from nova.context import RequestContext
from nova.objects.volumes.share import Share
from nova.objects.volumes.volume import AttachmentChanges, SnapshotRequest, Volume, VolumeRemoval, VolumeSnapshot
from nova.rpcapi import CONDUCTOR, Interface


class Volumes(Interface, topic=CONDUCTOR, namespace="volumes"):
    """Volumes. ``project_id`` None means all projects. Requests to an external volume service use the token of the
    caller, which determines the visible volumes, and may also raise Forbidden and VolumeServiceUnavailable."""

    @with_token
    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Volume]:
        """Return volumes, newest first."""

    @with_token
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Volume:
        """Return a volume. Raises VolumeNotFound."""

    @with_token
    def create(self, ctx: RequestContext, volume: Volume) -> Volume:
        """Create a volume. Raises QuotaLimit, InvalidInput (size, availability zone)."""

    @with_token
    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        """Delete a volume; its host removes the data. Raises VolumeNotFound, InvalidVolume."""

    def update_attachment(self, ctx: RequestContext, instance_uuid: str, volume_id: str, changes: AttachmentChanges,
                          project_id: str | None = None) -> None:
        """Change an attachment of a server. Raises InstanceNotFound, VolumeNotAttached."""

    @by_hosts
    def removed(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        """Report that a host removed the data of volumes, or had none."""


class VolumeSnapshots(Interface, topic=CONDUCTOR, namespace="volume_snapshots"):
    """Volume snapshots of the caller. Requests to an external volume service use the token of the caller, and may raise
    VolumeServiceUnavailable and Forbidden. Embedded volumes have no snapshots."""

    @with_token
    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        """Return the snapshots of the caller's project, newest first."""

    @with_token
    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        """Return a snapshot of a volume. Raises SnapshotNotFound."""

    @with_token
    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        """Start a snapshot. Raises VolumeNotFound, InvalidVolume (wrong status, or no snapshots), QuotaLimit."""

    @with_token
    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Start the deletion of a snapshot. Raises SnapshotNotFound, InvalidVolume (wrong status)."""

    def server_of(self, ctx: RequestContext, volume_id: str) -> str | None:
        """Return the server, of any project, to which a volume is attached, or None. Uses the credentials of Nova.
        Raises VolumeNotFound, InvalidVolume (attached to several servers), VolumeServiceUnavailable."""


class Shares(Interface, topic=CONDUCTOR, namespace="shares"):
    """Embedded shares. ``project_id`` None means all projects. With external shares all methods raise NotSupported."""

    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Share]:
        """Return shares, newest first."""

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Share:
        """Return a share. Raises ShareNotFound."""

    def create(self, ctx: RequestContext, share: Share) -> Share:
        """Create a share. A repeated request creates it only once."""

    def delete(self, ctx: RequestContext, uuid: str) -> Share:
        """Delete a share; its directory stays. Raises ShareNotFound, ShareInUse."""
