"""Security groups and floating addresses. Nova has no VPCs: lists of VPCs, subnets and network interfaces are empty."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova.common import plain_ip
from nova.ec2 import ids, servers
from nova.ec2.actions import Action, Call, Item, Listing, identifier, selected
from nova.ec2.errors import Ec2Error, bad_value, missing_parameter
from nova.ec2.parameters import Address, Integer, Kind, Many, Struct, Text
from nova.ec2.rest import OLD, path_of
from nova.objects.accounts.ec2_id import INSTANCE

Group = Mapping[str, Any]

_ALL = "-1"
_EVERYBODY = "0.0.0.0/0"
_PROTOCOLS = {"6": "tcp", "17": "udp", "1": "icmp", "58": "icmpv6"}
# Maximum number of rules that a request changes: each needs a request of its own to the REST API.
_MOST_RULES = 100
_SOURCES = ("IpRanges", "Ipv6Ranges", "Groups")


# --- security groups --------------------------------------------------------------------------------------
def _groups(call: Call) -> list[dict[str, Any]]:
    return call.rest.list("/os-security-groups", "security_groups", OLD, paged="offset")


def describe_groups(call: Call) -> list[Item]:
    """List the security groups of the project."""
    groups, names = _groups(call), call.args["GroupName"]
    texts = call.ids.texts("sg", (group["id"] for group in groups))
    by_name = {group["name"]: texts[group["id"]] for group in groups}
    items = [{
        "ownerId": group["tenant_id"], "groupName": group["name"], "groupId": texts[group["id"]],
        "groupDescription": group["description"] or "", "ipPermissions": _permissions(group, by_name),
        "ipPermissionsEgress": []} for group in groups]
    for name in names:
        if name not in by_name:
            raise Ec2Error("InvalidGroup.NotFound", f"The security group '{name}' does not exist")
    items = selected(items, "sg", "groupId", call.args["GroupId"])
    return [item for item in items if not names or item["groupName"] in names]


def _permissions(group: Group, by_name: Mapping[str, str]) -> list[Item]:
    """Return the rules of a group, with one element for each protocol and range of ports."""
    merged: dict[tuple[Any, ...], Item] = {}
    for rule in group["rules"]:
        protocol, first, last = rule["ip_protocol"] or _ALL, rule["from_port"], rule["to_port"]
        if protocol == _ALL or first is None:
            first = last = -1 if protocol.startswith("icmp") else None
        item = merged.setdefault((protocol, first, last), {
            "ipProtocol": protocol, "fromPort": first, "toPort": last, "groups": [], "ipRanges": [],
            "ipv6Ranges": []})
        peer = rule["group"].get("name")
        if peer is not None:
            item["groups"].append({"userId": rule["group"]["tenant_id"], "groupName": peer,
                                   "groupId": by_name.get(peer)})
        elif ":" in rule["ip_range"].get("cidr", ""):
            item["ipv6Ranges"].append({"cidrIpv6": rule["ip_range"]["cidr"]})
        else:
            item["ipRanges"].append({"cidrIp": rule["ip_range"].get("cidr", _EVERYBODY)})
    return list(merged.values())


def create_group(call: Call) -> Mapping[str, Any]:
    """Create a security group."""
    args = call.args
    if any(group["name"] == args["GroupName"] for group in _groups(call)):
        raise Ec2Error("InvalidGroup.Duplicate", f"The security group '{args['GroupName']}' already exists")
    group = call.rest.request("POST", "/os-security-groups", {"security_group": {
        "name": args["GroupName"], "description": args["GroupDescription"]}}, OLD, codes={
            413: "SecurityGroupLimitExceeded"})["security_group"]
    return {"return": True, "groupId": call.ids.texts("sg", [group["id"]])[group["id"]]}


def _group(call: Call, number: int | None, name: str | None) -> dict[str, Any]:
    """Return a security group of the project, given by id or name. Raises InvalidGroup.NotFound, MissingParameter."""
    if number is not None:
        uuid = call.ids.uuid("sg", number)
        group: dict[str, Any] | None = call.rest.find(path_of("os-security-groups", uuid), "security_group", OLD)
        if group is None:
            raise ids.missing("sg", number)
        return group
    if not name:
        raise missing_parameter("GroupId")
    for group in _groups(call):
        if group["name"] == name:
            return group
    raise Ec2Error("InvalidGroup.NotFound", f"The security group '{name}' does not exist")


def delete_group(call: Call) -> None:
    """Delete a security group that has no instances."""
    group = _group(call, call.args["GroupId"], call.args["GroupName"])
    call.rest.request("DELETE", path_of("os-security-groups", group["id"]), version=OLD, codes={
        400: "InvalidGroup.InUse", 404: "InvalidGroup.NotFound", 409: "InvalidGroup.InUse"})


def _permissions_of(args: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the permissions of a request; older clients send one permission as plain parameters. Raises Ec2Error."""
    permissions: Sequence[Mapping[str, Any]] = args["IpPermissions"]
    if not permissions:
        if not args["IpProtocol"] and not args["SourceSecurityGroupName"]:
            raise missing_parameter("IpPermissions")
        source = {"GroupName": args["SourceSecurityGroupName"], "GroupId": None}
        permissions = [{
            "IpProtocol": args["IpProtocol"] or _ALL, "FromPort": args["FromPort"], "ToPort": args["ToPort"],
            "IpRanges": [{"CidrIp": args["CidrIp"]}] if args["CidrIp"] else [], "Ipv6Ranges": [],
            "Groups": [source] if args["SourceSecurityGroupName"] else []}]
    # Check the number of rules first, because each rule may need a REST request to find its group.
    if sum(len(permission[sources]) for permission in permissions for sources in _SOURCES) > _MOST_RULES:
        raise bad_value("IpPermissions", f"a request can change at most {_MOST_RULES} rules.")
    return permissions


