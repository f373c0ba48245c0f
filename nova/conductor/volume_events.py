"""What an outside volume service tells of the volumes of servers, beside what operations wait for."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.objects.external_event import COMPLETED, ExternalEvent
from nova.operations.extend_volume import ExtendVolume

LOG = logging.getLogger(__name__)

_EXTENDED = "volume-extended"
# What a service outside may be asked for: no path leads anywhere else.
_ID = re.compile(r"[0-9a-fA-F-]{1,64}")


def told(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Of servers that have a host: their guests get to see that a volume became larger."""
    for event in events:
        if event.name == _EXTENDED and event.tag and event.status == COMPLETED:
            _extend(engine, event.instance_uuid, event.tag)


def _extend(engine: Engine, uuid: str, volume_id: str) -> None:
    try:
        start(engine, context.admin(), uuid, ExtendVolume.name, {"volume_id": volume_id})
    except (exception.NotFound, exception.Conflict) as error:
        LOG.info("[instance: %s] Volume %s was extended: %s", uuid, volume_id, error)
        if _ID.fullmatch(volume_id):
            engine.in_background("", functools.partial(_refuse, engine.core, uuid, volume_id))


def _refuse(core: Core, uuid: str, volume_id: str) -> None:
    """A service that waits for the guest waits in vain; if this gets lost an operator resets the volume's status."""
    try:
        core.attachments.end_extension(context.admin(), uuid, volume_id, 0, done=False)
    except exception.NovaException as error:
        LOG.warning("[instance: %s] The service of volume %s may wait in vain: %s", uuid, volume_id, error)
