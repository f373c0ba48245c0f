"""Common actions of steps on a host; each is idempotent."""

from nova import exception
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.operations.framework.contexts import HostContext


def connect(host: HostContext, instance: Instance | None = None, runs: bool = True) -> None:
    """Connect interfaces and volumes of ``instance`` (default: that of the step), and shares if the guest ``runs``."""
    host.network.plug(instance or host.instance, host.rules)
    host.connect_volumes(instance)
    if runs:
        host.connect_shares(instance)


def disconnect(host: HostContext, instance: Instance | None = None) -> None:
    """Unplug all interfaces and disconnect all volumes and shares after the guest is removed."""
    host.network.unplug(instance or host.instance)
    host.disconnect_volumes()
    host.disconnect_shares()


def power_off(host: HostContext, timeout: int) -> None:
    """Power off and report the power state; a missing guest counts as off. ``timeout``: see Power.off."""
    try:
        host.driver.power.off(host.instance, timeout=timeout)
        report_power(host)
    except exception.GuestNotFound:
        host.set(power_state=states.SHUTDOWN)
    host.disconnect_shares()


def report_power(host: HostContext) -> None:
    """Report the power state of the guest. Raises GuestNotFound."""
    host.set(power_state=host.driver.guests.power_state(host.instance.uuid))


def report_devices(host: HostContext) -> None:
    """Report the addresses of the guest's interfaces and disks. Raises GuestNotFound."""
    host.set(device_addresses=host.driver.guests.device_addresses(host.instance.uuid))


def report_guest(host: HostContext) -> None:
    """Report the power state and device addresses of a guest that was defined again. Raises GuestNotFound."""
    report_power(host)
    report_devices(host)
