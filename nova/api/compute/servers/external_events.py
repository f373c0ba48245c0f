"""os-server-external-events: events of the network and volume services about servers."""

from typing import Any

from nova import exception
from nova.api.request import Request, Response
from nova.api.router import accepts
from nova.api.validation.fields import Array, Changing, Field, Object, Out, View, enum, string
from nova.api.validation.types import INTEGER, STRING, UUID
from nova.objects.servers.external_event import COMPLETED, FAILED, IN_PROGRESS, ExternalEvent

_NETWORK = ("network-changed", "network-vif-plugged", "network-vif-unplugged", "network-vif-deleted")
_POWER = "power-update"
# First microversion of each event that requires a tag.
_TAGGED = {"volume-extended": 51, _POWER: 76, "accelerator-request-bound": 82, "volume-reimaged": 93}

_NAMES = {since: enum(*_NETWORK, *(name for name, since_version in _TAGGED.items() if since_version <= since))
          for since in (0, *_TAGGED.values())}
CREATE = Object({"events": Field(Array(Object({
    "name": Field(Changing(_NAMES), required=True), "server_uuid": Field(UUID, required=True),
    "status": enum(FAILED, COMPLETED, IN_PROGRESS), "tag": string(maxLength=255),
}), minItems=1, maxItems=1000), required=True)})
EVENT = View([Out(name, STRING) for name in ("name", "server_uuid", "status", "tag")] + [Out("code", INTEGER)])


@accepts(body=CREATE, answer=Object({"events": Array(EVENT)}), statuses=(200, 207))
def create(req: Request) -> Response:
    """Report events of external services to servers."""
    events = [{"status": COMPLETED, **event} for event in req.body["events"]]
    sound = [event for event in events if _is_sound(event)]
    codes = iter(req.clients.external_events.create(req.ctx, [ExternalEvent(
        name=event["name"], instance_uuid=event["server_uuid"], status=event["status"], tag=event.get("tag"))
        for event in sound]) if sound else ())
    for event in events:
        event["code"] = next(codes) if _is_sound(event) else 400
        if event["code"] != 200:
            event["status"] = FAILED
    distinct_codes = {event["code"] for event in events}
    if distinct_codes == {404}:
        raise exception.NotFound("None of the servers of these events could be found.")
    return Response({"events": events}, status=200 if distinct_codes == {200} else 207)


def _is_sound(event: dict[str, Any]) -> bool:
    """Return True if the event has the tag that its name requires; for power-update the tag is a power state."""
    tag: str | None = event.get("tag")
    if event["name"] not in _TAGGED:
        return True
    return bool(tag) and (event["name"] != _POWER or str(tag).upper() in ("POWER_ON", "POWER_OFF"))
