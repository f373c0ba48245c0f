"""Volumes and snapshots of Cinder, and security groups of Neutron, through boto3."""

from tests.functional.client import wait_for
from tests.functional.networks.conftest import neutron  # noqa: F401
from tests.functional.volumes.test_cinder import cinder, outside  # noqa: F401


def state(ec2, volume):
    return ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["State"]


def test_snapshot_of_cinder_is_created_and_a_volume_of_it(ec2, cinder, stranger, refused):  # noqa: F811
    volume = ec2.create_volume(Size=2)["VolumeId"]
    wait_for(lambda: state(ec2, volume) == "available")
    made = ec2.create_snapshot(VolumeId=volume, Description="of today", TagSpecifications=[
        {"ResourceType": "snapshot", "Tags": [{"Key": "Name", "Value": "daily"}]}])
    snapshot = made["SnapshotId"]
    assert (made["VolumeId"], made["VolumeSize"], made["Description"]) == (volume, 2, "of today")
    for stored in cinder.snapshots.values():
        stored.status = "available"
    shown, = ec2.describe_snapshots(Filters=[{"Name": "volume-id", "Values": [volume]}])["Snapshots"]
    assert (shown["SnapshotId"], shown["State"], shown["Tags"]) == (
        snapshot, "completed", [{"Key": "Name", "Value": "daily"}])
    copy = ec2.create_volume(SnapshotId=snapshot)
    assert (copy["SnapshotId"], copy["Size"]) == (snapshot, 2)
    wait_for(lambda: state(ec2, copy["VolumeId"]) == "available")
    with refused("InvalidSnapshot.NotFound"):
        stranger.delete_snapshot(SnapshotId=snapshot)
    with refused("InvalidSnapshot.NotFound"):
        stranger.create_volume(SnapshotId=snapshot)
    ec2.delete_snapshot(SnapshotId=snapshot)
    cinder.snapshots.clear()


def test_volume_of_cinder_is_attached(ec2, cloud, cinder, refused):  # noqa: F811
    volume = ec2.create_volume(Size=1)["VolumeId"]
    wait_for(lambda: state(ec2, volume) == "available")
    instance, = cloud.run()
    ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/vdb")
    wait_for(lambda: state(ec2, volume) == "in-use")
    device, = wait_for(lambda: cloud.instance(instance)["BlockDeviceMappings"])
    assert device["Ebs"]["VolumeId"] == volume
    ec2.detach_volume(VolumeId=volume)
    wait_for(lambda: state(ec2, volume) == "available")
    ec2.delete_volume(VolumeId=volume)
    wait_for(lambda: not ec2.describe_volumes()["Volumes"])


def test_security_group_of_neutron_has_rules(ec2, neutron, refused):  # noqa: F811
    group = ec2.create_security_group(GroupName="web", Description="d")["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    shown, = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert [{name: value for name, value in item.items() if value} for item in shown["IpPermissions"]] == [rule]
    with refused("InvalidPermission.Duplicate"):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[rule])
    ec2.delete_security_group(GroupId=group)
    with refused("InvalidGroup.NotFound"):
        ec2.delete_security_group(GroupId=group)
