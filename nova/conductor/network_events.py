"""What an outside network service tells of the interfaces of servers, beside what operations wait for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.db import servers
from nova.objects.external_event import ExternalEvent
from nova.operations.interfaces import LoseInterface

LOG = logging.getLogger(__name__)

_CHANGED = ("network-changed", "network-vif-plugged", "network-vif-unplugged")
_DELETED = "network-vif-deleted"


def told(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Of servers that have a host: what changed is read anew, and what was deleted is detached."""
    events = list(events)
    for event in events:
        if event.name == _DELETED and event.tag:
            _detach(engine, event.instance_uuid, event.tag)
    for uuid in sorted({event.instance_uuid for event in events if event.name in _CHANGED}):
        # All have one turn: whoever works for a project does not wait for what was told of ten thousand servers.
        engine.in_background("", functools.partial(_renew, engine.core, uuid))


def _detach(engine: Engine, uuid: str, vif_id: str) -> None:
    try:
        start(engine, context.admin(), uuid, LoseInterface.name, {"port_id": vif_id})
    except (exception.NotFound, exception.Conflict) as error:
        LOG.info("[instance: %s] Port %s was deleted: %s", uuid, vif_id, error)


def _renew(core: Core, uuid: str) -> None:
    """The server's row knows its interfaces as the service has them; what is lost here comes with the next event."""
    try:
        instance = core.db.read(lambda connection: servers.get(connection, uuid))
        found = {vif.id: vif for vif in core.allocator.refreshed(context.admin(), instance)} \
            if instance.network_info else {}
    except exception.NovaException as error:
        LOG.warning("[instance: %s] Its interfaces are not read anew: %s", uuid, error)
        return

    def write(connection: sa.Connection) -> None:
        now = servers.lock(connection, uuid).network_info
        renewed = [msgspec.structs.replace(
            vif, label=found[vif.id].label, mtu=found[vif.id].mtu, fixed_ips=found[vif.id].fixed_ips,
            active=found[vif.id].active) if vif.id in found else vif for vif in now]
        if renewed != now:
            servers.update(connection, uuid, {"network_info": renewed})

    try:
        core.db.write(write)
    except exception.InstanceNotFound:
        LOG.debug("[instance: %s] is gone", uuid)
