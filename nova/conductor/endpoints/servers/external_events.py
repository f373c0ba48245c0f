"""Events about servers that external services report."""

from __future__ import annotations

from nova import context
from nova.conductor import network_events, volume_events
from nova.conductor.saga.engine import Engine
from nova.db.servers import external_events, servers
from nova.objects.servers.external_event import IN_PROGRESS, ExternalEvent
from nova.operations.framework.base import event_key

OK, UNKNOWN_SERVER, UNPROCESSABLE = 200, 404, 422


class ExternalEvents:
    """Implements :class:`nova.rpcapi.servers.ExternalEvents`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(self, ctx: context.RequestContext, events: list[ExternalEvent]) -> list[int]:
        named = sorted({event.instance_uuid for event in events})
        hosts = self.engine.core.db.read(lambda connection: servers.placed(connection, named))
        codes: list[int] = []
        reported: dict[str, dict[str, str]] = {}
        for event in events:
            uuid, key = event.instance_uuid, event_key(event.name, event.tag)
            codes.append(OK if hosts.get(uuid) else UNPROCESSABLE if uuid in hosts else UNKNOWN_SERVER)
            # An event in progress ends no wait. Operations cannot wait for an event whose key is too long.
            if hosts.get(uuid) and event.status != IN_PROGRESS and len(key) <= external_events.LONGEST:
                reported.setdefault(uuid, {})[key] = event.status
        for uuid, statuses in reported.items():
            self.engine.wake(ctx, uuid, statuses)
        placed = [event for event in events if hosts.get(event.instance_uuid)]
        if self.engine.core.allocator.external:
            network_events.process(self.engine, placed)
        if self.engine.core.attachments.external:
            volume_events.process(self.engine, placed)
        return codes
