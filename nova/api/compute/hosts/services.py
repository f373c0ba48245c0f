"""os-services: the processes of Nova on all hosts; os-availability-zone: the zones that servers can request."""

from collections.abc import Callable
from typing import Any

from nova import exception
from nova.api.request import Request, is_true, iso_precise
from nova.api.router import accepts
from nova.api.validation import formats
from nova.api.validation.fields import Array, Changing, Field, Object, Out, Plain, Query, View, enum, listed
from nova.api.validation.types import BOOLEAN, HOSTNAME, INTEGER, STRING, STRING_OR_NULL, TEXT, TRUTH, UUID
from nova.objects.hosts.service import Service

COMPUTE = "nova-compute"

STATUS, STATE = enum("enabled", "disabled"), enum("up", "down")
UPDATE = Object({"host": Field(HOSTNAME, until=52, required=True), "binary": Field(TEXT, until=52, required=True),
                 "status": Field(STATUS, since=53), "disabled_reason": TEXT, "forced_down": Field(BOOLEAN, since=11)})


def status_of(service: Service | None) -> str:
    return "disabled" if service is not None and service.disabled else "enabled"


def state_of(service: Service | None) -> str:
    return "up" if service is not None and service.up else "down"


def _seen(service: Service) -> str | None:
    """Return the time of the last heartbeat of the service."""
    return iso_precise(service.last_seen_up or service.updated_at or service.created_at)


SERVICE = View([
    Out("id", Changing({0: INTEGER, 53: UUID}), lambda service, req: service.uuid if req.version >= 53 else service.id),
    Out("binary", STRING), Out("host", STRING), Out("zone", STRING_OR_NULL, "availability_zone"),
    Out("status", STATUS, lambda service, _req: status_of(service)),
    Out("state", STATE, lambda service, _req: state_of(service)),
    Out("updated_at", STRING_OR_NULL, lambda service, _req: _seen(service)),
    Out("disabled_reason", STRING_OR_NULL), Out("forced_down", TRUTH, since=11)])


@accepts(query=Query({"host": STRING, "binary": STRING}, strict=75), answer=listed("services", SERVICE))
def index(req: Request) -> list[Service]:
    """List services."""
    return req.clients.services.index(req.ctx, req.arg("host"), req.arg("binary"))


@accepts(body=UPDATE, answer=Object({"service": SERVICE}))
def update(req: Request) -> dict[str, Any]:
    """Enable, disable or force down a compute service."""
    if req.version < 53:
        return _act(req)
    uuid = req.params["id"]
    check_uuid(uuid)
    status, reason = req.body.get("status"), req.body.get("disabled_reason")
    if status is None and "forced_down" not in req.body:
        raise exception.Invalid("No updates were requested. Fields 'status' or 'forced_down' should be specified.")
    if reason is not None and status != "disabled":
        raise exception.Invalid("'disabled_reason' can be given only with the status 'disabled'.")
    _check_binary(req.clients.services.get(req.ctx, uuid).binary)
    changed = req.clients.services.update(
        req.ctx, uuid, disabled=None if status is None else status == "disabled", reason=reason, forced_down=_flag(req))
    return {"service": SERVICE.render(changed, req)}


def check_uuid(ident: str) -> None:
    if not formats.is_uuid(ident):
        raise exception.Invalid(f"Invalid uuid {ident}")


def _check_binary(binary: str) -> None:
    if binary != COMPUTE:
        raise exception.Invalid(f"Updating a {binary} service is not supported. "
                                f"Only {COMPUTE} services can be updated.")


def _flag(req: Request) -> bool | None:
    return is_true(req.body["forced_down"]) if "forced_down" in req.body else None


# --- before 2.53: an action in the URL, host and binary in the body --------------------------------
def _act(req: Request) -> dict[str, Any]:
    act = _ACTS.get(req.params["id"])
    if act is None or (act is _force_down and req.version < 11):
        raise exception.NotFound("Unknown action")
    return {"service": {"host": req.body["host"], "binary": req.body["binary"], **act(req)}}


def _change(req: Request, **changes: Any) -> Service:
    host, binary = req.body["host"], req.body["binary"]
    if binary != COMPUTE and req.clients.services.index(req.ctx, host, binary):
        _check_binary(binary)
    return req.clients.services.update_by_host(req.ctx, host, binary, **changes)


def _disable_with_reason(req: Request) -> dict[str, Any]:
    reason = req.body.get("disabled_reason")
    if reason is None:
        raise exception.Invalid("Missing disabled reason field")
    return {"status": status_of(_change(req, disabled=True, reason=reason)), "disabled_reason": reason}


def _force_down(req: Request) -> dict[str, Any]:
    wanted = _flag(req)
    if wanted is None:
        raise exception.Invalid("Missing forced_down field")
    return {"forced_down": _change(req, forced_down=wanted).forced_down}


_ACTS: dict[str, Callable[[Request], dict[str, Any]]] = {
    "enable": lambda req: {"status": status_of(_change(req, disabled=False))},
    "disable": lambda req: {"status": status_of(_change(req, disabled=True))},
    "disable-log-reason": _disable_with_reason, "force-down": _force_down}


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Delete a service that no longer runs."""
    ident = req.params["id"]
    if req.version >= 53:
        check_uuid(ident)
    elif not ident.isdecimal():
        raise exception.Invalid(f"Invalid service id {ident}")
    req.clients.services.delete(req.ctx, ident)


# --- availability zones --------------------------------------------------------------------------------
_ZONES = Object({"availabilityZoneInfo": Array(View([
    Out("zoneName", STRING), Out("zoneState", Object({"available": TRUTH})),
    Out("hosts", Plain(type=["object", "null"]))]))})


def _zone(name: str, available: bool, hosts: dict[str, Any] | None) -> dict[str, Any]:
    return {"zoneName": name, "zoneState": {"available": available}, "hosts": hosts}


@accepts(answer=_ZONES)
def zones(req: Request) -> dict[str, Any]:
    """List availability zones."""
    available = req.clients.zones.index(req.ctx)
    return {"availabilityZoneInfo": [_zone(name, available[name], None) for name in _ordered(available)]}


@accepts(answer=_ZONES)
def zones_detail(req: Request) -> dict[str, Any]:
    """List availability zones with the services in them."""
    services = req.clients.zones.detail(req.ctx)
    available = {name: any(not service.disabled for service in in_zone) for name, in_zone in services.items()}
    return {"availabilityZoneInfo": [_zone(name, available[name], _hosts(services[name]) if available[name] else None)
                                     for name in _ordered(available)]}


def _ordered(available: dict[str, bool]) -> list[str]:
    """Return the zones, available ones first."""
    return sorted(available, key=lambda name: (not available[name], name))


def _hosts(services: list[Service]) -> dict[str, Any]:
    hosts: dict[str, Any] = {}
    for service in services:
        hosts.setdefault(service.host, {})[service.binary] = {
            "active": not service.disabled, "available": service.up, "updated_at": _seen(service)}
    return hosts
