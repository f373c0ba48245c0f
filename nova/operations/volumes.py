"""Attach and detach volumes. These operations queue behind the running operation of the server.

The acceptance decides which server owns the volume; the host then attaches or detaches it. The steps wait for a host
that is down, because its progress is unknown. For volumes of an external service, the acceptance only records the
intent, and that service decides in the first step."""

import logging

from nova import exception
from nova.objects.base import Object
from nova.objects.requirements.requested_resources import MULTIATTACH
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import AVAILABLE, Attachment, VolumeEncryption
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, VOLUMES, NoRequest, Releasing, Step, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext, PrecheckContext
from nova.operations.framework.rules import Rules

LOG = logging.getLogger(__name__)

_SHELVED = frozenset({states.SHELVED, states.SHELVED_OFFLOADED})
_STATES = frozenset({states.ACTIVE, states.PAUSED, states.STOPPED, states.RESIZED, states.SOFT_DELETED}) | _SHELVED


class AttachRequest(Object, kw_only=True):
    """``shelved``: the server may be shelved (API 2.20); ``shares``: the volume may be multi-attach (API 2.60)."""

    volume_id: str
    device_name: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False
    shelved: bool = True
    shares: bool = False


class DetachRequest(Object, kw_only=True):
    volume_id: str
    shelved: bool = True


class VolumeData(Object, kw_only=True):
    """``device``: the device of the operation as stored in the server's row. ``outside_volumes``: an external service
    manages the volume; ``let_go``: the guest has released the volume; ``released``: that service has released it, too.
    ``lost``: the volume is missing or in error there. ``multiattach``: other servers may attach the volume. ``owner``:
    project of the volume at the time of the request."""

    host: str = ""
    device: BlockDevice | None = None
    outside_volumes: bool = False
    let_go: bool = False
    released: bool = False
    lost: bool = False
    multiattach: bool = False
    encryption: VolumeEncryption | None = None
    owner: str = ""


class _Volume(Releasing):
    """Common base of attach and detach."""

    data_type = VolumeData

    def clean_up(self, of: Step, ctl: Control) -> None:
        # If the volume was attached to the server again, the service cannot tell the two attachments apart: keep both.
        if all(other.uuid == self.data.device.uuid for other in ctl.instance.volumes
               if other.volume_id == self.data.device.volume_id):
            super().clean_up(of, ctl)


class AttachVolume(_Volume):
    name = action = "attach_volume"
    rules = Rules(label="attach_volume", vm_states=_STATES, beside=True)
    request_type = AttachRequest
    answer_type = Attachment

    def prepare(self, precheck: PrecheckContext, request: AttachRequest) -> None:
        volume = precheck.check_volume(request.volume_id, AVAILABLE)
        if volume is not None:
            self.data.multiattach, self.data.encryption = volume.multiattach, precheck.key_of(volume)
            self.data.owner = volume.project_id

    def accept(self, ctl: Acceptance, request: AttachRequest) -> Attachment:
        _check_shelved(self.instance, request.shelved, self.rules.label)
        if request.tag and self.instance.vm_state == states.SHELVED_OFFLOADED:
            raise exception.InvalidInput(reason="a device of a shelved server cannot have a tag.")
        if self.data.multiattach:
            if not request.shares:
                raise exception.MultiattachTooOld()
            if self.instance.vm_state == states.SHELVED_OFFLOADED:
                raise exception.MultiattachShelved()
            if not ctl.host_has_trait(MULTIATTACH):
                raise exception.MultiattachUnsupported(volume_id=request.volume_id)
        device = ctl.volumes.add(BlockDevice(
            source="volume", destination="volume", volume_id=request.volume_id, device_name=request.device_name,
            tag=request.tag, delete_on_termination=request.delete_on_termination,
            multiattach=self.data.multiattach, encryption=self.data.encryption))
        self.data.device = device
        self.data.outside_volumes = ctl.volumes.are_outside
        return Attachment(volume_id=request.volume_id, instance_uuid=self.instance.uuid, device_name=device.device_name,
                          attachment_id=device.attachment_id, bdm_uuid=device.uuid, tag=device.tag,
                          delete_on_termination=device.delete_on_termination)

    @step(CONDUCTOR, undo="give_back", external=VOLUMES, when="outside_volumes")
    def take(self, ctl: Control) -> None:
        self.data.device = ctl.outside_volumes.reserve(self.data.device, self.data.owner)
        if self.data.host:
            self.data.device, = ctl.outside_volumes.connect(self.data.host, self.data.device)

    @step("host", event="compute_attach_volume", undo="take_away", when_down="wait")
    @connects_volumes
    def attach(self, host: HostContext) -> None:
        host.driver.volumes.attach(host.instance, host.connected(self.data.device))
        on_host.report_devices(host)

    @step(CONDUCTOR, event="compute_attach_volume", external=VOLUMES, when="outside_volumes")
    def complete(self, ctl: Control) -> None:
        ctl.outside_volumes.complete(self.data.device)

    def give_back(self, ctl: Control) -> None:
        ctl.outside_volumes.release(self.data.device, keep=True)

    def take_away(self, host: HostContext) -> None:
        host.driver.volumes.detach(host.instance, self.data.device)
        host.volumes.disconnect(self.data.device.connection_info)

    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.complete(self.data.device)

    def superseded(self, ctl: Control) -> None:
        ctl.volumes.release(self.data.device, keep=True)


