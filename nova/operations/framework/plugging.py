"""Plugging: wait until the network back end reports that interfaces are plugged, without holding a thread.

A host step starts the guest paused, a conductor step waits, and another host step unpauses the guest. Interfaces of
back ends that do not report plugging (``VIF.awaits_plug`` is False) are not waited for."""

import logging
from collections.abc import Callable, Iterable, Sequence

from nova import exception
from nova.objects.networks.network import VIF
from nova.objects.servers.external_event import FAILED
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, Operation, Wait, event_key, step
from nova.operations.framework.contexts import Control, HostContext

LOG = logging.getLogger(__name__)

PLUGGED = "network-vif-plugged"


def awaited(vifs: Iterable[VIF]) -> list[str]:
    """Return the ids of the interfaces whose plugging the back end reports."""
    return [vif.id for vif in vifs if vif.awaits_plug]


def start(host: HostContext, run: Callable[..., None]) -> None:
    """Start the guest with ``run(paused=...)``: paused if plug events are awaited. Reports these as ``plugs``."""
    plugs = awaited(host.instance.network_info)
    run(paused=bool(plugs))
    host.result(plugs=plugs)


def forget(ctl: Control) -> None:
    """Delete plug events of the previous host before the interfaces are plugged on another host."""
    keys = [event_key(PLUGGED, vif_id) for vif_id in awaited(ctl.instance.network_info)]
    if keys:
        ctl.forget_events(*keys)


def wait(ctl: Control, vif_ids: Sequence[str]) -> None:
    """Return when all interfaces are plugged, or when plugging is not required (vif_plugging_is_fatal,
    vif_plugging_timeout). Raises Wait, VirtualInterfaceCreateFailed."""
    keys = {vif_id: event_key(PLUGGED, vif_id) for vif_id in vif_ids}
    came = ctl.events(*keys.values())
    failed = [vif_id for vif_id, key in keys.items() if came.get(key) == FAILED]
    missing = [vif_id for vif_id, key in keys.items() if key not in came]
    if failed and ctl.plugging_is_fatal:
        raise exception.VirtualInterfaceCreateFailed(reason=f"the network service could not plug {', '.join(failed)}")
    if missing and ctl.plugging_timeout > 0:
        if not ctl.waited_out:
            raise Wait(*(keys[vif_id] for vif_id in missing), seconds=ctl.plugging_timeout)
        if ctl.plugging_is_fatal:
            raise exception.VirtualInterfaceCreateFailed(
                reason=f"the network service did not plug {', '.join(missing)} in {ctl.plugging_timeout} s")
    if failed or missing:
        LOG.warning("[instance: %s] No plug event for interfaces %s, and vif_plugging_is_fatal is false: continuing",
                    ctl.instance.uuid, ", ".join([*failed, *missing]))
    ctl.forget_events(*keys.values())
    ctl.interfaces.complete(*(vif_id for vif_id in vif_ids if vif_id not in (*failed, *missing)))


@step(CONDUCTOR, when="plugs")
def plugged(operation: Operation, ctl: Control) -> None:
    """Wait until the interfaces ``plugs`` of the data are plugged. This function is a step of several operations."""
    wait(ctl, operation.data.plugs)


def go(host: HostContext) -> None:
    """Unpause the guest, which was started paused."""
    host.driver.power.unpause(host.instance)
    on_host.report_power(host)
