"""os-availability-zone: the zones that servers can request."""

from typing import Any

from nova.api.compute.hosts.services import seen
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Object, Out, Plain, View
from nova.api.validation.types import STRING, TRUTH
from nova.objects.hosts.service import Service

_ANSWER = Object({"availabilityZoneInfo": Array(View([
    Out("zoneName", STRING), Out("zoneState", Object({"available": TRUTH})),
    Out("hosts", Plain(type=["object", "null"])),
]))})


def _zone(name: str, available: bool, hosts: dict[str, Any] | None) -> dict[str, Any]:
    return {"zoneName": name, "zoneState": {"available": available}, "hosts": hosts}


@accepts(answer=_ANSWER)
def index(req: Request) -> dict[str, Any]:
    """List availability zones."""
    zones = req.clients.zones.index(req.ctx)
    return {"availabilityZoneInfo": [_zone(name, zones[name], None) for name in _ordered(zones)]}


@accepts(answer=_ANSWER)
def detail(req: Request) -> dict[str, Any]:
    """List availability zones with the services in them."""
    zones = req.clients.zones.detail(req.ctx)
    available = {name: any(not service.disabled for service in services) for name, services in zones.items()}
    return {"availabilityZoneInfo": [
        _zone(name, available[name], _hosts(zones[name]) if available[name] else None)
        for name in _ordered(available)]}


def _ordered(available: dict[str, bool]) -> list[str]:
    """Return the zones, available ones first."""
    return sorted(available, key=lambda name: (not available[name], name))


def _hosts(services: list[Service]) -> dict[str, Any]:
    hosts: dict[str, Any] = {}
    for service in services:
        hosts.setdefault(service.host, {})[service.binary] = {
            "active": not service.disabled, "available": service.up, "updated_at": seen(service)}
    return hosts
