"""Power actions: one step on the server's host each, and what the server is afterwards."""

from __future__ import annotations

from typing import ClassVar

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.operations import on_host
from nova.operations.base import Operation, Rules, step
from nova.operations.contexts import Control, Host


class _PowerAction(Operation):
    """``final`` is the vm_state of success; the step reports the power state it left."""

    final: ClassVar[str]

    def succeeded(self, ctl: Control) -> None:
        ctl.set(vm_state=self.final, task_state=None)

    def failed(self, ctl: Control, failure: Failure) -> None:
        """What failed may have had its effect: the server is as the host says that it left the guest."""
        super().failed(ctl, failure)
        vm_state = states.as_the_guest(ctl.instance.vm_state, ctl.instance.power_state)
        if vm_state:
            ctl.set(vm_state=vm_state)


def _off(host: Host, timeout: int) -> None:
    """Power off and report; a guest that is gone is as off as can be."""
    try:
        host.driver.power_off(host.instance, timeout=timeout)
        on_host.report_power(host)
    except exception.GuestNotFound:
        host.set(power_state=states.SHUTDOWN)


class Start(_PowerAction):
    name = action = "start"
    rules = Rules(label="start", vm_states=frozenset({states.STOPPED}), host="needed")
    task_state = states.POWERING_ON
    final = states.ACTIVE

    @step("host", event="compute_start_instance", task_state=states.POWERING_ON)
    def power_on(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.revert_move(host.instance)  # its host may have been given up in the middle of a move
        host.driver.power_on(host.instance)
        on_host.report_power(host)


class Stop(_PowerAction):
    name = action = "stop"
    rules = Rules(label="stop", vm_states=frozenset({states.ACTIVE, states.ERROR}), host="needed")
    task_state = states.POWERING_OFF
    final = states.STOPPED

    @step("host", event="compute_stop_instance", task_state=states.POWERING_OFF)
    def power_off(self, host: Host) -> None:
        _off(host, host.shutdown_timeout)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        ctl.set(progress=0)


class SyncPower(_PowerAction):
    """What the power sync starts for a guest that is not as its server says: the host measures again and decides.

    The report that led to it may be older than what the user has done since.
    """

    name = "sync_power"
    action = "stop"
    rules = Rules(label="stop", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED}), host="needed",
                  lock=False)
    task_state = states.POWERING_OFF

    @step("host", event="compute_stop_instance", task_state=states.POWERING_OFF)
    def settle(self, host: Host) -> None:
        try:
            power_state = host.driver.power_state(host.instance.uuid)
        except exception.GuestNotFound:
            power_state = states.SHUTDOWN
        if differs(host.instance.vm_state, power_state):
            _off(host, 0)
        else:
            host.set(power_state=power_state)

    def succeeded(self, ctl: Control) -> None:
        ctl.set(task_state=None)
        if ctl.instance.power_state == states.SHUTDOWN:
            ctl.set(vm_state=states.STOPPED)


_GONE = frozenset({states.SHUTDOWN, states.CRASHED, states.POWER_SUSPENDED})
_ON = frozenset({states.RUNNING, states.POWER_PAUSED, states.POWER_SUSPENDED})


def differs(vm_state: str, power_state: int) -> bool:
    """Whether a guest in this power state is not what its server says, so that it has to be powered off."""
    return ((vm_state == states.ACTIVE and power_state in _GONE) or (vm_state == states.STOPPED and power_state in _ON)
            or (vm_state == states.PAUSED and power_state in (states.SHUTDOWN, states.CRASHED)))


class RebootSoft(_PowerAction):
    name = "reboot_soft"
    action = "reboot"
    rules = Rules(label="reboot", vm_states=frozenset({states.ACTIVE}))
    task_state = states.REBOOTING
    final = states.ACTIVE

    @step("host", event="compute_reboot_instance", task_state=states.REBOOT_STARTED)
    def reboot(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.reboot(host.instance, hard=False, timeout=host.shutdown_timeout)
        on_host.report_power(host)


class RebootHard(_PowerAction):
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
    def reboot(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.revert_move(host.instance)  # a move that failed may have left its disks aside
        host.driver.reboot(host.instance, hard=True)
        on_host.report_power(host)


class Pause(_PowerAction):
    name = action = "pause"
    rules = Rules(label="pause", vm_states=frozenset({states.ACTIVE}))
    task_state = states.PAUSING
    final = states.PAUSED

    @step("host", event="compute_pause_instance", task_state=states.PAUSING)
    def pause(self, host: Host) -> None:
        host.driver.pause(host.instance)
        on_host.report_power(host)


class Unpause(_PowerAction):
    name = action = "unpause"
    rules = Rules(label="unpause", vm_states=frozenset({states.PAUSED}))
    task_state = states.UNPAUSING
    final = states.ACTIVE

    @step("host", event="compute_unpause_instance", task_state=states.UNPAUSING)
    def unpause(self, host: Host) -> None:
        host.driver.unpause(host.instance)
        on_host.report_power(host)


class Suspend(_PowerAction):
    name = action = "suspend"
    rules = Rules(label="suspend", vm_states=frozenset({states.ACTIVE}))
    task_state = states.SUSPENDING
    final = states.SUSPENDED

    @step("host", event="compute_suspend_instance", task_state=states.SUSPENDING)
    def suspend(self, host: Host) -> None:
        host.driver.suspend(host.instance)
        on_host.report_power(host)


class Resume(_PowerAction):
    name = action = "resume"
    rules = Rules(label="resume", vm_states=frozenset({states.SUSPENDED}))
    task_state = states.RESUMING
    final = states.ACTIVE

    @step("host", event="compute_resume_instance", task_state=states.RESUMING)
    def resume(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.resume(host.instance)
        on_host.report_power(host)
