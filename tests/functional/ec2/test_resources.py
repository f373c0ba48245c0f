"""Images, volumes, security groups, addresses, key pairs and tags through boto3."""

import pytest
import sqlalchemy as sa

from nova import context
from nova.api.keys import generate
from nova.db import tables
from nova.db.networks import floating_ips
from nova.ec2 import rest as rest_client
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.functional.client import wait_for
from tests.functional.conftest import remove_servers


# --- images -----------------------------------------------------------------------------------------------
@pytest.fixture
def snapshot(ec2, cloud):
    """An image of an instance, and the instance."""
    instance, = cloud.run()
    image = ec2.create_image(InstanceId=instance, Name="saved", Description="a copy")["ImageId"]
    wait_for(lambda: image_of(ec2, image)["State"] == "available")
    yield image, instance
    for item in ec2.describe_images(Owners=["self"])["Images"]:
        ec2.deregister_image(ImageId=item["ImageId"])


def image_of(ec2, ident):
    image, = ec2.describe_images(ImageIds=[ident])["Images"]
    return image


def test_image_is_created_from_an_instance_and_deregistered(ec2, cloud, snapshot, refused):
    image, _instance = snapshot
    shown = image_of(ec2, image)
    assert (shown["Name"], shown["Description"], shown["OwnerId"]) == ("saved", "a copy", "p")
    assert image in [item["ImageId"] for item in ec2.describe_images(Owners=["self"])["Images"]]
    assert {image, cloud.image} <= {item["ImageId"] for item in ec2.describe_images()["Images"]}
    assert [item["ImageId"] for item in ec2.describe_images(Filters=[
        {"Name": "name", "Values": ["sav*"]}, {"Name": "description", "Values": ["a copy"]}])["Images"]] == [image]
    ec2.deregister_image(ImageId=image)
    for call in (ec2.deregister_image, lambda ImageId: ec2.describe_images(ImageIds=[ImageId])):
        with refused("InvalidAMIID.NotFound"):
            call(ImageId=image)


def test_image_attributes(ec2, cloud, snapshot, refused):
    image, _instance = snapshot
    ec2.modify_image_attribute(ImageId=image, Description={"Value": "new"})
    attribute = ec2.describe_image_attribute(ImageId=image, Attribute="description")
    assert attribute["Description"]["Value"] == "new"
    ec2.modify_image_attribute(ImageId=image, Attribute="description", Value="newer")
    assert image_of(ec2, image)["Description"] == "newer"
    assert ec2.describe_image_attribute(ImageId=image, Attribute="launchPermission")["LaunchPermissions"] == []
    assert ec2.describe_image_attribute(ImageId=cloud.image, Attribute="launchPermission")["LaunchPermissions"] == [
        {"Group": "all"}]
    for name in ("kernel", "ramdisk", "productCodes", "blockDeviceMapping"):
        ec2.describe_image_attribute(ImageId=image, Attribute=name)
    with refused("UnsupportedOperation"):
        ec2.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [{"Group": "all"}]})
    with refused("UnsupportedOperation"):
        ec2.reset_image_attribute(ImageId=image, Attribute="launchPermission")
    with refused("UnsupportedOperation"):
        ec2.register_image(Name="x", ImageLocation="bucket/x")


@pytest.mark.parametrize("kernel", ["k" * 255, "..", "b4f0a1d2-6a0e-4c1b-9a52-7d7cbb3a0001"])
def test_kernel_is_shown_only_if_the_caller_sees_its_image(suite, ec2, cloud, snapshot, rest, kernel):
    """The property is a text of the tenant, which must not get into the table of ids."""
    image, _instance = snapshot
    uuid = next(shown["id"] for shown in rest.get("/images/detail", version="2.1")["images"] if "server" in shown)
    for name in ("kernel", "ramdisk"):
        rest.post(f"/images/{uuid}/metadata", {"metadata": {f"{name}_id": kernel}}, version="2.1")
        shown = ec2.describe_image_attribute(ImageId=image, Attribute=name)
        assert not shown.get({"kernel": "KernelId", "ramdisk": "RamdiskId"}[name], {}).get("Value")
    assert suite.conductor.core.db.read(lambda connection: connection.scalar(sa.select(tables.ec2_ids.c.id).where(
        tables.ec2_ids.c.uuid == kernel))) is None


def test_images_of_another_project_are_not_deregistered(stranger, snapshot, refused):
    image, _instance = snapshot
    with refused("InvalidAMIID.NotFound"):
        stranger.deregister_image(ImageId=image)
    with refused("InvalidAMIID.NotFound"):
        stranger.run_instances(ImageId=image, InstanceType="any", MinCount=1, MaxCount=1)


