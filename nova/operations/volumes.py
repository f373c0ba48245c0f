"""Attaching and detaching volumes: beside whatever else is done to the server, one after the other.

Whose a volume is, is decided when the operation is accepted; the host makes it so. A host that is away is waited for:
what it has done is not known, and what it has not done it does when it is back. With volumes that an outside service
keeps, acceptance is the intent, and that service decides in the first step.
"""

from __future__ import annotations

import logging

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import BlockDevice, Instance
from nova.objects.requirements.requested_resources import MULTIATTACH
from nova.objects.volume import AVAILABLE, Attachment, VolumeEncryption
from nova.operations import on_host
from nova.operations.base import CONDUCTOR, VOLUMES, NoRequest, Operation, Rules, Step, connects_volumes, step
from nova.operations.contexts import Acceptance, Control, Desk, Host

LOG = logging.getLogger(__name__)

_SHELVED = frozenset({states.SHELVED, states.SHELVED_OFFLOADED})
_STATES = frozenset({states.ACTIVE, states.PAUSED, states.STOPPED, states.RESIZED, states.SOFT_DELETED}) | _SHELVED


class AttachRequest(Object, kw_only=True):
    """``shelved``: whether a shelved server may be meant (2.20); ``shares``: a volume that others have, too (2.60)."""

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
    """The device that the operation is about, as the server's row has it.

    ``outside_volumes``: an outside service keeps it; ``let_go``: the guest does not have it any more; ``released``:
    nor does the server, for that service. ``lost``: that service has lost the volume, or broke it. ``multiattach``:
    other servers may have it, too. ``encryption``: it is encrypted. ``owner``: its project, as the caller saw it.
    """

    host: str = ""
    device: BlockDevice | None = None
    outside_volumes: bool = False
    let_go: bool = False
    released: bool = False
    lost: bool = False
    multiattach: bool = False
    encryption: VolumeEncryption | None = None
    owner: str = ""


class _Volume(Operation):
    """What both share: the device of their data."""

    data_type = VolumeData

    def take_back(self, of: Step, ctl: Control) -> None:
        # One that was attached since is found outside by the same ids.
        if all(other.uuid == self.data.device.uuid for other in ctl.instance.volumes
               if other.volume_id == self.data.device.volume_id):
            super().take_back(of, ctl)


class AttachVolume(_Volume):
    name = action = "attach_volume"
    rules = Rules(label="attach_volume", vm_states=_STATES, beside=True)
    request_type = AttachRequest
    answer_type = Attachment

    def prepare(self, desk: Desk, request: AttachRequest) -> None:
        found = desk.check_volume(request.volume_id, AVAILABLE)
        if found is not None:
            self.data.multiattach, self.data.encryption = found.multiattach, desk.key_of(found)
            self.data.owner = found.project_id

    def accept(self, ctl: Acceptance, request: AttachRequest) -> Attachment:
        _check_shelved(self.instance, request.shelved, self.rules.label)
        if request.tag and self.instance.vm_state == states.SHELVED_OFFLOADED:
            raise exception.InvalidInput(reason="a device of a shelved server cannot have a tag.")
        if self.data.multiattach:
            self._check_multiattach(ctl, request)
        device = ctl.add_volume(BlockDevice(
            source="volume", destination="volume", volume_id=request.volume_id, device_name=request.device_name,
            tag=request.tag, delete_on_termination=request.delete_on_termination,
            multiattach=self.data.multiattach, encryption=self.data.encryption))
        self.data.device = device
        self.data.outside_volumes = ctl.has_outside_volumes()
        return Attachment(
            volume_id=request.volume_id, instance_uuid=self.instance.uuid, device_name=device.device_name,
            attachment_id=device.attachment_id, bdm_uuid=device.uuid, tag=device.tag,
            delete_on_termination=device.delete_on_termination)

    def _check_multiattach(self, ctl: Acceptance, request: AttachRequest) -> None:
        if not request.shares:
            raise exception.MultiattachTooOld()
        if self.instance.vm_state == states.SHELVED_OFFLOADED:
            raise exception.MultiattachShelved()
        if not ctl.host_has_trait(MULTIATTACH):
            raise exception.MultiattachUnsupported(volume_id=request.volume_id)

    @step(CONDUCTOR, undo="give_back", external=VOLUMES, when="outside_volumes")
    def take(self, ctl: Control) -> None:
        self.data.device = ctl.outside_volumes.reserve(self.data.device, self.data.owner)
        if self.data.host:
            self.data.device, = ctl.outside_volumes.connect(self.data.host, self.data.device)

    @step("host", event="compute_attach_volume", undo="take_away", when_down="wait")
    @connects_volumes
    def attach(self, host: Host) -> None:
        host.driver.attach_volume(host.instance, host.connected(self.data.device))
        on_host.report_devices(host)

    @step(CONDUCTOR, event="compute_attach_volume", external=VOLUMES, when="outside_volumes")
    def complete(self, ctl: Control) -> None:
        ctl.outside_volumes.complete(self.data.device)

    # --- compensations ---------------------------------------------------------------------------
    def give_back(self, ctl: Control) -> None:
        ctl.outside_volumes.release(self.data.device, keep=True)

    def take_away(self, host: Host) -> None:
        host.driver.detach_volume(host.instance, self.data.device)
        host.volumes.disconnect(self.data.device.connection_info)

    # --- the end ---------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.complete(self.data.device)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        ctl.volumes.release(self.data.device, keep=True)

    def superseded(self, ctl: Control) -> None:
        ctl.volumes.release(self.data.device, keep=True)


