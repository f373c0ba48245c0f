"""Waiting until the network back end says that interfaces are plugged: no guest runs before, and no thread waits.

A step on the host starts the guest paused, a step of the conductor waits, and another one on the host lets it go. Back
ends that do not tell (``VIF.awaits_plug``) are not waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from nova import exception
from nova.objects.external_event import FAILED
from nova.objects.network import VIF
from nova.operations import on_host
from nova.operations.base import Wait, event_key
from nova.operations.contexts import Control, Host

LOG = logging.getLogger(__name__)

PLUGGED = "network-vif-plugged"


def awaited(vifs: Iterable[VIF]) -> list[str]:
    """The ids of those of which the back end tells."""
    return [vif.id for vif in vifs if vif.awaits_plug]


def start(host: Host, run: Callable[..., None]) -> None:
    """Have ``run(paused=...)`` start the guest: paused if its interfaces are waited for (``plugs`` tells which)."""
    plugs = awaited(host.instance.network_info)
    run(paused=bool(plugs))
    host.result(plugs=plugs)


def forget(ctl: Control) -> None:
    """Before the interfaces are plugged on another host: what was told until now is of the one before."""
    told = [event_key(PLUGGED, vif_id) for vif_id in awaited(ctl.instance.network_info)]
    if told:
        ctl.forget_events(*told)


def wait(ctl: Control, vif_ids: Sequence[str]) -> None:
    """Return when all are plugged, or when that no longer matters (vif_plugging_is_fatal, vif_plugging_timeout).

    Raises Wait, VirtualInterfaceCreateFailed.
    """
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
        LOG.warning("[instance: %s] goes on without a word that its interfaces %s are plugged", ctl.instance.uuid,
                    ", ".join([*failed, *missing]))
    ctl.forget_events(*keys.values())
    ctl.interfaces.complete(*(vif_id for vif_id in vif_ids if vif_id not in (*failed, *missing)))


def go(host: Host) -> None:
    """The guest, which was started paused, runs."""
    host.driver.unpause(host.instance)
    on_host.report_power(host)
