"""The embedded volume back end, whose volumes are in the database (:class:`nova.volume.base.Attachments`)."""

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.sql.engine import Database
from nova.db.volumes import volumes
from nova.objects.volumes.volume import SnapshotRequest, VolumeSnapshot

NO_SNAPSHOTS = "volumes of the embedded back end have no snapshots"


class NoSnapshots:
    """The snapshot service of the embedded back end, which supports no snapshots."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        return []

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        raise exception.SnapshotNotFound(snapshot_id=uuid)

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        self._db.read(lambda connection: volumes.get(connection, wanted.volume_id, ctx.project_id))
        raise exception.InvalidVolume(reason=NO_SNAPSHOTS)

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        raise exception.SnapshotNotFound(snapshot_id=uuid)

    def check_room(self, ctx: RequestContext, count: int) -> None:
        raise exception.InvalidVolume(reason=NO_SNAPSHOTS)


class EmbeddedAttachments:
    """Checks of requests for the volumes in this database."""

    external = False

    def __init__(self, db: Database) -> None:
        self._db = db
        self.snapshots = NoSnapshots(db)
        self.volumes = None

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        return ""

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        instance_uuid = self._db.read(lambda connection: volumes.get(connection, volume_id)).instance_uuid
        return {instance_uuid} if instance_uuid else set()

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        self._db.read(lambda connection: volumes.get(connection, new, project_id))
        if not CONF.volume.allow_swap:
            raise exception.VolumeNotMigrated(old=old, new=new)
        return False
