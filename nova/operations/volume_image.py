"""Image of a server that boots from a volume of an outside service: snapshots of its volumes, and an image without data
that describes them.

make_image → freeze → take_snapshots → thaw → publish, all on the conductor. The file systems of a guest that runs are
at rest meanwhile if its image says that it has an agent. The image is known from the first step on, and can be used
when all snapshots are made; else neither it nor they are left. Where the service needs the guest's hypervisor for one,
that is an operation of its own, which goes ahead of this one.
"""

from __future__ import annotations

import datetime
import logging

from nova import exception
from nova.objects import states
from nova.objects.requirements.properties import AGENT, QUIESCE, Properties
from nova.objects.volume_image import properties_of, without_description
from nova.operations.assisted_snapshots import ASSISTED
from nova.operations.base import CONDUCTOR, HOST, IMAGES, VOLUMES, Rules, Step, Wait, step
from nova.operations.contexts import Acceptance, Control, Desk
from nova.operations.guest_driver import LONGEST_REST
from nova.operations.snapshot import STATES, ImageMade, SavedData, Saving, SnapshotRequest

LOG = logging.getLogger(__name__)

_EVENT = "api_snapshot_instance"
# Seconds until snapshots are looked at again while a guest is at rest, and how often: writers in it stand still.
_PAUSE, _LOOKS = 1.0, 30


class VolumeImageData(SavedData, kw_only=True):
    """``quiesce``: the guest is at rest while the snapshots are made, asked for at ``asked_at``; ``looks``: how often
    was waited for them; ``drops``: how often until they could be deleted again."""

    quiesce: bool = False
    asked_at: datetime.datetime | None = None
    looks: int = 0
    drops: int = 0


class CreateVolumeImage(Saving):
    name = "create_volume_image"
    action = "createImage"
    rules = Rules(label="createImage", vm_states=STATES, lock=False, host="needed", beside=True, release=4)
    request_type = SnapshotRequest
    answer_type = ImageMade
    data_type = VolumeImageData

    def prepare(self, desk: Desk, request: SnapshotRequest) -> None:
        desk.check_snapshots()

    def accept(self, ctl: Acceptance, request: SnapshotRequest) -> ImageMade:
        if self.instance.action_uuid:  # whoever has waited has no token of the user any more
            raise exception.InstanceIsBusy(method=self.rules.label, instance_uuid=self.instance.uuid)
        image = ctl.images.describe(request.name, request.metadata)
        # How large its disks have to be, the snapshots say.
        image.min_disk = 0
        image.properties = without_description(image.properties)
        self.data.image = image
        self.data.quiesce = self._quiesces(ctl)
        return ImageMade(image_id=image.id)

    def _quiesces(self, ctl: Acceptance) -> bool:
        """Raises InstanceQuiesceFailed."""
        instance, wishes = self.instance, Properties(self.instance)
        if instance.vm_state != states.ACTIVE:
            return False
        has_agent, host_up = wishes.image_flag(AGENT), ctl.host_up(instance.host or "")
        if wishes.image_flag(QUIESCE) and not (has_agent and host_up):
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason=(
                "its host is down" if has_agent else "its image does not say that it has a guest agent"))
        return has_agent and host_up

    @step(CONDUCTOR, event=_EVENT, undo="unmake_image", external=IMAGES)
    def make_image(self, ctl: Control) -> None:
        self._make(ctl)

    # The host is asked at once, not by an order: whoever goes on after an order has no token of the user any more, and
    # with that alone snapshots become the user's.
    @step(CONDUCTOR, event=_EVENT, undo="thaw", external=HOST, when="quiesce")
    def freeze(self, ctl: Control) -> None:
        self.data.asked_at = ctl.now()
        try:
            ctl.quiesce(self.data.host)
        except (exception.InstanceQuiesceFailed, exception.NotImplementedHere, exception.GuestNotFound,
                exception.ServiceUnavailable) as error:
            if Properties(ctl.instance).image_flag(QUIESCE):
                if isinstance(error, exception.InstanceQuiesceFailed):
                    raise
                raise exception.InstanceQuiesceFailed(instance_id=ctl.instance.uuid, reason=error.message) from error
            LOG.warning("[instance: %s] The snapshots of its volumes are taken while its file systems are in use: %s",
                        ctl.instance.uuid, error)

    @step(CONDUCTOR, event=_EVENT, undo="drop_snapshots", external=VOLUMES)
    def take_snapshots(self, ctl: Control) -> None:
        made = ctl.outside_volumes.take_snapshots(self.data.image)
        if not self.data.looks:
            self._check_rest(ctl)
        if self.data.quiesce and not made and self.data.looks < _LOOKS:
            self.data.looks += 1
            raise Wait(seconds=_PAUSE, ahead=ASSISTED)
        self.data.looks = 0

    def _check_rest(self, ctl: Control) -> None:
        """Raises InstanceQuiesceFailed: it was over before the service had taken the snapshots on."""
        asked_at = self.data.asked_at
        if asked_at is None or (ctl.now() - asked_at).total_seconds() < LONGEST_REST:
            return
        if Properties(ctl.instance).image_flag(QUIESCE):
            raise exception.InstanceQuiesceFailed(instance_id=ctl.instance.uuid, reason=(
                "the volume service took longer than its file systems may be at rest"))
        LOG.warning("[instance: %s] The snapshots of its volumes may have been taken after its file systems went on",
                    ctl.instance.uuid)

    @step(CONDUCTOR, event=_EVENT, external=HOST, owed=True, when="quiesce")
    def thaw(self, ctl: Control) -> None:
        """A host that is down is not waited for: it is told when it is back."""
        host = self.data.host
        if not ctl.host_up(host):
            raise exception.HostDown(host=host)
        ctl.unquiesce(host)

    @step(CONDUCTOR, event=_EVENT, external=IMAGES)
    def publish(self, ctl: Control) -> None:
        looks, self.data.looks = self.data.looks, self.data.looks + 1
        snapshots = ctl.outside_volumes.snapshots(self.data.image, looks)
        ctl.images.fill(self.data.image.id, properties_of(ctl.instance, snapshots))

    # --- compensations -----------------------------------------------------------------------------
    def drop_snapshots(self, ctl: Control) -> None:
        try:
            ctl.outside_volumes.drop_snapshots(self.data.image)
        except exception.VolumeServiceUnavailable:
            # It may be making one still, with help that waits behind this; deleted are those that are made.
            if self.taken_over or self.data.drops >= _LOOKS:
                raise
            self.data.drops += 1
            raise Wait(seconds=_PAUSE, ahead=ASSISTED) from None

    def take_back(self, of: Step, ctl: Control) -> None:
        self.taken_over = True  # nothing waits behind what has ended
        super().take_back(of, ctl)