# --- volumes ----------------------------------------------------------------------------------------------
def volume_of(ec2, ident):
    volume, = ec2.describe_volumes(VolumeIds=[ident])["Volumes"]
    return volume


def wait_volume(ec2, ident, state):
    return wait_for(lambda: (volume := volume_of(ec2, ident))["State"] == state and volume, reason=state)


def test_volume_is_created_attached_detached_and_deleted(ec2, cloud, refused):
    made = ec2.create_volume(Size=1, AvailabilityZone="nova", VolumeType="standard", TagSpecifications=[
        {"ResourceType": "volume", "Tags": [{"Key": "Name", "Value": "data"}]}])
    volume = made["VolumeId"]
    again = {"ClientToken": "volume-1", "Size": 2}
    assert ec2.create_volume(**again)["VolumeId"] == ec2.create_volume(**again)["VolumeId"] != volume
    assert wait_volume(ec2, volume, "available")["Tags"] == [{"Key": "Name", "Value": "data"}]
    with refused("IncorrectState"):
        ec2.detach_volume(VolumeId=volume)
    instance, = cloud.run()
    attached = ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/vdd")
    assert (attached["VolumeId"], attached["InstanceId"], attached["Device"]) == (volume, instance, "/dev/vdd")
    attachment, = wait_volume(ec2, volume, "in-use")["Attachments"]
    assert (attachment["InstanceId"], attachment["Device"]) == (instance, "/dev/vdd")
    with refused("VolumeInUse"):
        ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/vde")
    with refused("VolumeInUse"):
        ec2.delete_volume(VolumeId=volume)
    assert [item["VolumeId"] for item in ec2.describe_volumes(Filters=[
        {"Name": "attachment.instance-id", "Values": [instance]}])["Volumes"]] == [volume]
    ec2.detach_volume(VolumeId=volume, InstanceId=instance)
    wait_volume(ec2, volume, "available")
    for item in ec2.describe_volumes()["Volumes"]:
        ec2.delete_volume(VolumeId=item["VolumeId"])
    wait_for(lambda: not ec2.describe_volumes()["Volumes"])
    with refused("InvalidVolume.NotFound"):
        ec2.delete_volume(VolumeId=volume)


def test_errors_of_volumes(ec2, refused, stranger):
    for code, values in (("MissingParameter", {}), ("InvalidParameterValue", {"Size": 0}),
                         ("InvalidParameterValue", {"Size": "big"}),
                         ("UnsupportedOperation", {"Size": 1, "Encrypted": True}),
                         ("InvalidSnapshot.NotFound", {"SnapshotId": "snap-00000001"}),
                         ("InvalidParameterValue", {"Size": 1, "VolumeType": "gold"})):
        with refused(code):
            ec2.create_volume(**values)
    volume = ec2.create_volume(Size=1)["VolumeId"]
    for call in (stranger.delete_volume, lambda VolumeId: stranger.describe_volumes(VolumeIds=[VolumeId])):
        with refused("InvalidVolume.NotFound"):
            call(VolumeId=volume)
    with refused("InvalidVolumeID.Malformed"):
        ec2.delete_volume(VolumeId="data")


def test_snapshots_of_embedded_volumes_are_unsupported(ec2, refused):
    volume = ec2.create_volume(Size=1)["VolumeId"]
    assert ec2.describe_snapshots()["Snapshots"] == []
    with refused("UnsupportedOperation"):
        ec2.create_snapshot(VolumeId=volume)
    for call in (ec2.delete_snapshot, lambda SnapshotId: ec2.describe_snapshots(SnapshotIds=[SnapshotId])):
        with refused("InvalidSnapshot.NotFound"):
            call(SnapshotId="snap-00000001")


# --- security groups --------------------------------------------------------------------------------------
@pytest.fixture
def group(ec2):
    made = ec2.create_security_group(GroupName="web", Description="servers")["GroupId"]
    yield made
    for item in ec2.describe_security_groups()["SecurityGroups"]:
        if item["GroupName"] != "default":
            ec2.delete_security_group(GroupId=item["GroupId"])


def permissions(ec2, ident):
    shown, = ec2.describe_security_groups(GroupIds=[ident])["SecurityGroups"]
    return [{name: value for name, value in rule.items() if value != []} for rule in shown["IpPermissions"]]


