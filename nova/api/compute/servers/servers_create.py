"""POST /servers: conversion of a request to one call of the conductor."""

import hashlib
import logging
import re
import secrets
import string
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nova import bus, exception
from nova.api import microversion
from nova.api.compute.servers import servers_schemas
from nova.api.compute.servers.servers_devices import devices_of, with_devices_of
from nova.api.request import Request, Response, is_true, whole
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object
from nova.api.validation.formats import canonical_ipv6, is_uuid
from nova.api.validation.types import LINKS, STRING
from nova.conf import CONF
from nova.image import lookup
from nova.objects.base import new_uuid
from nova.objects.networks.network import NetworkRequest
from nova.objects.servers.instance import Personality, root_volume
from nova.objects.servers.server_request import ServerCreate, ServerCreated
from nova.objects.servers.volume_image import describes_volumes, without_description

LOG = logging.getLogger(__name__)

POLICY = "os_compute_api:servers:create"
_LETTERS = string.ascii_letters + string.digits
# Maximum number of servers per request, which are created in one transaction.
_MOST = 10_000
# Header with a key that the client chooses: a request with the key of an earlier one gets the earlier response.
KEY = "Idempotency-Key"
# Maximum number of characters of a name and of a password.
_LONGEST = 255
_KEY = re.compile(r"[\x20-\x7e]{1,255}")

ANSWER = Object({
    "server": Object({
        "id": STRING, "links": LINKS, "OS-DCF:diskConfig": STRING, "security_groups": Array(Object({"name": STRING})),
        "adminPass": STRING}),
    "reservation_id": Field(STRING),
})


@accepts(body=servers_schemas.CREATE, answer=ANSWER, errors=(409,), headers=(KEY,), located=microversion.MAX)
def create(req: Request) -> Response:
    """Create one server or several."""
    wanted = req.body["server"]
    request = _request(req, wanted, _hints(req.body))
    _take_key(req, request)
    _check_policy(req, request, wanted)
    created = _created(req, request, wanted.get("imageRef"))
    if is_true(wanted.get("return_reservation_id")):
        return Response({"reservation_id": created.reservation_id})
    first = created.uuids[0]
    shown: dict[str, Any] = {
        "id": first, "links": req.links("servers", first), "OS-DCF:diskConfig": request.disk_config,
        "security_groups": [{"name": name} for name in request.security_groups or ["default"]],
    }
    password = created.admin_pass or wanted.get("adminPass") if created.repeated else request.admin_pass
    if CONF.api.enable_instance_password and password:
        shown["adminPass"] = password
    return Response({"server": shown}, headers={"Location": req.self_link("servers", first)})


def _take_key(req: Request, request: ServerCreate) -> None:
    """Derive the uuids of the servers from the Idempotency-Key of the request, if there is one. Raises InvalidInput."""
    key = req.headers.get(KEY)
    if key is None:
        return
    if not _KEY.fullmatch(key):
        raise exception.InvalidInput(f"{KEY} must be 1 to 255 printable ASCII characters.")
    caller = msgspec.json.encode([req.ctx.project_id, req.ctx.user_id, key]).decode()
    request.first_uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, caller))
    request.request_digest = hashlib.sha256(msgspec.json.encode(req.body, order="deterministic")).hexdigest()


def _created(req: Request, request: ServerCreate, image_ref: str | None) -> ServerCreated:
    """Create servers. If the conductor's reply is lost and the request is refused, the servers are deleted.

    The client can repeat a request that has an Idempotency-Key, so the servers of such a request are kept."""
    try:
        _find_images(req, request, image_ref)
    except exception.NovaException:
        # A repeated request gets the earlier response, even if the images and volumes in it are deleted by now.
        if not request.request_digest or (created := req.clients.servers.made(req.ctx, request)) is None:
            raise
        return created
    until = time.monotonic() + bus.call_timeout(CONF)
    try:
        return req.clients.servers.create(req.ctx, request)
    except exception.NotFound as error:
        # A missing resource in the body makes the request invalid; the path /servers itself exists.
        raise exception.InvalidInput(error.message) from error
    except exception.NoListeners:
        raise
    except exception.ServiceUnavailable:
        created = _find_result(req, request, until)
        if created is None:
            raise
        return created


