"""Events of the external volume service about the volumes of servers, besides those that operations wait for."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import Engine
from nova.db.servers import servers
from nova.objects.servers.external_event import COMPLETED, ExternalEvent
from nova.operations.extend_volume import ExtendVolume

LOG = logging.getLogger(__name__)

_EXTENDED = "volume-extended"
_ID = re.compile(r"[0-9a-fA-F-]{1,64}")  # a safe volume id: it cannot change the path of a request to the service


def process(engine: Engine, events: Iterable[ExternalEvent]) -> None:
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
            engine.in_background("", functools.partial(_refuse, engine.core, uuid, volume_id))


def _refuse(core: Core, uuid: str, volume_id: str) -> None:
    """Report the failed extension to the volume service. If the report is lost, an operator resets the volume's status.
    """
    try:
        instance = core.db.read(lambda connection: servers.get(connection, uuid, deleted=True))
        ConductorControl(core, context.admin(), instance).outside_volumes.end_extension(volume_id, 0, done=False)
    except exception.NovaException as error:
        LOG.warning("[instance: %s] Cannot report the failed extension of volume %s to its service: %s; "
                    "an operator must reset the status of the volume", uuid, volume_id, error)