def test_security_group_rules_are_added_and_removed(ec2, group, refused):
    web = {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 81, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    ping = {"IpProtocol": "icmp", "FromPort": -1, "ToPort": -1, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[web, ping])
    assert permissions(ec2, group) == [web, ping]
    with refused("InvalidPermission.Duplicate"):
        ec2.authorize_security_group_ingress(GroupName="web", IpPermissions=[web])
    answer = ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[ping, {**web, "FromPort": 79}])
    assert answer["UnknownIpPermissions"] == [{**web, "FromPort": 79}]
    assert permissions(ec2, group) == [web]
    ec2.revoke_security_group_ingress(GroupId=group, IpProtocol="tcp", FromPort=80, ToPort=81, CidrIp="10.0.0.0/8")
    assert permissions(ec2, group) == []


def test_networks_of_rules_are_compared_by_value(ec2, group, refused, rest):
    """A rule that is revoked as it was written must not stay in force."""
    def rule(family, network):
        ranges = {"IpRanges": [{"CidrIp": network}]} if family == 4 else {"Ipv6Ranges": [{"CidrIpv6": network}]}
        return {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 81, **ranges}

    for family, network, same in ((4, "10.1.2.3/8", "10.0.0.0/8"), (6, "2001:DB8:0::1/32", "2001:db8::/32")):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule(family, network)])
        with refused("InvalidPermission.Duplicate"):
            ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule(family, same)])
        assert not ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[rule(family, network)]).get(
            "UnknownIpPermissions")
        assert permissions(ec2, group) == []
    uuid = next(shown["id"] for shown in rest.get("/os-security-groups", version="2.1")["security_groups"]
                if shown["name"] == "web")
    for network in ("10.0.0.0/8", "10.0.0.1/8"):
        rest.post("/os-security-group-rules", {"security_group_rule": {
            "parent_group_id": uuid, "ip_protocol": "tcp", "from_port": 80, "to_port": 81, "cidr": network}},
            version="2.1")
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[rule(4, "10.0.0.0/8")])
    assert permissions(ec2, group) == []
    for twice in ([rule(4, "10.0.0.0/8"), rule(4, "10.0.0.0/8")], [rule(4, "10.0.0.0/8"), rule(4, "10.0.0.1/8")]):
        with refused("InvalidParameterValue"):
            ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=twice)
        assert permissions(ec2, group) == []


def test_rule_names_another_group(ec2, group):
    other = ec2.create_security_group(GroupName="db", Description="d")["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[rule])
    assert permissions(ec2, other) == [{**rule, "UserIdGroupPairs": [
        {"GroupId": group, "GroupName": "web", "UserId": "p"}]}]
    ec2.revoke_security_group_ingress(GroupId=other, IpPermissions=[rule])
    assert permissions(ec2, other) == []
    ec2.authorize_security_group_ingress(GroupId=other, SourceSecurityGroupName="web", IpProtocol="udp", FromPort=5,
                                         ToPort=5)
    assert permissions(ec2, other)[0]["IpProtocol"] == "udp"


def test_too_many_rules_cost_no_requests(ec2, group, refused, monkeypatch):
    """Each rule may need a request to the REST API to find its group."""
    sent, send = [], rest_client.Rest.send
    monkeypatch.setattr(rest_client.Rest, "send", lambda self, *args, **more: (
        sent.append(args), send(self, *args, **more))[1])
    rule = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "UserIdGroupPairs": [{"GroupId": group}] * 90}
    with refused("InvalidParameterValue"):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule] * 10)
    assert sent == []
    ec2.describe_security_groups()
    assert sent != []


def test_errors_of_security_groups(ec2, group, refused, stranger):
    with refused("InvalidGroup.Duplicate"):
        ec2.create_security_group(GroupName="web", Description="again")
    for call in (stranger.delete_security_group, lambda GroupId: stranger.describe_security_groups(GroupIds=[GroupId]),
                 lambda GroupId: stranger.authorize_security_group_ingress(
                     GroupId=GroupId, IpProtocol="tcp", FromPort=1, ToPort=2, CidrIp="0.0.0.0/0")):
        with refused("InvalidGroup.NotFound"):
            call(GroupId=group)
    for name in ("delete_security_group", "describe_security_groups"):
        with refused("InvalidGroup.NotFound"):
            getattr(ec2, name)(**({"GroupName": "none"} if name.startswith("delete") else {"GroupNames": ["none"]}))
    with refused("MissingParameter"):
        ec2.delete_security_group()
    for rule in ({"IpProtocol": "tcp", "FromPort": 9, "ToPort": 1, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},
                 {"IpProtocol": "xyz", "FromPort": 1, "ToPort": 1, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},
                 {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 1, "IpRanges": [{"CidrIp": "everywhere"}]},
                 {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 1}):
        with refused("InvalidParameterValue"):
            ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    for call in (ec2.authorize_security_group_egress, ec2.revoke_security_group_egress):
        with refused("InvalidParameterValue"):
            call(GroupId=group, IpPermissions=[{"IpProtocol": "-1"}])
    assert permissions(ec2, group) == []


