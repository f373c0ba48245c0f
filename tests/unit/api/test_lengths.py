"""Maximum lengths of strings in request schemas, and the reasons for strings without a maximum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nova.api import routes
from nova.api.legacy import routes as legacy_routes
from tests.unit.api.declared import steps

_HINTS = "it is kept as JSON, and read by filters"
_LOOKED_UP = "it is looked up and not written"
_HERE = "its handler checks it"
UNBOUNDED = {
    "POST /servers server.adminPass": _HERE,
    "POST /servers server.networks[].fixed_ip": "an address",
    "POST /servers server.networks[].uuid": "a uuid, as its handler checks",
    "POST /servers server.personality[].path": "bounded by quota",
    "POST /servers server.personality[].contents": "bounded by quota",
    **{f"POST /servers {hints}.{hint}": _HINTS for hints in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints")
       for hint in ("same_host", "query", "different_cell", "different_cell[]", "build_near_host_ip", "cidr")},
    "POST /servers server.trusted_image_certificates[]": "kept as JSON",
    "POST /servers/{server_id}/action evacuate.adminPass": _HERE,
    "POST /servers/{server_id}/action changePassword.adminPass": _HERE,
    "POST /servers/{server_id}/action rebuild.adminPass": _HERE,
    "POST /servers/{server_id}/action rescue.adminPass": _HERE,
    **{f"POST /servers/{{server_id}}/action rebuild.personality[].{name}": "bounded by quota"
       for name in ("path", "contents")},
    "POST /servers/{server_id}/action rebuild.trusted_image_certificates[]": "kept as JSON",
    "POST /servers/{server_id}/action createBackup.backup_type": "a property of an image, which its service bounds",
    "POST /servers/{server_id}/action unshelve.availability_zone": _LOOKED_UP,
    "POST /servers/{server_id}/action unshelve.host": _LOOKED_UP,
    "POST /servers/{server_id}/action addSecurityGroup.name": _LOOKED_UP,
    "POST /servers/{server_id}/action removeSecurityGroup.name": _LOOKED_UP,
    "POST /servers/{server_id}/action removeFixedIp.address": _LOOKED_UP,
    "POST /os-floating-ips pool": _LOOKED_UP,
    **{f"POST /servers/{{server_id}}/action {name}": _LOOKED_UP for name in (
        "addFloatingIp.address", "addFloatingIp.fixed_address", "removeFloatingIp.address")},
    "POST /os-keypairs keypair.public_key": "kept without bounds, and no larger than a key",
    "POST /os-keypairs keypair.user_id": _HERE,
    "POST /flavors flavor.rxtx_factor": "a number",
    "POST /servers/{server_id}/os-interface interfaceAttachment.fixed_ips[].ip_address": "an address",
    **{f"POST /os-volumes volume.{name}": _HERE
       for name in ("volume_type", "snapshot_id", "availability_zone", "display_name", "display_description")},
    "POST /os-snapshots snapshot.volume_id": "a uuid",
    **{f"POST /os-snapshots snapshot.{name}": _HERE for name in ("display_name", "display_description")},
    **{f"POST /os-assisted-volume-snapshots snapshot.{name}": _HERE
       for name in ("volume_id", "create_info.snapshot_id", "create_info.new_file")},
    "POST /os-assisted-volume-snapshots snapshot.create_info.id": "it is given back and not written",
    "POST /servers/{server_id}/os-volume_attachments volumeAttachment.device": "an action's payload; what is written "
                                                                              "of it is checked there",
    "PUT /servers/{server_id}/os-volume_attachments/{id} volumeAttachment.device": "not written",
}
# Formats that bound the length.
_FORMATS = frozenset({"uuid", "ipv4", "ipv6", "date-time"})


def _endless(schema: Any, path: str) -> Iterator[str]:
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds and "integer" not in kinds and not {"enum", "maxLength"} & schema.keys() \
            and schema.get("format") not in _FORMATS:
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from _endless(inner, f"{path}.{name}" if path else name)
    for inner in schema.get("patternProperties", {}).values():
        yield from _endless(inner, f"{path}.*")
    if isinstance(schema.get("items"), dict):
        yield from _endless(schema["items"], f"{path}[]")
    for word in ("oneOf", "anyOf", "allOf"):
        for inner in schema.get(word, ()):
            yield from _endless(inner, path)


def test_every_string_without_a_max_length_is_listed_with_a_reason() -> None:
    found = {f"{route.method} {route.path.replace('/os-volumes_boot', '/servers')} {path}"
             for route in (*routes.ROUTES, *legacy_routes.SERVED) if route.spec.body is not None
             for version in {route.since, *steps(route.spec.body)} if route.since <= version <= route.until
             for path in _endless(route.spec.body.schema(version), "")}
    assert found == set(UNBOUNDED)
