"""A volume that a server has became larger: its guest, if it runs, sees the new size at once.

As a rule the volume service has made it larger before it tells of that. Where volumes are files that the guest's
hypervisor alone may make larger, it has not: it waits to hear how that ended, and gets to hear it however it ends.
Nothing is ever made smaller, so there is nothing to undo.
"""

from __future__ import annotations

from nova import exception
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import BlockDevice
from nova.operations.base import CONDUCTOR, VOLUMES, NoRequest, Operation, Rules, step
from nova.operations.contexts import Acceptance, Control, Host

_EVENT = "compute_extend_volume"


class ExtendRequest(Object, kw_only=True):
    volume_id: str


class ExtendData(Object, kw_only=True):
    """``size_gb``: what ``device`` has from now on (0: not known yet); ``awaited``: the service waits to hear of it;
    ``done``: the guest that runs has it."""

    host: str = ""
    device: BlockDevice | None = None
    size_gb: int = 0
    awaited: bool = False
    done: bool = False


class ExtendVolume(Operation):
    name = action = "extend_volume"
    # What the volume is, it is already: the server's state and its lock do not matter.
    rules = Rules(label="extend_volume", task_states=None, lock=False, launched=False, beside=True, release=5)
    request_type = ExtendRequest
    answer_type = NoRequest
    data_type = ExtendData
    point_of_no_return = "grow"

    @property
    def owes_an_end(self) -> bool:
        """Only the service knows whether it waits."""
        return True

    # --- acceptance ------------------------------------------------------------------------------
    def accept(self, ctl: Acceptance, request: ExtendRequest) -> None:
        device = self.instance.attached(request.volume_id)
        if not ctl.has_outside_volumes():
            raise exception.InvalidVolume(reason="embedded volumes keep their size")
        self.data.device = device

    # --- steps -----------------------------------------------------------------------------------
    @step(CONDUCTOR, undo="give_up", external=VOLUMES)
    def look(self, ctl: Control) -> None:
        """The server may have moved, or lost the volume, while this waited."""
        known = ctl.instance.attached_now(self.data.device)
        self.data.device = known
        self.data.size_gb, self.data.awaited = ctl.outside_volumes.extended(known)
        if self.data.awaited and not self.data.host:
            raise exception.GuestNotRunning(instance_uuid=ctl.instance.uuid)

    @step("host", event=_EVENT, undo="see", when_down="wait", results=("done",), undo_results=("done",))
    def grow(self, host: Host) -> None:
        done = host.driver.extend_volume(host.instance, self.data.device, self.data.size_gb)
        if self.data.awaited and not done:
            raise exception.GuestNotRunning(instance_uuid=host.instance.uuid)
        host.result(done=done)

    # Compensated by being done: the guest has it.
    @step(CONDUCTOR, event=_EVENT, undo="hand_over", external=VOLUMES, when="awaited")
    def hand_over(self, ctl: Control) -> None:
        ctl.outside_volumes.end_extension(self.data.device, self.data.size_gb, done=True)

    # --- compensations ---------------------------------------------------------------------------
    def see(self, host: Host) -> None:
        if self.data.awaited:
            host.result(done=host.driver.is_extended(host.instance, self.data.device, self.data.size_gb))

    def give_up(self, ctl: Control) -> None:
        ctl.outside_volumes.end_extension(self.data.device, self.data.size_gb, done=self.data.done)

    # --- the end ---------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        self.superseded(ctl)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        """Unless the service waited in vain the volume has its new size, whether the guest sees that yet or not."""
        if self.data.size_gb and (self.data.done or not self.data.awaited):
            ctl.volumes.resize(self.data.device, self.data.size_gb)