def _rules(call: Call, permissions: Sequence[Mapping[str, Any]], parent: str) -> Iterator[dict[str, Any]]:
    """Yield the rules of a request as the bodies of REST requests. Raises Ec2Error."""
    for permission in permissions:
        protocol = _PROTOCOLS.get(permission["IpProtocol"], permission["IpProtocol"].lower())
        first, last = permission["FromPort"], permission["ToPort"]
        rule = {"parent_group_id": parent, "ip_protocol": None if protocol == _ALL else protocol,
                "from_port": None if protocol == _ALL else first, "to_port": None if protocol == _ALL else last}
        if protocol.startswith("icmp") and (first, last) == (None, None):
            rule |= {"from_port": -1, "to_port": -1}
        sources = [*({"cidr": item["CidrIp"]} for item in permission["IpRanges"]),
                   *({"cidr": item["CidrIpv6"]} for item in permission["Ipv6Ranges"]),
                   *({"group_id": _group(call, item["GroupId"], item["GroupName"])["id"]}
                     for item in permission["Groups"])]
        if not sources:
            raise bad_value("IpPermissions", "a source (IpRanges, Ipv6Ranges, Groups) is expected.")
        yield from ({**rule, **source} for source in sources)


def _changed_rules(call: Call) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    permissions = _permissions_of(call.args)
    group = _group(call, call.args["GroupId"], call.args["GroupName"])
    return group, list(_rules(call, permissions, group["id"]))


