"""os-instance-actions: the operations that were performed on a server."""

import hashlib
from typing import Any, NamedTuple

from nova.api.request import Request, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Field, Getter, Object, Out, Query, View, single
from nova.api.validation.types import LIMIT, LINKS, STRING, STRING_OR_NULL, TIME
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance

POLICY = "os_compute_api:os-instance-actions:"

INDEX_QUERY = Query({
    "limit": Field(LIMIT, since=58, single=58), "marker": Field(STRING, since=58, single=58),
    "changes-since": Field(TIME, since=58, single=58), "changes-before": Field(TIME, since=66, single=66),
}, strict=58)


class Shown(NamedTuple):
    """An action or event, with the server's project for policies and host ids."""

    item: Action | Event
    project_id: str

    def allowed(self, req: Request, rule: str) -> bool:
        return req.allowed(POLICY + rule, {"project_id": self.project_id})


def _time(name: str) -> Getter:
    return lambda shown, _req: iso_precise(getattr(shown.item, name))


def _secret(name: str, rule: str) -> Getter:
    """Return the getter of a field that is shown only to callers with permission by the policy ``rule``."""
    return lambda shown, req: getattr(shown.item, name) if shown.allowed(req, rule) else ABSENT


EVENT = View([
    Out("event", STRING, "item.event"), Out("start_time", STRING_OR_NULL, _time("start_time")),
    Out("finish_time", STRING_OR_NULL, _time("finish_time")), Out("result", STRING_OR_NULL, "item.result"),
    Out("traceback", STRING_OR_NULL, _secret("traceback", "events")),
    Out("hostId", STRING, lambda shown, _req: hashlib.sha224(
        (shown.project_id + shown.item.host).encode()).hexdigest() if shown.item.host else "", since=62),
    Out("host", STRING_OR_NULL, _secret("host", "events"), since=62),
    Out("details", STRING_OR_NULL, _secret("details", "events:details"), since=84)])


def _events(shown: Shown, req: Request) -> Any:
    if req.version < 51 and not shown.allowed(req, "events"):
        return ABSENT
    action: Any = shown.item
    # The newest event first.
    return [EVENT.render(Shown(event, shown.project_id), req) for event in reversed(action.events)]


_ACTION = [
    Out("action", STRING, "item.action"), Out("instance_uuid", STRING, "item.instance_uuid"),
    Out("request_id", STRING, "item.request_id"), Out("user_id", STRING_OR_NULL, "item.user_id"),
    Out("project_id", STRING_OR_NULL, "item.project_id"), Out("start_time", STRING_OR_NULL, _time("start_time")),
    Out("message", STRING_OR_NULL, "item.message"),
    Out("updated_at", STRING_OR_NULL, lambda shown, _req: iso_precise(
        shown.item.updated_at or shown.item.finish_time or shown.item.start_time), since=58)]
LISTED = View(_ACTION)
ACTION = View([*_ACTION, Out("events", Array(EVENT), _events)])


def _server(req: Request, operation: str) -> Instance:
    """Return the server; actions of deleted servers are shown from 2.21. Raises InstanceNotFound."""
    server = req.clients.servers.get(req.ctx, req.params["server_id"], req.scope, deleted=req.version >= 21)
    req.authorize(POLICY + operation, {"project_id": server.project_id, "user_id": server.user_id})
    return server


@accepts(query=INDEX_QUERY, answer=Object({"instanceActions": Array(LISTED), "links": Field(LINKS, since=58)}))
def index(req: Request) -> dict[str, Any]:
    """List the actions of a server."""
    server = _server(req, "list")
    since, before = req.changes()
    limit, marker = req.page()
    actions = req.clients.actions.index(req.ctx, server.uuid, limit=limit, marker=marker, changes_since=since,
                                        changes_before=before)
    answer = {"instanceActions": [LISTED.render(Shown(action, server.project_id), req) for action in actions]}
    return req.with_next(answer, "links", f"servers/{server.uuid}/os-instance-actions", actions, limit, "request_id",
                         since=58)


@accepts(answer=single("instanceAction", ACTION))
def show(req: Request) -> Shown:
    """Show an action of a server with its events."""
    server = _server(req, "show")
    return Shown(req.clients.actions.get(req.ctx, server.uuid, req.params["id"]), server.project_id)
