"""Attaching and detaching volumes: beside whatever else is done to the server, one after the other.

Whose a volume is, is decided when the operation is accepted; the host makes it so. A host that is away is waited for:
what it has done is not known, and what it has not done it does when it is back.
"""

from __future__ import annotations

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import BlockDevice, Instance
from nova.objects.volume import Attachment
from nova.operations.base import NoRequest, Operation, Rules, step
from nova.operations.contexts import Acceptance, Control, Host

_SHELVED = frozenset({states.SHELVED, states.SHELVED_OFFLOADED})
_STATES = frozenset({states.ACTIVE, states.PAUSED, states.STOPPED, states.RESIZED, states.SOFT_DELETED}) | _SHELVED


class AttachRequest(Object, kw_only=True):
    """``shelved``: whether a shelved server may be meant (2.20)."""

    volume_id: str
    device_name: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False
    shelved: bool = True


class DetachRequest(Object, kw_only=True):
    volume_id: str
    shelved: bool = True


class VolumeData(Object, kw_only=True):
    """The device that the operation is about, as the server's row has it."""

    host: str = ""
    device: BlockDevice | None = None


class AttachVolume(Operation):
    name = action = "attach_volume"
    rules = Rules(label="attach_volume", vm_states=_STATES, beside=True)
    data_type = VolumeData
    request_type = AttachRequest
    answer_type = Attachment

    def accept(self, ctl: Acceptance, request: AttachRequest) -> Attachment:
        _check_shelved(self.instance, request.shelved, self.rules.label)
        if request.tag and self.instance.vm_state == states.SHELVED_OFFLOADED:
            raise exception.InvalidInput(reason="a device of a shelved server cannot have a tag.")
        device = ctl.add_volume(BlockDevice(
            source="volume", destination="volume", volume_id=request.volume_id, device_name=request.device_name,
            tag=request.tag, delete_on_termination=request.delete_on_termination))
        self.data.device = device
        return Attachment(
            volume_id=request.volume_id, instance_uuid=self.instance.uuid, device_name=device.device_name,
            attachment_id=device.attachment_id, bdm_uuid=device.uuid, tag=device.tag,
            delete_on_termination=device.delete_on_termination)

    @step("host", event="compute_attach_volume", undo="take_away", when_down="wait")
    def attach(self, host: Host) -> None:
        host.driver.attach_volume(host.instance, host.connected(self.data.device))

    def take_away(self, host: Host) -> None:
        host.driver.detach_volume(host.instance, self.data.device)
        host.volumes.disconnect(self.data.device.connection_info)

    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.complete(self.data.device)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        ctl.volumes.release(self.data.device, keep=True)

    def superseded(self, ctl: Control) -> None:
        ctl.volumes.release(self.data.device, keep=True)


class DetachVolume(Operation):
    name = action = "detach_volume"
    rules = Rules(label="detach_volume", vm_states=_STATES, beside=True)
    data_type = VolumeData
    request_type = DetachRequest
    answer_type = NoRequest

    def accept(self, ctl: Acceptance, request: DetachRequest) -> None:
        _check_shelved(self.instance, request.shelved, self.rules.label)
        device = next((item for item in self.instance.volumes if item.volume_id == request.volume_id), None)
        if device is None:
            raise exception.VolumeNotAttached(instance_uuid=self.instance.uuid, volume_id=request.volume_id)
        if device.boot_index == 0 and self.instance.vm_state != states.SHELVED_OFFLOADED:
            raise exception.Invalid("Cannot detach a root device volume")
        if self.instance.host and not ctl.host_up(self.instance.host):
            raise exception.ServiceUnavailable()
        ctl.begin_detaching(device)
        self.data.device = device

    @step("host", event="compute_detach_volume", undo="put_back", when_down="wait")
    def detach(self, host: Host) -> None:
        host.driver.detach_volume(host.instance, self.data.device)
        host.volumes.disconnect(self.data.device.connection_info)

    def put_back(self, host: Host) -> None:
        host.driver.attach_volume(host.instance, host.connected(self.data.device))

    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.release(self.data.device, keep=True)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        ctl.volumes.roll_detaching(self.data.device)

    def superseded(self, ctl: Control) -> None:
        ctl.volumes.roll_detaching(self.data.device)


def _check_shelved(instance: Instance, allowed: bool, method: str) -> None:
    if instance.vm_state in _SHELVED and not allowed:
        raise exception.InstanceInvalidState(method=method, instance_uuid=instance.uuid, attr="vm_state",
                                             state=instance.vm_state)
