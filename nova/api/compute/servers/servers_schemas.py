"""The bodies of create and update requests of servers."""

from nova.api.validation.fields import Array, Changing, Combined, Field, Object, Plain, enum, integer, only, string
from nova.api.validation.types import ANY, BOOLEAN, DESCRIPTION, HOSTNAME, IP, LIMIT, METADATA, NAME, STRING, TAG, UUID

# Maximum number of items in each list of a request.
_MANY = 255
_COUNT = Plain(**{**LIMIT.schema(1), "minimum": 1})
_LONG = string(maxLength=255)
_DISK_CONFIG = enum("AUTO", "MANUAL")
_IPV4 = string(format="ipv4")
_IPV6 = string(format="ipv6")
# A host name: one label of 2 to 63 characters; from 2.94 a complete domain name.
_HOST_LABEL = Changing({
    0: string(pattern="^[a-zA-Z0-9]+[a-zA-Z0-9-]*[a-zA-Z0-9]+$", minLength=2, maxLength=63), 94: HOSTNAME})

_FILES = Array(Object({"path": STRING, "contents": string(format="base64")}), maxItems=_MANY)
_CERTIFICATES = Array(string(minLength=1), null=True, minItems=1, maxItems=50, uniqueItems=True)

_NETWORK = Object({
    "fixed_ip": IP,
    "port": Plain(type=["string", "null"], format="uuid"),
    "uuid": Changing({0: STRING, 37: UUID}),
    # OpenStack dropped tags of networks by mistake in 2.37 (tags of devices in 2.33) and restored them in 2.42.
    "tag": Field(TAG, since=32, gap=(37, 41)),
})
_NETWORKS = Array(_NETWORK, maxItems=_MANY)

_DEVICE = {
    "virtual_name": _LONG, "volume_id": UUID, "snapshot_id": UUID, "volume_size": integer(1, 2147483647),
    "device_name": string(minLength=1, maxLength=255, pattern="^[a-zA-Z0-9._/-]*$"), "delete_on_termination": BOOLEAN,
    "no_device": ANY, "connection_info": string(maxLength=16777215),
}
_DEVICES_V2 = Array(Object({
    **_DEVICE, "source_type": enum("volume", "image", "snapshot", "blank"),
    "uuid": string(minLength=1, maxLength=255, pattern="^[a-zA-Z0-9._-]*$"), "image_id": UUID,
    "destination_type": enum("local", "volume"), "guest_format": _LONG, "device_type": _LONG, "disk_bus": _LONG,
    "boot_index": Plain(type=["integer", "string", "null"], pattern="^-?[0-9]+$"),
    "tag": Field(TAG, since=32, gap=(33, 41)),
    "volume_type": Field(Plain(type=["string", "null"], minLength=0, maxLength=255), since=67),
}), maxItems=_MANY)
_UUIDS = Array(UUID, maxItems=_MANY)
_HINTS = Object({
    "group": Combined("oneOf", _UUIDS, UUID), "different_host": Combined("oneOf", UUID, _UUIDS),
    "same_host": Plain(type=["string", "array"], items={"type": "string", "format": "uuid"}, maxItems=_MANY),
    "query": Plain(type=["string", "object"]),
    "target_cell": Plain(type="string", format="name", minLength=1, maxLength=255),
    "different_cell": Plain(type=["string", "array"], items={"type": "string"}, maxItems=_MANY),
    "build_near_host_ip": IP, "cidr": string(pattern="^/[0-9a-f.:]+$"),
}, additional=True)

_HINT_KEYS = ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints")

CREATE = Object({
    "server": Field(Object({
        "name": Field(NAME, required=True),
        "imageRef": Combined("oneOf", UUID, string(maxLength=0)),
        "flavorRef": Field(Plain(type=["string", "integer"], minLength=1), required=True),
        "adminPass": STRING,
        "metadata": METADATA,
        "networks": Field(Changing({0: _NETWORKS, 37: Combined("oneOf", _NETWORKS, enum("none", "auto"))}),
                          required=37),
        "OS-DCF:diskConfig": _DISK_CONFIG,
        "accessIPv4": _IPV4,
        "accessIPv6": _IPV6,
        "personality": Field(_FILES, until=56),
        "availability_zone": NAME,
        "block_device_mapping": Array(Object(_DEVICE), maxItems=_MANY),
        "block_device_mapping_v2": _DEVICES_V2,
        "config_drive": BOOLEAN,
        "key_name": NAME,
        "min_count": _COUNT,
        "max_count": _COUNT,
        "return_reservation_id": BOOLEAN,
        "security_groups": Array(Object({"name": NAME}), maxItems=_MANY),
        "user_data": Changing({
            0: Plain(type=["string", "null"], format="base64", maxLength=65535),
            1: string(format="base64", maxLength=65535)}),
        "description": Field(DESCRIPTION, since=19),
        "tags": Field(Array(TAG, maxItems=50), since=52),
        "trusted_image_certificates": Field(_CERTIFICATES, since=63),
        "host": Field(HOSTNAME, since=74),
        "hypervisor_hostname": Field(HOSTNAME, since=74),
        "hostname": Field(_HOST_LABEL, since=90),
    }), required=True),
    **dict.fromkeys(_HINT_KEYS, _HINTS),
})

REBUILD = only("rebuild", Object({
    "imageRef": Field(UUID, required=True), "name": NAME, "adminPass": STRING, "metadata": METADATA,
    "preserve_ephemeral": BOOLEAN, "OS-DCF:diskConfig": _DISK_CONFIG, "accessIPv4": _IPV4, "accessIPv6": _IPV6,
    "personality": Field(_FILES, until=56), "description": Field(DESCRIPTION, since=19),
    "key_name": Field(Combined("oneOf", string(minLength=1, maxLength=255), Plain(type="null")), since=54),
    "user_data": Field(Plain(type=["string", "null"], format="base64", maxLength=65535), since=57),
    "trusted_image_certificates": Field(_CERTIFICATES, since=63), "hostname": Field(_HOST_LABEL, since=90)}))

UPDATE = Object({"server": Field(Object({
    "name": NAME, "OS-DCF:diskConfig": _DISK_CONFIG, "accessIPv4": _IPV4, "accessIPv6": _IPV6,
    "description": Field(DESCRIPTION, since=19), "hostname": Field(_HOST_LABEL, since=90),
    "pinned_availability_zone": Field(Combined(
        "oneOf", string(minLength=1, maxLength=255), Plain(type="null")), since=104),
}), required=True)})