# --- addresses --------------------------------------------------------------------------------------------
@pytest.fixture
def pool(suite, networks, admin):
    """A network of all projects, and a pool of two floating addresses."""
    db = suite.conductor.core.db
    network = networks.create(context.admin(), Network(uuid=new_uuid(), label="ec2", cidr="10.35.0.0/24", gateway="",
                                                       bridge=""))
    db.write(lambda connection: floating_ips.create(connection, "nova", "198.51.100.0/30"))
    yield
    remove_servers(admin)
    for address in db.read(lambda connection: floating_ips.index(connection)):
        if address.project_id:
            db.write(lambda connection, uuid=address.uuid: floating_ips.release(connection, uuid))
    db.write(lambda connection: floating_ips.delete(connection, "198.51.100.0/30"))
    networks.delete(context.admin(), network.uuid)


def address_of(ec2, ident):
    address, = ec2.describe_addresses(AllocationIds=[ident])["Addresses"]
    return address


def test_address_is_allocated_associated_and_released(ec2, cloud, pool, refused, stranger):
    made = ec2.allocate_address(Domain="vpc")
    ident, public = made["AllocationId"], made["PublicIp"]
    assert address_of(ec2, ident) == {"PublicIp": public, "AllocationId": ident, "Domain": "standard"}
    first, second = cloud.run(2)
    association = ec2.associate_address(InstanceId=first, AllocationId=ident)["AssociationId"]
    shown = cloud.instance(first)
    assert (address_of(ec2, ident)["InstanceId"], shown["PublicIpAddress"]) == (first, public)
    assert address_of(ec2, ident)["PrivateIpAddress"] == shown["PrivateIpAddress"]
    for values in ({"AllocationId": ident}, {"PublicIp": public}):
        with refused("InvalidAllocationID.NotFound" if "AllocationId" in values else "InvalidAddress.NotFound"):
            stranger.release_address(**values)
    ec2.associate_address(InstanceId=second, PublicIp=public)
    assert address_of(ec2, ident)["InstanceId"] == second
    ec2.disassociate_address(AssociationId=association)
    assert "InstanceId" not in address_of(ec2, ident)
    with refused("InvalidAssociationID.NotFound"):
        ec2.disassociate_address(AssociationId=association)
    ec2.disassociate_address(PublicIp=public)
    ec2.release_address(AllocationId=ident)
    with refused("InvalidAllocationID.NotFound"):
        address_of(ec2, ident)


def test_errors_of_addresses(ec2, pool, refused):
    assert len([ec2.allocate_address() for _ in range(2)]) == 2
    with refused("InsufficientAddressCapacity"):
        ec2.allocate_address()
    with refused("InvalidAddress.NotFound"):
        ec2.describe_addresses(PublicIps=["192.0.2.1"])
    with refused("MissingParameter"):
        ec2.release_address()
    with refused("InvalidParameterValue"):
        ec2.release_address(PublicIp="everywhere")
    with refused("InvalidInstanceID.NotFound"):
        ec2.associate_address(InstanceId="i-00ffffff", PublicIp="192.0.2.1")


# --- key pairs --------------------------------------------------------------------------------------------
def test_key_pairs(ec2, refused, stranger):
    made = ec2.create_key_pair(KeyName="made")
    assert made["KeyMaterial"].startswith("-----BEGIN RSA PRIVATE KEY-----")
    public = next(key for key in keys(ec2) if key["KeyName"] == "made")
    assert public["KeyFingerprint"] == made["KeyFingerprint"]
    with refused("InvalidKeyPair.Duplicate"):
        ec2.create_key_pair(KeyName="made")
    ec2.import_key_pair(KeyName="brought", PublicKeyMaterial=generate("ssh", "u")[0].encode())
    assert {key["KeyName"] for key in keys(ec2)} == {"made", "brought"}
    with refused("InvalidKeyPair.NotFound"):
        ec2.describe_key_pairs(KeyNames=["none"])
    with refused("InvalidParameterValue"):
        ec2.import_key_pair(KeyName="bad", PublicKeyMaterial=b"no key")
    with refused("MissingParameter"):
        ec2.import_key_pair(KeyName="bad", PublicKeyMaterial=b"")
    with refused("InvalidKey.Format"):
        ec2.import_key_pair(KeyName="bad", PublicKeyMaterial=b"\xff")
    assert keys(stranger) == []
    stranger.delete_key_pair(KeyName="made")
    for name in ("made", "brought", "none"):
        ec2.delete_key_pair(KeyName=name)
    assert keys(ec2) == []


