"""Key pairs, tags, regions, availability zones and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nova.conf import CONF
from nova.ec2 import ids, images, servers, volumes
from nova.ec2.actions import Action, Call, Item, Listing
from nova.ec2.errors import Ec2Error, unsupported
from nova.ec2.parameters import TAGS, Encoded, Flag, Identifier, Many, Text, check_tags
from nova.ec2.rest import OLD, path_of
from nova.objects.accounts.ec2_id import INSTANCE

# Maximum number of objects whose tags a request can change.
_MOST_TAGGED = 100
_TYPES = {INSTANCE: "instance", "ami": "image", "vol": "volume"}


# --- key pairs --------------------------------------------------------------------------------------------
def describe_keys(call: Call) -> list[Item]:
    """List the key pairs of the caller."""
    wanted = call.args["KeyName"]
    keys = [item["keypair"] for item in call.rest.request("GET", "/os-keypairs", version="2.34")["keypairs"]]
    names = {key["name"] for key in keys}
    for name in wanted:
        if name not in names:
            raise Ec2Error("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")
    return [{"keyName": key["name"], "keyFingerprint": key["fingerprint"]} for key in keys
            if not wanted or key["name"] in wanted]


def _create_key(call: Call, key: Mapping[str, Any]) -> Any:
    return call.rest.request("POST", "/os-keypairs", {"keypair": key}, OLD, codes={
        409: "InvalidKeyPair.Duplicate", 413: "KeyPairLimitExceeded", 400: "InvalidParameterValue"})["keypair"]


def create_key(call: Call) -> Mapping[str, Any]:
    """Generate a key pair. Only this response contains its private key."""
    key = _create_key(call, {"name": call.args["KeyName"]})
    return {"keyName": key["name"], "keyFingerprint": key["fingerprint"], "keyMaterial": key["private_key"]}


def import_key(call: Call) -> Mapping[str, Any]:
    """Import a public key."""
    try:
        public = call.args["PublicKeyMaterial"].decode("ascii")
    except UnicodeDecodeError as error:
        raise Ec2Error("InvalidKey.Format", "Key is not in valid OpenSSH public key format") from error
    key = _create_key(call, {"name": call.args["KeyName"], "public_key": public})
    return {"keyName": key["name"], "keyFingerprint": key["fingerprint"]}


def delete_key(call: Call) -> None:
    """Delete a key pair. Succeeds if it does not exist."""
    try:
        call.rest.request("DELETE", path_of("os-keypairs", call.args["KeyName"]), version=OLD, codes={
            404: "InvalidKeyPair.NotFound"})
    except Ec2Error as error:
        if error.code != "InvalidKeyPair.NotFound":
            raise


# --- tags -------------------------------------------------------------------------------------------------
def _resources(call: Call) -> list[tuple[str, str]]:
    """Return kind and uuid of each object of a request. Raises Ec2Error if the caller cannot see one of them."""
    resources = []
    for text in dict.fromkeys(call.args["ResourceId"]):
        kind = text.partition("-")[0]
        if kind not in (INSTANCE, "ami"):
            raise unsupported(f"The tags of {text[:64]} cannot be changed, only tags of instances and images.")
        number = Identifier((kind,), ids.MALFORMED[kind]).read(text, "ResourceId")
        item = servers.get(call, number) if kind == INSTANCE else images.get(call, number)
        resources.append((kind, item["id"]))
    return resources


def create_tags(call: Call) -> None:
    """Set tags: metadata of servers, properties of images."""
    tags = {tag["Key"]: tag["Value"] or "" for tag in call.args["Tag"]}
    check_tags(tags)
    for kind, uuid in _resources(call):
        if kind == INSTANCE:
            call.rest.request("POST", path_of("servers", uuid, "metadata"), {"metadata": tags}, codes={
                413: "TagLimitExceeded", 409: "IncorrectInstanceState"})
        else:
            images.set_tags(call, uuid, tags)


def delete_tags(call: Call) -> None:
    """Remove the tags with the given keys and values, or all tags if no keys are given."""
    for kind, uuid in _resources(call):
        if kind == INSTANCE:
            current = servers.tags_of({"metadata": call.rest.get(path_of("servers", uuid, "metadata"), "metadata")})
        else:
            current = images.tags_of({"metadata": call.rest.get(path_of("images", uuid, "metadata"), "metadata", OLD)})
        for key in _removed(current, call.args["Tag"]):
            if kind == INSTANCE:
                call.rest.remove(path_of("servers", uuid, "metadata", key))
            else:
                images.remove_tag(call, uuid, key)


def _removed(current: Mapping[str, str], tags: Sequence[Mapping[str, Any]]) -> list[str]:
    if not tags:
        return list(current)
    return [tag["Key"] for tag in tags if tag["Key"] in current
            and (tag["Value"] is None or current[tag["Key"]] == tag["Value"])]


def describe_tags(call: Call) -> list[Item]:
    """List the tags of instances, images and volumes."""
    tagged: dict[str, dict[str, dict[str, str]]] = {
        INSTANCE: {server["id"]: servers.tags_of(server) for server in call.rest.list("/servers/detail", "servers")},
        "ami": {image["id"]: images.tags_of(image) for image in call.rest.list("/images/detail", "images", OLD)},
        "vol": {volume["id"]: volumes.tags_of(volume) for volume in call.rest.list(
            "/os-volumes/detail", "volumes", OLD, paged="offset")}}
    items = []
    for kind, tags_by_uuid in tagged.items():
        texts = call.ids.texts(kind, (uuid for uuid, tags in tags_by_uuid.items() if tags))
        items += [{"resourceId": texts[uuid], "resourceType": _TYPES[kind], "key": key, "value": str(value),
                   "ident": f"{texts[uuid]} {key}"}
                  for uuid, tags in tags_by_uuid.items() if uuid in texts for key, value in sorted(tags.items())]
    return items


def _shown_tags(_call: Call, items: list[Item]) -> list[Item]:
    return [{name: value for name, value in item.items() if name != "ident"} for item in items]


# --- the cloud --------------------------------------------------------------------------------------------
def regions(call: Call) -> list[Item]:
    """List the regions: [ec2]region is the only one."""
    for name in call.args["RegionName"]:
        if name != CONF.ec2.region:
            raise Ec2Error("InvalidParameterValue", f"Invalid region name: {name}")
    return [{"regionName": CONF.ec2.region, "regionEndpoint": call.url, "optInStatus": "opt-in-not-required"}]


def zones(call: Call) -> list[Item]:
    """List availability zones."""
    shown = call.rest.get("/os-availability-zone", "availabilityZoneInfo")
    names = {zone["zoneName"] for zone in shown}
    for name in call.args["ZoneName"]:
        if name not in names:
            raise Ec2Error("InvalidParameterValue", f"Invalid availability zone: {name}")
    return [{"zoneName": zone["zoneName"], "zoneState": "available" if zone["zoneState"]["available"] else
             "unavailable", "regionName": CONF.ec2.region, "messageSet": []} for zone in shown
            if not call.args["ZoneName"] or zone["zoneName"] in call.args["ZoneName"]]


def account_attributes(call: Call) -> Mapping[str, Any]:
    """Return the platform and the limits of the project."""
    limits = call.rest.get("/limits", "limits", OLD)["absolute"]
    values = {"supported-platforms": "EC2", "default-vpc": "none", "max-instances": limits["maxTotalInstances"],
              "max-elastic-ips": limits.get("maxTotalFloatingIps", -1)}
    wanted = call.args["AttributeName"]
    for name in wanted:
        if name not in values:
            raise Ec2Error("InvalidParameterValue", f"Invalid attribute name: {name}")
    return {"accountAttributeSet": [{"attributeName": name, "attributeValueSet": [{"attributeValue": value}]}
                                    for name, value in values.items() if not wanted or name in wanted]}


_TAG_FILTERS = {"key": "key", "resource-id": "resourceId", "resource-type": "resourceType", "value": "value"}
_KEY = Text(required=True, least=1)
_RESOURCES = Many(Text(least=1, most=64), required=True, most=_MOST_TAGGED)

ACTIONS = (
    Listing("DescribeKeyPairs", describe_keys, {"KeyName": Many(Text()), "IncludePublicKey": Flag()}, key="keySet",
            filters={"key-name": "keyName", "fingerprint": "keyFingerprint"}),
    Action("CreateKeyPair", create_key, {"KeyName": _KEY, "KeyType": Text(choices=("rsa",)), "KeyFormat": Text(
        choices=("pem",))}),
    Action("ImportKeyPair", import_key, {"KeyName": _KEY, "PublicKeyMaterial": Encoded(required=True)}),
    Action("DeleteKeyPair", delete_key, {"KeyName": _KEY}),
    Action("CreateTags", create_tags, {"ResourceId": _RESOURCES, "Tag": Many(TAGS.inner, required=True, most=50)}),
    Action("DeleteTags", delete_tags, {"ResourceId": _RESOURCES, "Tag": TAGS}),
    Listing("DescribeTags", describe_tags, key="tagSet", filters=_TAG_FILTERS, ident="ident", grouped=_shown_tags),
    Listing("DescribeRegions", regions, {"RegionName": Many(Text()), "AllRegions": Flag()}, key="regionInfo",
            filters={"region-name": "regionName", "endpoint": "regionEndpoint"}),
    Listing("DescribeAvailabilityZones", zones, {"ZoneName": Many(Text()), "AllAvailabilityZones": Flag()},
            key="availabilityZoneInfo", filters={"zone-name": "zoneName", "state": "zoneState",
                                                 "region-name": "regionName"}),
    Action("DescribeAccountAttributes", account_attributes, {"AttributeName": Many(Text())}),
)
