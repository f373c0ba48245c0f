"""Power actions: one step on the server's host each, and what the server is afterwards."""

from __future__ import annotations

from typing import ClassVar

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.operations import on_host
from nova.operations.base import Operation, Rules, connects_volumes, step
from nova.operations.contexts import Acceptance, Control, Host


class AsTheGuest(Operation):
    """Its steps report the power state that they leave."""

    def failed(self, ctl: Control, failure: Failure) -> None:
        """What failed may have had its effect: the server is as the host says that it left the guest."""
        super().failed(ctl, failure)
        vm_state = states.as_the_guest(ctl.instance.vm_state, ctl.instance.power_state)
        if vm_state:
            ctl.set(vm_state=vm_state)


class PowerAction(AsTheGuest):
    """``final`` is the vm_state of success."""

    final: ClassVar[str]

    def succeeded(self, ctl: Control) -> None:
        ctl.set(vm_state=self.final, task_state=None)


class Start(PowerAction):
    name = action = "start"
    rules = Rules(label="start", vm_states=frozenset({states.STOPPED}), host="needed")
    task_state = states.POWERING_ON
    ends_consoles = True
    final = states.ACTIVE

    @step("host", event="compute_start_instance", task_state=states.POWERING_ON)
    @connects_volumes
    def power_on(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.revert_move(host.instance)  # its host may have been given up in the middle of a move
        host.driver.power_on(host.instance)
        on_host.report_guest(host)


class ResumeOnBootRequest(Object, kw_only=True):
    """``host``: that was booted ("": wherever the server is)."""

    host: str = ""


class ResumeOnBoot(Start):
    """What a host that was booted asks for: the server is ACTIVE, and its guest shall run again.

    Who stopped, moved or deleted the server since then was faster.
    """

    name = "resume_on_boot"
    rules = Rules(label="start", vm_states=frozenset({states.ACTIVE}), host="needed", lock=False)
    request_type = ResumeOnBootRequest

    def accept(self, ctl: Acceptance, request: ResumeOnBootRequest) -> None:
        if request.host and ctl.instance.host != request.host:
            raise exception.InstanceInvalidState(
                method=self.rules.label, instance_uuid=ctl.instance.uuid, attr="host", state=ctl.instance.host)


class Stop(PowerAction):
    name = action = "stop"
    rules = Rules(label="stop", vm_states=frozenset({states.ACTIVE, states.ERROR}), host="needed")
    task_state = states.POWERING_OFF
    shuts_down = ends_consoles = True
    final = states.STOPPED

    @step("host", event="compute_stop_instance", task_state=states.POWERING_OFF)
    def power_off(self, host: Host) -> None:
        on_host.power_off(host, host.shutdown_timeout)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        ctl.set(progress=0)


class SyncPower(PowerAction):
    """What the power sync starts for a guest that is not as its server says: the host measures again and decides.

    The report that led to it may be older than what the user has done since.
    """

    name = "sync_power"
    action = "stop"
    rules = Rules(label="stop", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SHELVED,
                                                     states.SOFT_DELETED}), host="needed", lock=False)
    task_state = states.POWERING_OFF
    ends_consoles = True

    @step("host", event="compute_stop_instance", task_state=states.POWERING_OFF)
    def settle(self, host: Host) -> None:
        try:
            power_state = host.driver.power_state(host.instance.uuid)
        except exception.GuestNotFound:
            power_state = states.SHUTDOWN
        if differs(host.instance.vm_state, power_state):
            on_host.power_off(host, 0)
        else:
            host.set(power_state=power_state)
            if power_state == states.SHUTDOWN:
                host.disconnect_shares()

    def succeeded(self, ctl: Control) -> None:
        ctl.set(task_state=None)
        if ctl.instance.power_state == states.SHUTDOWN and ctl.instance.vm_state not in _PUT_AWAY:
            ctl.set(vm_state=states.STOPPED)


_GONE = frozenset({states.SHUTDOWN, states.CRASHED, states.POWER_SUSPENDED})
# Off, and not as a user has stopped it.
_PUT_AWAY = frozenset({states.SHELVED, states.SOFT_DELETED})
# A guest that is gone is as off as can be: whoever wants it on defines it anew.
OFF = frozenset({states.STOPPED, *_PUT_AWAY})
_ON = frozenset({states.RUNNING, states.POWER_PAUSED, states.POWER_SUSPENDED})


