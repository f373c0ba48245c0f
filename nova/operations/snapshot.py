"""Snapshot and backup: upload the server's root disk as an image while the server keeps running.

make_image (conductor) → capture, upload (host), and for backups → rotate (conductor). The image is visible to its owner
from the first step on. It is deleted if the upload fails."""

from collections.abc import Callable
from typing import ClassVar

from nova import exception
from nova.objects.base import Object
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.operations.framework.base import CONDUCTOR, IMAGES, Operation, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules

STATES = frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED})
# Seconds after which a step that copies or uploads a disk fails. Disks may be large and image services slow.
DEADLINE = 24 * 3600.0


class SnapshotRequest(Object, kw_only=True):
    """``metadata``: image properties that override the defaults."""

    name: str
    metadata: dict[str, str] = {}


class BackupRequest(SnapshotRequest, kw_only=True):
    """``rotation``: number of backups of this type to keep, including the new one."""

    backup_type: str
    rotation: int


class ImageMade(Object, kw_only=True):
    image_id: str


class SavedData(Object, kw_only=True):
    """``image``: the image to create; None: no image is created."""

    host: str = ""
    image: Image | None = None


class SnapshotData(SavedData, kw_only=True):
    rotation: int = 0


class Saving(Operation):
    """Base of operations that save a server in an image."""

    data_type: ClassVar[type[Object]] = SavedData
    kind = "snapshot"

    @step(CONDUCTOR, undo="unmake_image", external=IMAGES)
    def make_image(self, ctl: Control) -> None:
        ctl.images.make(self.data.image)

    def discard(self, host: HostContext) -> None:
        host.driver.snapshots.discard(host.instance)

    def unmake_image(self, ctl: Control) -> None:
        ctl.images.delete(self.data.image.id)


HostStep = Callable[[Saving, HostContext], None]


def capturing(event: str, task_state: str, when: str | None = None) -> HostStep:
    """Return the step ``capture``, which copies the disk."""
    @step("host", event=event, task_state=task_state, undo="discard", when=when, deadline=DEADLINE)
    def capture(self: Saving, host: HostContext) -> None:
        host.driver.snapshots.take(host.instance, self.data.image.id, host.cancelled)

    return capture


def uploading(event: str, task_state: str, when: str | None = None) -> HostStep:
    """Return the step ``upload``, which uploads the copy of the disk."""
    @step("host", event=event, task_state=task_state, when=when, deadline=DEADLINE)
    def upload(self: Saving, host: HostContext) -> None:
        host.upload(self.data.image.id, host.driver.snapshots.take(host.instance, self.data.image.id, host.cancelled))
        host.driver.snapshots.discard(host.instance)

    return upload


class CreateImage(Saving):
    name, action = "create_image", "createImage"
    rules = Rules(label="createImage", vm_states=STATES, lock=False, host="needed", release=3)
    request_type = SnapshotRequest
    answer_type = ImageMade
    task_state = states.IMAGE_SNAPSHOT_PENDING

    def accept(self, ctl: Acceptance, request: SnapshotRequest) -> ImageMade:
        if self.instance.volume_backed:  # see operations/volume_image.py
            raise exception.Invalid("The server boots from a volume.")
        self.data.image = ctl.images.describe(request.name, request.metadata)
        return ImageMade(image_id=self.data.image.id)

    make_image = Saving.make_image
    capture = capturing("compute_snapshot_instance", states.IMAGE_PENDING_UPLOAD)
    upload = uploading("compute_snapshot_instance", states.IMAGE_UPLOADING)


class CreateBackup(Saving):
    name, action = "create_backup", "createBackup"
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
        # rotate() finds the backups of the server by these properties.
        self.data.image.properties |= {"image_type": "backup", "backup_type": request.backup_type}
        return ImageMade(image_id=self.data.image.id)

    make_image = Saving.make_image
    capture = capturing("compute_backup_instance", states.IMAGE_PENDING_UPLOAD)
    upload = uploading("compute_backup_instance", states.IMAGE_UPLOADING)

    @step(CONDUCTOR, event="compute_backup_instance", external=IMAGES)
    def rotate(self, ctl: Control) -> None:
        ctl.images.rotate(self.data.image, self.data.rotation)