def _find_result(req: Request, request: ServerCreate, until: float) -> ServerCreated | None:
    """Return the result of a create request whose reply was lost, or None if none is found.

    A conductor may execute the request until the time ``until`` of the monotonic clock. If the request has no
    Idempotency-Key, a background thread deletes servers that are created after this search."""
    created, final = None, False
    try:
        final = time.monotonic() >= until
        created = req.clients.servers.made(req.ctx, request)
    except exception.ServiceUnavailable as error:
        LOG.info("Cannot check if a create request without a reply has created servers, the request fails: %s", error)
        final = False
    if request.request_digest:
        return created
    if created is not None:
        created.admin_pass = request.admin_pass
    elif not final:
        req.clients.orphaned_creates.add(req.ctx, request, until)
    return created


def _request(req: Request, wanted: Mapping[str, Any], hints: dict[str, Any]) -> ServerCreate:
    least, most = _counts(wanted)
    zone, host, node = _zone(wanted)
    networks = _networks(wanted.get("networks"), most)
    if most > 1 and len(f"{wanted['name']}-{most}") > _LONGEST:
        raise exception.InvalidInput("Invalid input for field/attribute name. With the number appended for each "
                                     f"server, the name may have at most {_LONGEST} characters.")
    if wanted.get("hostname") and most > 1:
        raise exception.InvalidInput("A hostname can be given to a single server only, not with max_count > 1.")
    # Before 2.19 requests have no description; the name is also the description.
    description = wanted.get("description") if req.version >= 19 else wanted["name"]
    return ServerCreate(
        name=wanted["name"],
        # Old clients send the URL of the flavor.
        flavor_id=str(wanted["flavorRef"]).rstrip("/").rsplit("/", 1)[-1],
        description=description, hostname=wanted.get("hostname"), metadata=wanted.get("metadata") or {},
        tags=list(dict.fromkeys(wanted.get("tags") or ())), networks=networks,
        auto_networks=wanted.get("networks") == "auto",
        security_groups=list(dict.fromkeys(
            group["name"] for group in wanted.get("security_groups") or () if "name" in group)),
        key_name=wanted.get("key_name"), user_data=wanted.get("user_data"),
        config_drive=is_true(wanted.get("config_drive")), disk_config=wanted.get("OS-DCF:diskConfig", "AUTO"),
        access_ip_v4=wanted.get("accessIPv4"),
        access_ip_v6=canonical_ipv6(wanted["accessIPv6"]) if "accessIPv6" in wanted else None,
        availability_zone=zone, forced_host=host, forced_node=node, requested_host=wanted.get("host"),
        requested_node=wanted.get("hypervisor_hostname"), block_devices=devices_of(wanted, most),
        personality=personality_of(wanted), scheduler_hints=hints,
        trusted_certs=wanted.get("trusted_image_certificates"), admin_pass=given_password(wanted) or new_password(),
        min_count=least, max_count=most, first_uuid=new_uuid())


def _check_policy(req: Request, request: ServerCreate, wanted: Mapping[str, Any]) -> None:
    """Raise PolicyNotAuthorized unless the caller may create servers, and use each option of the request."""
    for rule, applies in (
            (POLICY, True), (f"{POLICY}:forced_host", request.forced_host or request.forced_node),
            ("compute:servers:create:requested_destination", request.requested_host or request.requested_node),
            (f"{POLICY}:attach_volume", wanted.get("block_device_mapping") or wanted.get("block_device_mapping_v2")),
            (f"{POLICY}:attach_network", request.networks), (f"{POLICY}:trusted_certs", request.trusted_certs)):
        if applies:
            req.authorize(rule)
    # Permission for flavors with a disk size of 0. The conductor enforces it, because it reads the flavor.
    request.zero_disk_allowed = req.allowed(f"{POLICY}:zero_disk_flavor")
    request.shares_volumes = req.version >= 60


def given_password(wanted: Mapping[str, Any]) -> str | None:
    """Return the requested password. Raises InvalidInput, without the password, if it is too long."""
    given: str | None = wanted.get("adminPass")
    if given and len(given) > _LONGEST:
        raise exception.InvalidInput("Invalid input for field/attribute adminPass. It may have at most "
                                     f"{_LONGEST} characters.")
    return given


def new_password() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(CONF.api.password_length))