def keys(client):
    return client.describe_key_pairs()["KeyPairs"]


# --- tags -------------------------------------------------------------------------------------------------
def test_tags_of_instances_and_images(ec2, cloud, snapshot, refused, stranger):
    image, instance = snapshot
    tags = [{"Key": "role", "Value": "db"}, {"Key": "empty", "Value": ""}]
    ec2.create_tags(Resources=[instance, image], Tags=tags)
    assert sorted(cloud.instance(instance)["Tags"], key=str) == sorted(tags, key=str)
    assert sorted(image_of(ec2, image)["Tags"], key=str) == sorted(tags, key=str)
    listed = ec2.describe_tags(Filters=[{"Name": "key", "Values": ["role"]}])["Tags"]
    assert sorted((tag["ResourceId"], tag["ResourceType"], tag["Value"]) for tag in listed) == sorted([
        (image, "image", "db"), (instance, "instance", "db")])
    ec2.delete_tags(Resources=[instance, image], Tags=[{"Key": "role", "Value": "other"}, {"Key": "empty"}])
    assert cloud.instance(instance)["Tags"] == image_of(ec2, image)["Tags"] == [tags[0]]
    ec2.delete_tags(Resources=[instance, image])
    assert ec2.describe_tags()["Tags"] == []
    for code, resource in (("InvalidInstanceID.NotFound", instance), ("InvalidAMIID.NotFound", image)):
        with refused(code):
            stranger.create_tags(Resources=[resource], Tags=tags)
        with refused(code):
            stranger.delete_tags(Resources=[resource])
    with refused("UnsupportedOperation"):
        ec2.create_tags(Resources=["vol-00000001"], Tags=tags)
    with refused("InvalidParameterValue"):
        ec2.create_tags(Resources=[instance], Tags=[{"Key": "ec2:disable-api-termination", "Value": "True"}])
    with refused("MissingParameter"):
        ec2.create_tags(Resources=[instance])


def test_tags_and_keys_named_like_parent_directories_reach_no_other_path(ec2, cloud, rest, refused):
    """HTTP clients resolve dot segments: DELETE /servers/ID/metadata/.. would delete the server."""
    instance, = cloud.run()
    ec2.create_tags(Resources=[instance], Tags=[{"Key": "..", "Value": "x"}, {"Key": ".", "Value": "x"}])
    for key in ("..", "."):
        with refused("InvalidParameterValue"):
            ec2.delete_tags(Resources=[instance], Tags=[{"Key": key}])
        with refused("InvalidParameterValue"):
            ec2.delete_key_pair(KeyName=key)
    assert [server["status"] for server in rest.get("/servers/detail")["servers"]] == ["ACTIVE"]


# --- the cloud --------------------------------------------------------------------------------------------
def test_regions_zones_and_limits(ec2, service, refused):
    region, = ec2.describe_regions()["Regions"]
    assert (region["RegionName"], region["Endpoint"]) == ("RegionOne", service.url)
    zone, = ec2.describe_availability_zones()["AvailabilityZones"]
    assert (zone["ZoneName"], zone["State"], zone["RegionName"]) == ("nova", "available", "RegionOne")
    attributes = {item["AttributeName"]: item["AttributeValues"] for item in
                  ec2.describe_account_attributes()["AccountAttributes"]}
    assert attributes["supported-platforms"] == [{"AttributeValue": "EC2"}]
    assert [item["AttributeName"] for item in ec2.describe_account_attributes(
        AttributeNames=["default-vpc"])["AccountAttributes"]] == ["default-vpc"]
    for call in (lambda: ec2.describe_regions(RegionNames=["mars"]),
                 lambda: ec2.describe_availability_zones(ZoneNames=["mars"]),
                 lambda: ec2.describe_account_attributes(AttributeNames=["colour"])):
        with refused("InvalidParameterValue"):
            call()


def test_lists_of_vpc_objects_are_empty(ec2):
    assert ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"] == []
    assert ec2.describe_subnets()["Subnets"] == []
    assert ec2.describe_network_interfaces()["NetworkInterfaces"] == []

