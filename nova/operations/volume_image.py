"""Volume image: an image of a server that boots from an external volume. It consists of snapshots of all volumes and an
image without data that describes them.

make_image → freeze → take_snapshots → thaw → publish, all on the conductor. The file systems of a running guest are
quiesced meanwhile if its image declares a guest agent. The image is visible from the first step on, and active when all
snapshots are ready; after a failure image and snapshots are deleted. If the service needs the guest's hypervisor for a
snapshot, it starts an assisted snapshot, an operation that runs before this one continues."""

import datetime
import logging

import msgspec

from nova import exception
from nova.objects.requirements.properties import AGENT, QUIESCE, Properties
from nova.objects.servers import states
from nova.objects.servers.volume_image import properties_of, without_description
from nova.operations.assisted_snapshots import ASSISTED
from nova.operations.framework.base import CONDUCTOR, HOST, IMAGES, VOLUMES, Step, Wait, step
from nova.operations.framework.contexts import Acceptance, Control, PrecheckContext
from nova.operations.framework.guest_driver import QUIESCE_TIMEOUT
from nova.operations.framework.rules import Rules
from nova.operations.snapshot import STATES, ImageMade, SavedData, Saving, SnapshotRequest

LOG = logging.getLogger(__name__)

_EVENT = "api_snapshot_instance"
# Seconds between two polls of the snapshots, and maximum number of polls, while the guest is quiesced and cannot write.
_POLL_INTERVAL, _MAX_POLLS = 1.0, 30


class VolumeImageData(SavedData, kw_only=True):
    """``quiesce``: quiesce the guest while snapshots are taken; ``quiesce_requested_at``: when that was requested.
    ``polls``: number of waits until snapshots are ready; ``drops``: number of waits until they can be deleted."""

    quiesce: bool = False
    quiesce_requested_at: datetime.datetime | None = msgspec.field(default=None, name="asked_at")
    polls: int = msgspec.field(default=0, name="looks")
    drops: int = 0


class CreateVolumeImage(Saving):
    name, action = "create_volume_image", "createImage"
    rules = Rules(label="createImage", vm_states=STATES, lock=False, host="needed", beside=True, release=4)
    request_type = SnapshotRequest
    answer_type = ImageMade
    data_type = VolumeImageData

    def prepare(self, precheck: PrecheckContext, request: SnapshotRequest) -> None:
        precheck.check_snapshots()

    def accept(self, ctl: Acceptance, request: SnapshotRequest) -> ImageMade:
        if self.instance.action_uuid:  # a queued action loses the user's token, which the snapshots need
            raise exception.InstanceIsBusy(method=self.rules.label, instance_uuid=self.instance.uuid)
        image = ctl.images.describe(request.name, request.metadata)
        image.min_disk = 0  # the snapshots define the minimum size of the disks
        image.properties = without_description(image.properties)
        self.data.image = image
        self.data.quiesce = self._quiesces(ctl)
        return ImageMade(image_id=image.id)

    def _quiesces(self, ctl: Acceptance) -> bool:
        """Return True if the guest must be quiesced. Raises InstanceQuiesceFailed."""
        instance, properties = self.instance, Properties.of(self.instance)
        if instance.vm_state != states.ACTIVE:
            return False
        has_agent, host_up = properties.image_flag(AGENT), ctl.host_up(instance.host or "")
        if properties.image_flag(QUIESCE) and not (has_agent and host_up):
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason=(
                "its host is down" if has_agent else "its image does not have the property hw_qemu_guest_agent"))
        return has_agent and host_up

    @step(CONDUCTOR, event=_EVENT, undo="unmake_image", external=IMAGES)
    def make_image(self, ctl: Control) -> None:
        ctl.images.make(self.data.image)

    # The host is called directly, not by a host step: the user's token is lost after such steps, and snapshots must be
    # created with that token to belong to the user.
    @step(CONDUCTOR, event=_EVENT, undo="thaw", external=HOST, when="quiesce")
    def freeze(self, ctl: Control) -> None:
        self.data.quiesce_requested_at = ctl.now()
        try:
            ctl.quiesce(self.data.host)
        except (exception.InstanceQuiesceFailed, exception.NotImplementedHere, exception.GuestNotFound,
                exception.ServiceUnavailable) as error:
            if Properties.of(ctl.instance).image_flag(QUIESCE):
                if isinstance(error, exception.InstanceQuiesceFailed):
                    raise
                raise exception.InstanceQuiesceFailed(instance_id=ctl.instance.uuid, reason=error.message) from error
            LOG.warning("[instance: %s] Cannot quiesce the guest, taking the volume snapshots anyway: %s",
                        ctl.instance.uuid, error)

    @step(CONDUCTOR, event=_EVENT, undo="drop_snapshots", external=VOLUMES)
    def take_snapshots(self, ctl: Control) -> None:
        made = ctl.outside_volumes.take_snapshots(self.data.image)
        requested_at = self.data.quiesce_requested_at
        if not self.data.polls and requested_at and (ctl.now() - requested_at).total_seconds() >= QUIESCE_TIMEOUT:
            # The service must have started all snapshots during the quiesce.
            if Properties.of(ctl.instance).image_flag(QUIESCE):
                raise exception.InstanceQuiesceFailed(instance_id=ctl.instance.uuid, reason=(
                    "the volume snapshots took longer than file systems may stay quiesced"))
            LOG.warning("[instance: %s] The volume snapshots may be inconsistent: some may have been taken after the "
                        "file systems were thawed", ctl.instance.uuid)
        if self.data.quiesce and not made and self.data.polls < _MAX_POLLS:
            self.data.polls += 1
            raise Wait(seconds=_POLL_INTERVAL, ahead=ASSISTED)
        self.data.polls = 0

    @step(CONDUCTOR, event=_EVENT, external=HOST, deferrable=True, when="quiesce")
    def thaw(self, ctl: Control) -> None:
        """Thaw the guest. For a host that is down the step is deferred until the host returns."""
        host = self.data.host
        if not ctl.host_up(host):
            raise exception.HostDown(host=host)
        ctl.unquiesce(host)

    @step(CONDUCTOR, event=_EVENT, external=IMAGES)
    def publish(self, ctl: Control) -> None:
        polls, self.data.polls = self.data.polls, self.data.polls + 1
        snapshots = ctl.outside_volumes.snapshots(self.data.image, polls)
        ctl.images.fill(self.data.image.id, properties_of(ctl.instance, snapshots))

    def drop_snapshots(self, ctl: Control) -> None:
        try:
            ctl.outside_volumes.drop_snapshots(self.data.image)
        except exception.VolumeServiceUnavailable:
            # The service may still be creating a snapshot with an assisted operation that is queued behind this one.
            # Only finished snapshots can be deleted.
            if self.taken_over or self.data.drops >= _MAX_POLLS:
                raise
            self.data.drops += 1
            raise Wait(seconds=_POLL_INTERVAL, ahead=ASSISTED) from None

    def clean_up(self, of: Step, ctl: Control) -> None:
        self.taken_over = True  # nothing is queued behind an ended operation
        super().clean_up(of, ctl)