def differs(vm_state: str, power_state: int) -> bool:
    """Whether a guest in this power state is not what its server says, so that it has to be powered off."""
    return ((vm_state == states.ACTIVE and power_state in _GONE) or (vm_state in OFF and power_state in _ON)
            or (vm_state == states.PAUSED and power_state in (states.SHUTDOWN, states.CRASHED)))


class RebootSoft(PowerAction):
    name = "reboot_soft"
    action = "reboot"
    rules = Rules(label="reboot", vm_states=frozenset({states.ACTIVE}))
    task_state = states.REBOOTING
    shuts_down = True
    final = states.ACTIVE

    @step("host", event="compute_reboot_instance", task_state=states.REBOOT_STARTED)
    @connects_volumes
    def reboot(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.reboot(host.instance, hard=False, timeout=host.image_shutdown_timeout)
        on_host.report_guest(host)


class RebootHard(PowerAction):
    name = "reboot_hard"
    action = "reboot"
    rules = Rules(
        label="reboot",
        vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED, states.ERROR}),
        task_states=frozenset({
            None, states.REBOOTING, states.REBOOT_PENDING, states.REBOOT_STARTED, states.RESUMING,
            states.REBOOTING_HARD, states.UNPAUSING, states.PAUSING, states.SUSPENDING}),
        preempts=True,
    )
    kind = "urgent"
    task_state = states.REBOOTING_HARD
    final = states.ACTIVE

    @step("host", event="compute_reboot_instance", task_state=states.REBOOT_STARTED_HARD)
    @connects_volumes
    def reboot(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.revert_move(host.instance)  # a move that failed may have left its disks aside
        host.driver.reboot(host.instance, hard=True)
        on_host.report_guest(host)


class Pause(PowerAction):
    name = action = "pause"
    rules = Rules(label="pause", vm_states=frozenset({states.ACTIVE}))
    task_state = states.PAUSING
    final = states.PAUSED

    @step("host", event="compute_pause_instance", task_state=states.PAUSING)
    def pause(self, host: Host) -> None:
        host.driver.pause(host.instance)
        on_host.report_power(host)


class Unpause(PowerAction):
    name = action = "unpause"
    rules = Rules(label="unpause", vm_states=frozenset({states.PAUSED}))
    task_state = states.UNPAUSING
    final = states.ACTIVE

    @step("host", event="compute_unpause_instance", task_state=states.UNPAUSING)
    def unpause(self, host: Host) -> None:
        host.driver.unpause(host.instance)
        on_host.report_power(host)


class Suspend(PowerAction):
    name = action = "suspend"
    rules = Rules(label="suspend", vm_states=frozenset({states.ACTIVE}), without_shares=True)
    task_state = states.SUSPENDING
    ends_consoles = True
    final = states.SUSPENDED

    @step("host", event="compute_suspend_instance", task_state=states.SUSPENDING)
    def suspend(self, host: Host) -> None:
        host.driver.suspend(host.instance)
        on_host.report_power(host)


class Resume(PowerAction):
    name = action = "resume"
    rules = Rules(label="resume", vm_states=frozenset({states.SUSPENDED}))
    task_state = states.RESUMING
    ends_consoles = True
    final = states.ACTIVE

    @step("host", event="compute_resume_instance", task_state=states.RESUMING)
    @connects_volumes
    def resume(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.resume(host.instance)
        on_host.report_guest(host)


class TriggerCrashDump(Operation):
    """The guest gets an interrupt that it cannot ignore; what it does then is its own business."""

    name = action = "trigger_crash_dump"
    rules = Rules(label="trigger_crash_dump", host="needed", beside=True, release=3, vm_states=frozenset({
        states.ACTIVE, states.PAUSED, states.RESCUED, states.RESIZED, states.ERROR}))

    @step("host", event="compute_trigger_crash_dump")
    def trigger(self, host: Host) -> None:
        host.driver.trigger_crash_dump(host.instance)
