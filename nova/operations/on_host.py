"""What the steps on a host have in common; each of these may run again and changes nothing then."""

from __future__ import annotations

from nova import exception
from nova.objects import states
from nova.objects.instance import Instance
from nova.operations.contexts import Host


def connect(host: Host, instance: Instance | None = None, runs: bool = True) -> None:
    """The interfaces and volumes of ``instance`` (default: the order's) are there for its guest; its shares, too, if
    that ``runs``."""
    host.network.plug(instance or host.instance, host.rules)
    host.connect_volumes(instance)
    if runs:
        host.connect_shares(instance)


def disconnect(host: Host, instance: Instance | None = None) -> None:
    """The guest is gone, or was never there, and leaves nothing connected."""
    host.network.unplug(instance or host.instance)
    host.disconnect_volumes()
    host.disconnect_shares()


def power_off(host: Host, timeout: int) -> None:
    """Power off and report; a guest that is gone is as off as can be. ``timeout``: see GuestDriver.power_off."""
    try:
        host.driver.power_off(host.instance, timeout=timeout)
        report_power(host)
    except exception.GuestNotFound:
        host.set(power_state=states.SHUTDOWN)
    host.disconnect_shares()


def report_power(host: Host) -> None:
    """Raises GuestNotFound."""
    host.set(power_state=host.driver.power_state(host.instance.uuid))


def report_devices(host: Host) -> None:
    """Where the guest finds its interfaces and disks. Raises GuestNotFound."""
    host.set(device_addresses=host.driver.device_addresses(host.instance.uuid))


def report_guest(host: Host) -> None:
    """Of one that was defined anew. Raises GuestNotFound."""
    report_power(host)
    report_devices(host)
