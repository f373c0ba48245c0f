"""Events of the external network service about the interfaces of servers, besides those that operations wait for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import Engine
from nova.db.servers import servers
from nova.objects.servers.external_event import ExternalEvent
from nova.operations.interfaces import LoseInterface

LOG = logging.getLogger(__name__)

_CHANGED = ("network-changed", "network-vif-plugged", "network-vif-unplugged")
_DELETED = "network-vif-deleted"


def process(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Refresh changed interfaces and detach deleted ports. ``events`` are of servers that have a host."""
    events = list(events)
    for event in events:
        if event.name == _DELETED and event.tag:
            _detach(engine, event.instance_uuid, event.tag)
    for uuid in sorted({event.instance_uuid for event in events if event.name in _CHANGED}):
        # All events share one queue, so that events of ten thousand servers do not delay the work of projects.
        engine.in_background("", functools.partial(_renew, engine.core, uuid))


def _detach(engine: Engine, uuid: str, vif_id: str) -> None:
    try:
        start(engine, context.admin(), uuid, LoseInterface.name, {"port_id": vif_id})
    except (exception.NotFound, exception.Conflict) as error:
        LOG.info("[instance: %s] Port %s was deleted, but its interface is not detached: %s", uuid, vif_id, error)


def _renew(core: Core, uuid: str) -> None:
    """Copy the interfaces from the network service to the server's row. The next event repeats a failed update."""
    try:
        instance = core.db.read(lambda connection: servers.get(connection, uuid))
        service = ConductorControl(core, context.admin(), instance).outside_interfaces
        refreshed = {vif.id: vif for vif in service.refreshed()} if instance.network_info else {}
    except exception.NovaException as error:
        LOG.warning("[instance: %s] Cannot refresh the interfaces until the next network event: %s", uuid, error)
        return

    def write(connection: sa.Connection) -> None:
        now = servers.lock(connection, uuid).network_info
        renewed = [msgspec.structs.replace(
            vif, label=refreshed[vif.id].label, mtu=refreshed[vif.id].mtu, fixed_ips=refreshed[vif.id].fixed_ips,
            active=refreshed[vif.id].active) if vif.id in refreshed else vif for vif in now]
        if renewed != now:
            servers.update(connection, uuid, {"network_info": renewed})

    try:
        core.db.write(write)
    except exception.InstanceNotFound:
        LOG.debug("[instance: %s] The instance was deleted meanwhile", uuid)
