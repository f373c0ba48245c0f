"""Events of the external network and volume services about servers, besides those that operations wait for."""

import functools
import logging
import re
from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import Engine
from nova.db.servers import servers
from nova.objects.servers.external_event import COMPLETED, ExternalEvent
from nova.operations.extend_volume import ExtendVolume
from nova.operations.interfaces import LoseInterface

LOG = logging.getLogger(__name__)

_CHANGED = ("network-changed", "network-vif-plugged", "network-vif-unplugged")
_DELETED = "network-vif-deleted"
_EXTENDED = "volume-extended"
_ID = re.compile(r"[0-9a-fA-F-]{1,64}")  # a safe volume id: it cannot change the path of a request to the service


def process_network_events(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Refresh changed interfaces and detach deleted ports. ``events`` are of servers that have a host."""
    events = list(events)
    for event in events:
        if event.name == _DELETED and event.tag:
            try:
                start(engine, context.admin(), event.instance_uuid, LoseInterface.name, {"port_id": event.tag})
            except (exception.NotFound, exception.Conflict) as error:
                LOG.info("[instance: %s] Port %s was deleted, but its interface is not detached: %s",
                         event.instance_uuid, event.tag, error)
    for uuid in sorted({event.instance_uuid for event in events if event.name in _CHANGED}):
        # All events share one queue, so that events of ten thousand servers do not delay the work of projects.
        engine.in_background("", f"interfaces {uuid}", functools.partial(_renew, engine.core, uuid))


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
            active=refreshed[vif.id].active, floating=refreshed[vif.id].floating)
            if vif.id in refreshed else vif for vif in now]
        if renewed != now:
            servers.update(connection, uuid, {"network_info": renewed})

    try:
        core.db.write(write)
    except exception.InstanceNotFound:
        LOG.debug("[instance: %s] The instance was deleted meanwhile", uuid)


def process_volume_events(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Start the extension of the guest's disk for each extended volume. ``events`` are of servers that have a host."""
    for event in events:
        if event.name == _EXTENDED and event.tag and event.status == COMPLETED:
            _extend(engine, event.instance_uuid, event.tag)


def _extend(engine: Engine, uuid: str, volume_id: str) -> None:
    try:
        start(engine, context.admin(), uuid, ExtendVolume.name, {"volume_id": volume_id})
    except (exception.NotFound, exception.Conflict) as error:
        LOG.info("[instance: %s] Volume %s was extended, but the guest cannot be: %s", uuid, volume_id, error)
        if _ID.fullmatch(volume_id):
            engine.in_background("", f"extension {uuid} {volume_id}",
                                 functools.partial(_refuse, engine.core, uuid, volume_id))


def _refuse(core: Core, uuid: str, volume_id: str) -> None:
    """Report the failed extension to the volume service. If that fails, an operator resets the volume's status. """
    try:
        instance = core.db.read(lambda connection: servers.get(connection, uuid, deleted=True))
        ConductorControl(core, context.admin(), instance).outside_volumes.end_extension(volume_id, 0, done=False)
    except exception.NovaException as error:
        LOG.warning("[instance: %s] Cannot report the failed extension of volume %s to its service: %s; "
                    "an operator must reset the status of the volume", uuid, volume_id, error)