def _hints(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hints under OS-SCH-HNT:scheduler_hints and os:scheduler_hints, except the internal names _nova*."""
    hints: dict[str, Any] = {}
    for key in ("OS-SCH-HNT:scheduler_hints", "os:scheduler_hints"):
        hints.update(body.get(key) or {})
    return {name: value for name, value in hints.items() if not name.startswith("_nova")}


def _counts(wanted: Mapping[str, Any]) -> tuple[int, int]:
    least = whole(wanted.get("min_count") or 1)
    most = whole(wanted.get("max_count") or least)
    if least > most:
        raise exception.InvalidInput("min_count must be <= max_count")
    if most > _MOST:
        raise exception.InvalidInput(f"max_count must be at most {_MOST}.")
    return least, most


def _zone(wanted: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Parse zone, zone:host, zone:host:node or zone::node; return (zone, host, node)."""
    text = wanted.get("availability_zone")
    if text is None:
        return None, None, None
    parts = text.split(":")
    if len(parts) > 3:
        raise exception.InvalidInput(f"Unable to parse availability_zone: {text}.")
    zone, host, node = (*(part.strip() or None for part in parts), None, None)[:3]
    if (host or node) and (wanted.get("host") or wanted.get("hypervisor_hostname")):
        raise exception.InvalidInput(
            "Destination host or hypervisor_hostname cannot be given together with an availability_zone that "
            "names a host or node.")
    return zone, host, node


def _networks(wanted: Any, most: int) -> list[NetworkRequest] | None:
    """Return the requested networks; None: the default networks of the project; []: no network."""
    if wanted is None or wanted == "auto" or wanted == []:
        return None
    if wanted == "none":
        return []
    return [_network(item, most) for item in wanted]


def _network(item: Mapping[str, Any], most: int) -> NetworkRequest:
    uuid, port, address = item.get("uuid"), item.get("port"), item.get("fixed_ip")
    if port:
        if address:
            raise exception.InvalidInput(f"Fixed IP '{address}' cannot be used together with port '{port}'.")
        if most > 1:
            raise exception.InvalidInput("Unable to launch multiple instances with a single configured port ID. "
                                         "Please launch your instance one by one with different ports.")
        return NetworkRequest(port_id=port, tag=item.get("tag"))
    if not uuid:
        raise exception.InvalidInput("Bad networks format: missing 'uuid' or 'port'.")
    if not is_uuid(uuid):
        raise exception.InvalidInput(f"Bad networks format: network uuid is not in proper format ({uuid})")
    if address and most > 1:
        raise exception.InvalidInput("Invalid fixed IP address: it can be given to a single server only, not with "
                                     "max_count > 1.")
    return NetworkRequest(network_id=uuid, fixed_ip=address, tag=item.get("tag"))


def personality_of(wanted: Mapping[str, Any]) -> list[Personality]:
    """Return the files (personality) of a request. Raises InvalidInput."""
    files: Sequence[Mapping[str, str]] = wanted.get("personality") or ()
    for item in files:
        for key in ("path", "contents"):
            if key not in item:
                raise exception.InvalidInput(f"Bad personality format: missing {key}")
    return [Personality(path=item["path"], contents=item["contents"]) for item in files]


def _find_images(req: Request, request: ServerCreate, image_ref: str | None) -> None:
    """Fill in the images that the server and its volumes are made from.

    If the server boots from a volume that is not a copy of an image, only the properties and the minimum sizes of the
    image in imageRef are used. Its data, its kernel and the volumes that its properties describe are ignored."""
    root = root_volume(request.block_devices)
    if root is not None and request.trusted_certs:
        raise exception.InvalidInput("trusted_image_certificates are not for servers that boot from volumes.")
    if root is None and not image_ref:
        raise exception.InvalidInput("Missing imageRef attribute")
    existing_id = image_ref if root is None else root.image_id
    if existing_id:
        _find_image_to_boot(req, request, existing_id)
    elif image_ref:
        request.image = lookup.find_description(req.ctx, image_ref)
    for device in request.block_devices:
        if device.is_volume and device.image_id and device.image_id != existing_id:
            request.device_images[device.image_id] = lookup.find(req.ctx, device.image_id)


def _find_image_to_boot(req: Request, request: ServerCreate, ident: str) -> None:
    find = lookup.find if root_volume(request.block_devices) else lookup.find_to_boot
    request.image = find(req.ctx, ident, request.trusted_certs or ())
    if describes_volumes(request.image):
        request.block_devices = with_devices_of(request.image, request.block_devices, request.max_count)
        request.image.properties = without_description(request.image.properties)
    request.kernel_id, request.ramdisk_id = lookup.boot_files(req.ctx, request.image)
