"""Power actions: operations with one step on the server's host that changes the power state."""

from typing import ClassVar

from nova import exception
from nova.objects.base import Object
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.operations.framework import on_host
from nova.operations.framework.base import Operation, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules


class FollowsPowerState(Operation):
    """Base of operations whose steps report the resulting power state."""

    def failed(self, ctl: Control, failure: Failure) -> None:
        """Set the vm_state from the power state reported by the host: a failed step may have had an effect."""
        super().failed(ctl, failure)
        vm_state = states.vm_state_of(ctl.instance.vm_state, ctl.instance.power_state)
        if vm_state:
            ctl.set(vm_state=vm_state)


class PowerAction(FollowsPowerState):
    """Base of power actions. ``final`` is the vm_state after success."""

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
    def power_on(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.cold_migration.revert(host.instance)  # restores disks that an unfinished move renamed
        host.driver.power.on(host.instance)
        on_host.report_guest(host)


class ResumeOnBootRequest(Object, kw_only=True):
    """``host``: the host that was booted ("": the current host of the server)."""

    host: str = ""


class ResumeOnBoot(Start):
    """Start the guest of an ACTIVE server after its host was booted. Requested by the host. Refused if a user stopped,
    moved or deleted the server meanwhile."""

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
    def power_off(self, host: HostContext) -> None:
        on_host.power_off(host, host.shutdown_timeout)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        ctl.set(progress=0)


class SyncPower(PowerAction):
    """Correct a server whose reported power state does not match its vm_state. The host checks the guest again first.
    The report that caused this operation may be older than the newest request of the user."""

    name, action = "sync_power", "stop"
    rules = Rules(label="stop", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SHELVED,
                                                     states.SOFT_DELETED}), host="needed", lock=False)
    task_state = states.POWERING_OFF
    ends_consoles = True

    @step("host", event="compute_stop_instance", task_state=states.POWERING_OFF, journaled_as="settle")
    def sync(self, host: HostContext) -> None:
        try:
            power_state = host.driver.guests.power_state(host.instance.uuid)
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
        if ctl.instance.power_state == states.SHUTDOWN and ctl.instance.vm_state not in _SHELVED_OR_DELETED:
            ctl.set(vm_state=states.STOPPED)


_STOPPED = frozenset({states.SHUTDOWN, states.CRASHED, states.POWER_SUSPENDED})
# States in which the guest is off although no user stopped it.
_SHELVED_OR_DELETED = frozenset({states.SHELVED, states.SOFT_DELETED})
# States without a running guest. A missing guest counts as off; powering on defines it again.
OFF = frozenset({states.STOPPED, *_SHELVED_OR_DELETED})
_ON = frozenset({states.RUNNING, states.POWER_PAUSED, states.POWER_SUSPENDED})


def differs(vm_state: str, power_state: int) -> bool:
    """Return True if the guest must be powered off because its power state contradicts the vm_state."""
    return ((vm_state == states.ACTIVE and power_state in _STOPPED) or (vm_state in OFF and power_state in _ON)
            or (vm_state == states.PAUSED and power_state in (states.SHUTDOWN, states.CRASHED)))


class RebootSoft(PowerAction):
    name, action = "reboot_soft", "reboot"
    rules = Rules(label="reboot", vm_states=frozenset({states.ACTIVE}))
    task_state = states.REBOOTING
    shuts_down = True
    final = states.ACTIVE

    @step("host", event="compute_reboot_instance", task_state=states.REBOOT_STARTED)
    @connects_volumes
    def reboot(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.power.reboot(host.instance, hard=False, timeout=host.image_shutdown_timeout)
        on_host.report_guest(host)


class RebootHard(PowerAction):
    name, action = "reboot_hard", "reboot"
    rules = Rules(
        label="reboot",
        vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED, states.ERROR}),
        task_states=frozenset({
            None, states.REBOOTING, states.REBOOT_PENDING, states.REBOOT_STARTED, states.RESUMING,
            states.REBOOTING_HARD, states.UNPAUSING, states.PAUSING, states.SUSPENDING}),
        preempts=True)
    kind = "urgent"
    task_state = states.REBOOTING_HARD
    final = states.ACTIVE

    @step("host", event="compute_reboot_instance", task_state=states.REBOOT_STARTED_HARD)
    @connects_volumes
    def reboot(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.cold_migration.revert(host.instance)  # a failed move may have renamed the disks
        host.driver.power.reboot(host.instance, hard=True)
        on_host.report_guest(host)


class Pause(PowerAction):
    name = action = "pause"
    rules = Rules(label="pause", vm_states=frozenset({states.ACTIVE}))
    task_state = states.PAUSING
    final = states.PAUSED

    @step("host", event="compute_pause_instance", task_state=states.PAUSING)
    def pause(self, host: HostContext) -> None:
        host.driver.power.pause(host.instance)
        on_host.report_power(host)


class Unpause(PowerAction):
    name = action = "unpause"
    rules = Rules(label="unpause", vm_states=frozenset({states.PAUSED}))
    task_state = states.UNPAUSING
    final = states.ACTIVE

    @step("host", event="compute_unpause_instance", task_state=states.UNPAUSING)
    def unpause(self, host: HostContext) -> None:
        host.driver.power.unpause(host.instance)
        on_host.report_power(host)


class Suspend(PowerAction):
    name = action = "suspend"
    rules = Rules(label="suspend", vm_states=frozenset({states.ACTIVE}), without_shares=True)
    task_state = states.SUSPENDING
    ends_consoles = True
    final = states.SUSPENDED

    @step("host", event="compute_suspend_instance", task_state=states.SUSPENDING)
    def suspend(self, host: HostContext) -> None:
        host.driver.power.suspend(host.instance)
        on_host.report_power(host)


class Resume(PowerAction):
    name = action = "resume"
    rules = Rules(label="resume", vm_states=frozenset({states.SUSPENDED}))
    task_state = states.RESUMING
    ends_consoles = True
    final = states.ACTIVE

    @step("host", event="compute_resume_instance", task_state=states.RESUMING)
    @connects_volumes
    def resume(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.power.resume(host.instance)
        on_host.report_guest(host)


class TriggerCrashDump(Operation):
    """Send the guest a non-maskable interrupt, which makes a configured guest write a crash dump."""

    name = action = "trigger_crash_dump"
    rules = Rules(label="trigger_crash_dump", host="needed", beside=True, release=3, vm_states=frozenset({
        states.ACTIVE, states.PAUSED, states.RESCUED, states.RESIZED, states.ERROR}))

    @step("host", event="compute_trigger_crash_dump")
    def trigger(self, host: HostContext) -> None:
        host.driver.power.trigger_crash_dump(host.instance)