class DetachVolume(_Volume):
    name = action = "detach_volume"
    rules = Rules(label="detach_volume", vm_states=_STATES, beside=True)
    request_type = DetachRequest
    answer_type = NoRequest

    def prepare(self, precheck: PrecheckContext, request: DetachRequest) -> None:
        if self.instance.volume(request.volume_id) is not None:
            self.data.lost = not precheck.check_detachable(request.volume_id)

    def accept(self, ctl: Acceptance, request: DetachRequest) -> None:
        _check_shelved(self.instance, request.shelved, self.rules.label)
        device = self.instance.attached(request.volume_id)
        if device.boot_index == 0 and self.instance.vm_state != states.SHELVED_OFFLOADED:
            raise exception.Invalid("Cannot detach a root device volume")
        if self.instance.host and not ctl.host_up(self.instance.host):
            raise exception.ServiceUnavailable()
        ctl.volumes.begin_detaching(device)
        self.data.device = device
        self.data.outside_volumes = ctl.volumes.are_outside

    @step(CONDUCTOR, undo="roll_back", external=VOLUMES, when="outside_volumes")
    def begin_outside(self, ctl: Control) -> None:
        """Mark the volume as detaching at the service. A move since the request may have replaced its attachment."""
        self.data.device = ctl.instance.volume_now(self.data.device) or self.data.device
        if not self.data.lost:
            ctl.outside_volumes.begin_detaching(self.data.device)

    @step("host", event="compute_detach_volume", undo="put_back", when_down="wait", results=("let_go",))
    def detach(self, host: HostContext) -> None:
        host.driver.volumes.detach(host.instance, self.data.device)
        host.volumes.disconnect(self.data.device.connection_info)
        host.result(let_go=True)

    # The compensation does the same as the step, because the service cannot undo the release.
    @step(CONDUCTOR, event="compute_detach_volume", undo="release", external=VOLUMES, when="outside_volumes")
    def release(self, ctl: Control) -> None:
        try:
            ctl.outside_volumes.release(self.data.device, keep=True)
        except (exception.NotFound, exception.InvalidVolume) as error:
            if not self.data.lost:
                raise
            LOG.warning("[instance: %s] Volume %s is missing or in error at the volume service, detaching it without "
                        "the service: %s", self.instance.uuid, self.data.device.volume_id, error)
        self.data.released = True

    @connects_volumes
    def put_back(self, host: HostContext) -> None:
        if self.data.let_go and self.data.outside_volumes:
            return
        host.driver.volumes.attach(host.instance, host.connected(self.data.device))

    def roll_back(self, ctl: Control) -> None:
        if not self.data.released:
            ctl.outside_volumes.roll_detaching(self.data.device)

    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.release(self.data.device, keep=True)

    def superseded(self, ctl: Control) -> None:
        if self.data.released:
            ctl.volumes.release(self.data.device, keep=True)
        else:
            ctl.volumes.roll_detaching(self.data.device)


def _check_shelved(instance: Instance, allowed: bool, method: str) -> None:
    if instance.vm_state in _SHELVED and not allowed:
        raise exception.InstanceInvalidState(method=method, instance_uuid=instance.uuid, attr="vm_state",
                                             state=instance.vm_state)
