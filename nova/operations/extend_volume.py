"""Extend volume: make a larger size of an attached volume visible to its running guest.

Usually the volume service has extended the volume before it sends the request. For volumes that are files, only the
guest's hypervisor can extend the file; the service then waits for the result and receives it in every case. Volumes
never shrink, so there is nothing to undo."""

from nova import exception
from nova.objects.base import Object
from nova.objects.servers.instance import BlockDevice
from nova.operations.framework.base import CONDUCTOR, VOLUMES, NoRequest, Releasing, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules

_EVENT = "compute_extend_volume"


class ExtendRequest(Object, kw_only=True):
    volume_id: str


class ExtendData(Object, kw_only=True):
    """Data of the operation. ``size_gb``: new size of ``device`` in GiB (0: unknown); ``awaited``: True if Cinder
    waits for the result; ``done``: True when the guest has the new size."""

    host: str = ""
    device: BlockDevice | None = None
    size_gb: int = 0
    awaited: bool = False
    done: bool = False


class ExtendVolume(Releasing):
    name = action = "extend_volume"
    # The operation only shows the guest a change that has already happened: the server's state and lock do not matter.
    rules = Rules(label="extend_volume", task_states=None, lock=False, launched=False, beside=True, release=5)
    request_type = ExtendRequest
    answer_type = NoRequest
    data_type = ExtendData
    point_of_no_return = "grow"
    service_awaits_end = True

    def accept(self, ctl: Acceptance, request: ExtendRequest) -> None:
        device = self.instance.attached(request.volume_id)
        if not ctl.volumes.are_outside:
            raise exception.InvalidVolume(reason="only volumes of Cinder can be extended")
        self.data.device = device

    @step(CONDUCTOR, undo="give_up", external=VOLUMES, journaled_as="look")
    def check_volume(self, ctl: Control) -> None:
        """Check the volume again: the server may have moved or detached it while the operation was queued."""
        self.data.device = ctl.instance.attached_now(self.data.device)
        self.data.size_gb, self.data.awaited = ctl.outside_volumes.extended(self.data.device)
        if self.data.awaited and not self.data.host:
            raise exception.GuestNotRunning(instance_uuid=ctl.instance.uuid)

    @step("host", event=_EVENT, undo="check_size", when_down="wait", results=("done",), undo_results=("done",))
    def grow(self, host: HostContext) -> None:
        done = host.driver.volumes.extend(host.instance, self.data.device, self.data.size_gb)
        if self.data.awaited and not done:
            raise exception.GuestNotRunning(instance_uuid=host.instance.uuid)
        host.result(done=done)

    # The compensation does the same as the step, because the guest already has the new size.
    @step(CONDUCTOR, event=_EVENT, undo="hand_over", external=VOLUMES, when="awaited")
    def hand_over(self, ctl: Control) -> None:
        ctl.outside_volumes.end_extension(self.data.device.volume_id, self.data.size_gb, done=True)

    def check_size(self, host: HostContext) -> None:
        if self.data.awaited:
            host.result(done=host.driver.volumes.is_extended(host.instance, self.data.device, self.data.size_gb))

    def give_up(self, ctl: Control) -> None:
        ctl.outside_volumes.end_extension(self.data.device.volume_id, self.data.size_gb, done=self.data.done)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        """Store the new size, even if the guest does not see it yet, unless the service gets the result "failed"."""
        if self.data.size_gb and (self.data.done or not self.data.awaited):
            ctl.volumes.resize(self.data.device, self.data.size_gb)
