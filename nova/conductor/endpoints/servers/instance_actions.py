"""Instance actions: the operations that were performed on servers."""

from __future__ import annotations

from nova import context
from nova.conductor.endpoints.derived import Endpoint, reads
from nova.db.servers import actions
from nova.db.sql import clock
from nova.objects.base import new_uuid
from nova.objects.servers.action import Action, Event


class Actions(Endpoint):
    """Implements :class:`nova.rpcapi.servers.Actions`."""

    index = reads(actions.index)
    get = reads(actions.by_request)


def done(ctx: context.RequestContext, instance_uuid: str, name: str, event: str = "",
         host: str | None = None) -> Action:
    """Return a completed action with an optional completed ``event`` on ``host``."""
    now = clock.now()
    events = [Event(event=event, start_time=now, finish_time=now, result="Success", host=host)] if event else []
    return Action(
        uuid=new_uuid(), instance_uuid=instance_uuid, action=name, outcome="success", request_id=ctx.request_id,
        user_id=ctx.user_id, project_id=ctx.project_id, start_time=now, finish_time=now, updated_at=now, events=events)
