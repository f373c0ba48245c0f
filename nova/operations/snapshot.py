"""Snapshots and backups: the server's root disk as an image, while the server goes on.

make_image (conductor) → capture, upload (host), and of backups → rotate (conductor). The image is known to its owner
from the first step on; when it is not given its data, it is deleted.
"""

from __future__ import annotations

from typing import ClassVar

from nova import exception
from nova.objects import states
from nova.objects.base import Object
from nova.objects.image import Image
from nova.operations.base import CONDUCTOR, IMAGES, Operation, Rules, step
from nova.operations.contexts import Acceptance, Control, Host

STATES = frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED})
# Seconds: disks may be large, and image services slow.
DEADLINE = 24 * 3600.0


class SnapshotRequest(Object, kw_only=True):
    """``metadata``: properties of the image, before those that it would have."""

    name: str
    metadata: dict[str, str] = {}


class BackupRequest(SnapshotRequest, kw_only=True):
    """``rotation``: how many backups of this type are left of the server, this one among them."""

    backup_type: str
    rotation: int


class ImageMade(Object, kw_only=True):
    image_id: str


class SavedData(Object, kw_only=True):
    """``image``: as it is to be; None: there is none to be made."""

    host: str = ""
    image: Image | None = None


class SnapshotData(SavedData, kw_only=True):
    rotation: int = 0


class Saving(Operation):
    """Base of what saves a server in an image: the pieces of its steps."""

    data_type: ClassVar[type[Object]] = SavedData
    kind = "snapshot"

    def _make(self, ctl: Control) -> None:
        ctl.images.make(self.data.image)

    def _capture(self, host: Host) -> None:
        host.driver.snapshot(host.instance, self.data.image.id, host.cancelled)

    def _upload(self, host: Host) -> None:
        host.upload(self.data.image.id, host.driver.snapshot(host.instance, self.data.image.id, host.cancelled))
        host.driver.discard_snapshot(host.instance)

    # --- compensations -----------------------------------------------------------------------------
    def discard(self, host: Host) -> None:
        host.driver.discard_snapshot(host.instance)

    def unmake_image(self, ctl: Control) -> None:
        ctl.images.delete(self.data.image.id)


class CreateImage(Saving):
    name = "create_image"
    action = "createImage"
    rules = Rules(label="createImage", vm_states=STATES, lock=False, host="needed", release=3)
    request_type = SnapshotRequest
    answer_type = ImageMade
    task_state = states.IMAGE_SNAPSHOT_PENDING

    def accept(self, ctl: Acceptance, request: SnapshotRequest) -> ImageMade:
        if self.instance.volume_backed:  # operations/volume_image.py makes it
            raise exception.Invalid("The server boots from a volume.")
        self.data.image = ctl.images.describe(request.name, request.metadata)
        return ImageMade(image_id=self.data.image.id)

    @step(CONDUCTOR, undo="unmake_image", external=IMAGES)
    def make_image(self, ctl: Control) -> None:
        self._make(ctl)

    @step("host", event="compute_snapshot_instance", task_state=states.IMAGE_PENDING_UPLOAD, undo="discard",
          deadline=DEADLINE)
    def capture(self, host: Host) -> None:
        self._capture(host)

    @step("host", event="compute_snapshot_instance", task_state=states.IMAGE_UPLOADING, deadline=DEADLINE)
    def upload(self, host: Host) -> None:
        self._upload(host)


class CreateBackup(Saving):
    name = "create_backup"
    action = "createBackup"
    rules = Rules(label="createBackup", vm_states=STATES, lock=False, host="needed", release=3)
    request_type = BackupRequest
    answer_type = ImageMade
    data_type = SnapshotData
    task_state = states.IMAGE_BACKUP
    point_of_no_return = "upload"

    def accept(self, ctl: Acceptance, request: BackupRequest) -> ImageMade:
        if self.instance.volume_backed:
            raise exception.Invalid("Backup is not supported for volume-backed instances.")
        self.data.image = ctl.images.describe(request.name, request.metadata, "backup")
        # what it is found by when it is its turn to go
        self.data.image.properties |= {"image_type": "backup", "backup_type": request.backup_type}
        return ImageMade(image_id=self.data.image.id)

    @step(CONDUCTOR, undo="unmake_image", external=IMAGES)
    def make_image(self, ctl: Control) -> None:
        self._make(ctl)

    @step("host", event="compute_backup_instance", task_state=states.IMAGE_PENDING_UPLOAD, undo="discard",
          deadline=DEADLINE)
    def capture(self, host: Host) -> None:
        self._capture(host)

    @step("host", event="compute_backup_instance", task_state=states.IMAGE_UPLOADING, deadline=DEADLINE)
    def upload(self, host: Host) -> None:
        self._upload(host)

    @step(CONDUCTOR, event="compute_backup_instance", external=IMAGES)
    def rotate(self, ctl: Control) -> None:
        ctl.images.rotate(self.data.image, self.data.rotation)