class DetachVolume(_Volume):
    name = action = "detach_volume"
    rules = Rules(label="detach_volume", vm_states=_STATES, beside=True)
    request_type = DetachRequest
    answer_type = NoRequest

    def prepare(self, desk: Desk, request: DetachRequest) -> None:
        if self.instance.volume(request.volume_id) is not None:
            self.data.lost = not desk.check_detachable(request.volume_id)

    def accept(self, ctl: Acceptance, request: DetachRequest) -> None:
        _check_shelved(self.instance, request.shelved, self.rules.label)
        device = self.instance.attached(request.volume_id)
        if device.boot_index == 0 and self.instance.vm_state != states.SHELVED_OFFLOADED:
            raise exception.Invalid("Cannot detach a root device volume")
        if self.instance.host and not ctl.host_up(self.instance.host):
            raise exception.ServiceUnavailable()
        ctl.begin_detaching(device)
        self.data.device = device
        self.data.outside_volumes = ctl.has_outside_volumes()

    @step(CONDUCTOR, undo="roll_back", external=VOLUMES, when="outside_volumes")
    def begin_outside(self, ctl: Control) -> None:
        """The volume may have moved to another place while this waited: it has another attachment then."""
        self.data.device = ctl.instance.volume_now(self.data.device) or self.data.device
        if not self.data.lost:
            ctl.outside_volumes.begin_detaching(self.data.device)

    @step("host", event="compute_detach_volume", undo="put_back", when_down="wait", results=("let_go",))
    def detach(self, host: Host) -> None:
        host.driver.detach_volume(host.instance, self.data.device)
        host.volumes.disconnect(self.data.device.connection_info)
        host.result(let_go=True)

    # Compensated by being done: what the service has heard of cannot be taken back.
    @step(CONDUCTOR, event="compute_detach_volume", undo="release", external=VOLUMES, when="outside_volumes")
    def release(self, ctl: Control) -> None:
        try:
            ctl.outside_volumes.release(self.data.device, keep=True)
        except (exception.NotFound, exception.InvalidVolume) as error:
            if not self.data.lost:
                raise
            LOG.warning("[instance: %s] Volume %s is lost, and what the service knows of it stays there: %s",
                        self.instance.uuid, self.data.device.volume_id, error)
        self.data.released = True

    # --- compensations ---------------------------------------------------------------------------
    @connects_volumes
    def put_back(self, host: Host) -> None:
        if self.data.let_go and self.data.outside_volumes:
            return
        host.driver.attach_volume(host.instance, host.connected(self.data.device))

    def roll_back(self, ctl: Control) -> None:
        if not self.data.released:
            ctl.outside_volumes.roll_detaching(self.data.device)

    # --- the end ---------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.release(self.data.device, keep=True)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        if self.data.released:
            ctl.volumes.release(self.data.device, keep=True)
        else:
            ctl.volumes.roll_detaching(self.data.device)


def _check_shelved(instance: Instance, allowed: bool, method: str) -> None:
    if instance.vm_state in _SHELVED and not allowed:
        raise exception.InstanceInvalidState(method=method, instance_uuid=instance.uuid, attr="vm_state",
                                             state=instance.vm_state)