def _key(rule: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key by which rules are compared. Rules without ports equal rules for all ports. Networks are compared
    in canonical form, because the stored form is that of the request."""
    ports, network = (rule["from_port"], rule["to_port"]), rule.get("cidr")
    if network is not None:
        with contextlib.suppress(ValueError):  # an invalid network, which nova-api will refuse
            network = str(plain_ip.network(network, strict=False))
    return (rule["ip_protocol"], *(ports if ports != (-1, -1) else (None, None)), network, rule.get("group_id"))


def _existing(call: Call, group: Group) -> dict[tuple[Any, ...], list[str]]:
    """Return the ids of the rules of a group by their keys."""
    peers = {peer["name"]: peer["id"] for peer in _groups(call)} if any(
        rule["group"] for rule in group["rules"]) else {}
    existing: dict[tuple[Any, ...], list[str]] = {}
    for rule in group["rules"]:
        key = _key({**rule, "cidr": rule["ip_range"].get("cidr"), "group_id": peers.get(rule["group"].get("name"))})
        existing.setdefault(key, []).append(rule["id"])
    return existing


def authorize_ingress(call: Call) -> None:
    """Add rules to a security group. If one of the rules exists, no rule is added."""
    group, rules = _changed_rules(call)
    existing = _existing(call, group)
    keys = {_key(rule) for rule in rules}
    if len(keys) < len(rules):
        raise bad_value("IpPermissions", "the same rule occurs more than once.")
    if keys & existing.keys():
        raise Ec2Error("InvalidPermission.Duplicate", "The specified rule already exists.")
    for rule in rules:
        call.rest.request("POST", "/os-security-group-rules", {"security_group_rule": rule}, OLD, codes={
            404: "InvalidGroup.NotFound", 409: "InvalidPermission.Duplicate",
            413: "RulesPerSecurityGroupLimitExceeded"})


def revoke_ingress(call: Call) -> Mapping[str, Any]:
    """Remove rules from a security group, and return the requested rules that the group does not have."""
    group, rules = _changed_rules(call)
    existing = _existing(call, group)
    for key in dict.fromkeys(map(_key, rules)):
        for rule_id in existing.get(key, ()):
            call.rest.remove(path_of("os-security-group-rules", rule_id), OLD)
    return {"return": True, "unknownIpPermissionSet": [{
        "ipProtocol": rule["ip_protocol"] or _ALL, "fromPort": rule["from_port"], "toPort": rule["to_port"],
        "ipRanges": [{"cidrIp": rule["cidr"]}] if "cidr" in rule else []} for rule in rules
        if _key(rule) not in existing]}


def _egress(_call: Call) -> None:
    """Refuse rules for outgoing traffic, which the security groups of Nova do not have."""
    raise Ec2Error("InvalidParameterValue", "Only security groups of VPCs have rules for outgoing traffic.")


# --- addresses --------------------------------------------------------------------------------------------
def _floating_ips(call: Call) -> list[dict[str, Any]]:
    return call.rest.list("/os-floating-ips", "floating_ips", OLD, paged="")


def describe_addresses(call: Call) -> list[Item]:
    """List the floating addresses of the project."""
    addresses, wanted = _floating_ips(call), call.args["PublicIp"]
    allocations = call.ids.assign("eipalloc", (address["id"] for address in addresses))
    instances = call.ids.texts(INSTANCE, (address["instance_id"] for address in addresses))
    items = []
    for address in addresses:
        number = allocations[address["id"]].number
        instance = instances.get(address["instance_id"] or "")
        items.append({
            "publicIp": address["ip"], "allocationId": ids.text("eipalloc", number), "domain": "standard",
            "instanceId": instance, "associationId": ids.text("eipassoc", number) if instance else None,
            "privateIpAddress": address["fixed_ip"]})
    for text in wanted:
        if all(item["publicIp"] != text for item in items):
            raise Ec2Error("InvalidAddress.NotFound", f"Address '{text}' not found.")
    items = selected(items, "eipalloc", "allocationId", call.args["AllocationId"])
    return [item for item in items if not wanted or item["publicIp"] in wanted]


def allocate(call: Call) -> Mapping[str, Any]:
    """Allocate a floating address from the default pool."""
    address = call.rest.request("POST", "/os-floating-ips", {}, OLD, codes={
        413: "AddressLimitExceeded", 403: "AddressLimitExceeded", 404: "InsufficientAddressCapacity"})["floating_ip"]
    return {"publicIp": address["ip"], "domain": "standard",
            "allocationId": call.ids.texts("eipalloc", [address["id"]])[address["id"]]}


def _address(call: Call, by_association: bool = False) -> dict[str, Any]:
    """Return the floating address of a request. Raises InvalidAddress.NotFound and errors of ids."""
    args = call.args
    number = args["AssociationId"] if by_association else args.get("AllocationId")
    if number is not None:
        uuid = call.ids.uuid("eipalloc", number)
        address: dict[str, Any] | None = call.rest.find(path_of("os-floating-ips", uuid), "floating_ip", OLD)
        if address is None or (by_association and not address["instance_id"]):
            raise Ec2Error("InvalidAssociationID.NotFound", "The association does not exist.") if by_association \
                else ids.missing("eipalloc", number)
        return address
    if not args["PublicIp"]:
        raise missing_parameter("PublicIp")
    for address in _floating_ips(call):
        if address["ip"] == args["PublicIp"]:
            return address
    raise Ec2Error("InvalidAddress.NotFound", f"Address '{args['PublicIp']}' not found.")


def release(call: Call) -> None:
    """Release a floating address."""
    address = _address(call)
    call.rest.request("DELETE", path_of("os-floating-ips", address["id"]), version=OLD, codes={
        400: "InvalidIPAddress.InUse", 404: "InvalidAddress.NotFound", 409: "InvalidIPAddress.InUse"})


def associate(call: Call) -> Mapping[str, Any]:
    """Associate a floating address with an instance, after disassociating it from any other instance."""
    server, address = servers.get(call, call.args["InstanceId"]), _address(call)
    wanted = {"address": address["ip"]}
    if call.args["PrivateIpAddress"]:
        wanted["fixed_address"] = call.args["PrivateIpAddress"]
    if address["instance_id"] and address["instance_id"] != server["id"]:
        _disassociate(call, address)
    call.rest.request("POST", path_of("servers", server["id"], "action"), {"addFloatingIp": wanted}, OLD, codes={
        404: "InvalidAddress.NotFound", 409: "IncorrectInstanceState"})
    number = call.ids.assign("eipalloc", [address["id"]])[address["id"]].number
    return {"return": True, "associationId": ids.text("eipassoc", number)}


def disassociate(call: Call) -> None:
    """Disassociate a floating address from its instance. Succeeds if the address has no instance."""
    address = _address(call, by_association=call.args["AssociationId"] is not None)
    if address["instance_id"]:
        _disassociate(call, address)


def _disassociate(call: Call, address: Mapping[str, Any]) -> None:
    call.rest.request("POST", path_of("servers", address["instance_id"], "action"), {
        "removeFloatingIp": {"address": address["ip"]}}, OLD, codes={404: "InvalidAddress.NotFound"})


def _none(_call: Call) -> list[Item]:
    """Return an empty list, because Nova has no VPCs."""
    return []


_PORT = Integer(least=-1, most=65535)
_PERMISSION = Struct({
    "IpProtocol": Text(required=True, least=1, most=16), "FromPort": _PORT, "ToPort": _PORT,
    "IpRanges": Many(Struct({"CidrIp": Text(required=True, most=64), "Description": Text()}), most=_MOST_RULES),
    "Ipv6Ranges": Many(Struct({"CidrIpv6": Text(required=True, most=64), "Description": Text()}), most=_MOST_RULES),
    "Groups": Many(Struct({"GroupId": identifier("sg"), "GroupName": Text(), "UserId": Text()}), most=_MOST_RULES)})
_GROUP: dict[str, Kind] = {"GroupId": identifier("sg"), "GroupName": Text()}
_RULES: dict[str, Kind] = {
    **_GROUP, "IpPermissions": Many(_PERMISSION, most=_MOST_RULES), "IpProtocol": Text(most=16), "FromPort": _PORT,
    "ToPort": _PORT, "CidrIp": Text(most=64), "SourceSecurityGroupName": Text(),
    "SourceSecurityGroupOwnerId": Text()}
_EGRESS = {name: kind for name, kind in _RULES.items() if name != "GroupName"}
_ADDRESS: dict[str, Kind] = {"PublicIp": Address(), "AllocationId": identifier("eipalloc")}
_GROUP_FILTERS = {
    "description": "groupDescription", "group-id": "groupId", "group-name": "groupName", "owner-id": "ownerId",
    "ip-permission.cidr": "ipPermissions.ipRanges.cidrIp", "ip-permission.from-port": "ipPermissions.fromPort",
    "ip-permission.group-id": "ipPermissions.groups.groupId", "ip-permission.group-name":
    "ipPermissions.groups.groupName", "ip-permission.protocol": "ipPermissions.ipProtocol",
    "ip-permission.to-port": "ipPermissions.toPort", "ip-permission.ipv6-cidr": "ipPermissions.ipv6Ranges.cidrIpv6",
    "vpc-id": "vpcId"}
_ADDRESS_FILTERS = {
    "allocation-id": "allocationId", "association-id": "associationId", "domain": "domain", "instance-id":
    "instanceId", "private-ip-address": "privateIpAddress", "public-ip": "publicIp"}
# Filters of lists that are always empty.
_ANY = dict.fromkeys((
    "association.owner-id", "availability-zone", "cidr", "cidr-block", "default-for-az", "group-id", "is-default",
    "isDefault", "attachment.instance-id", "network-interface-id", "owner-id", "private-ip-address", "state", "status",
    "subnet-id", "vpc-id"), "id")

ACTIONS = (
    Listing("DescribeSecurityGroups", describe_groups, {
        "GroupId": Many(identifier("sg")), "GroupName": Many(Text())}, key="securityGroupInfo",
        filters=_GROUP_FILTERS, ident="groupId"),
    Action("CreateSecurityGroup", create_group, {
        "GroupName": Text(required=True, least=1), "GroupDescription": Text(required=True)}),
    Action("DeleteSecurityGroup", delete_group, _GROUP),
    Action("AuthorizeSecurityGroupIngress", authorize_ingress, _RULES),
    Action("RevokeSecurityGroupIngress", revoke_ingress, _RULES),
    Action("AuthorizeSecurityGroupEgress", _egress, _EGRESS),
    Action("RevokeSecurityGroupEgress", _egress, _EGRESS),
    Listing("DescribeAddresses", describe_addresses, {
        "PublicIp": Many(Address()), "AllocationId": Many(identifier("eipalloc"))}, key="addressesSet",
        filters=_ADDRESS_FILTERS),
    Action("AllocateAddress", allocate, {"Domain": Text(choices=("standard", "vpc"))}),
    Action("ReleaseAddress", release, _ADDRESS),
    Action("AssociateAddress", associate, {
        **_ADDRESS, "InstanceId": identifier(INSTANCE, required=True), "PrivateIpAddress": Address()}),
    Action("DisassociateAddress", disassociate, {
        "PublicIp": Address(), "AssociationId": identifier("eipassoc")}),
    Listing("DescribeVpcs", _none, {"VpcId": Many(Text())}, key="vpcSet", filters=_ANY),
    Listing("DescribeSubnets", _none, {"SubnetId": Many(Text())}, key="subnetSet", filters=_ANY),
    Listing("DescribeNetworkInterfaces", _none, {"NetworkInterfaceId": Many(Text())}, key="networkInterfaceSet",
            filters=_ANY),
)
