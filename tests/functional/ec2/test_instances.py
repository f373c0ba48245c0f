"""Instances through boto3."""

import base64

import pytest

from nova.conf import CONF
from nova.db.servers import servers
from nova.metadata import ec2 as metadata
from nova.metadata import settings
from tests.functional.client import Client, wait_for
from tests.functional.ec2.conftest import Cloud, connect


def ids_of(answer):
    """Return the ids of instances, without those that earlier tests terminated."""
    return [instance["InstanceId"] for reservation in answer["Reservations"] for instance in reservation["Instances"]
            if instance["State"]["Name"] not in ("shutting-down", "terminated")]


def test_instance_runs_and_is_terminated(ec2, cloud, rest):
    made = ec2.run_instances(ImageId=cloud.image, InstanceType=cloud.type, MinCount=1, MaxCount=1)
    identifier = made["Instances"][0]["InstanceId"]
    shown = cloud.wait(identifier, "running")
    server, = rest.get("/servers/detail")["servers"]
    assert server["tenant_id"] == made["OwnerId"] == "p"
    assert (shown["ImageId"], shown["InstanceType"], shown["AmiLaunchIndex"]) == (cloud.image, cloud.type, 0)
    answer, = ec2.terminate_instances(InstanceIds=[identifier])["TerminatingInstances"]
    assert (answer["InstanceId"], answer["PreviousState"]["Name"]) == (identifier, "running")
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[identifier], WaiterConfig={"Delay": 0.1})
    assert rest.get("/servers")["servers"] == []


def test_instance_and_image_ids_equal_those_of_the_metadata_service(suite, cloud, admin):
    identifier, = cloud.run()
    shown = cloud.instance(identifier)
    server, = admin.get("/servers/detail")["servers"]
    instance = suite.conductor.core.db.read(lambda connection: servers.get(connection, server["id"]))
    document = metadata.meta_data(instance, "latest", settings.from_conf(CONF))
    assert (document["instance-id"], document["ami-id"], document["reservation-id"]) == (
        identifier, shown["ImageId"], cloud.ec2.describe_instances()["Reservations"][0]["ReservationId"])


def test_instances_of_a_request_share_a_reservation(ec2, cloud):
    made = ec2.run_instances(ImageId=cloud.image, InstanceType=cloud.type, MinCount=2, MaxCount=3)
    assert [instance["AmiLaunchIndex"] for instance in made["Instances"]] == [0, 1, 2]
    reservation, = ec2.describe_instances(Filters=[{"Name": "reservation-id", "Values": [made["ReservationId"]]}])[
        "Reservations"]
    assert len(reservation["Instances"]) == 3


def test_client_token_makes_run_instances_repeatable(ec2, cloud, refused):
    def run(**values):
        return ec2.run_instances(ImageId=cloud.image, InstanceType=cloud.type, MinCount=1, MaxCount=1,
                                 ClientToken="token-1", **values)["Instances"][0]["InstanceId"]

    assert run() == run()
    with refused("IdempotentParameterMismatch"):
        run(UserData="other")
    assert len(ids_of(ec2.describe_instances())) == 1


@pytest.mark.parametrize("token", ["\u00e9", "a b", "t" * 65, "\u4e2d"])
def test_client_token_that_no_header_can_contain_is_refused(ec2, cloud, refused, token):
    with refused("InvalidParameterValue"):
        ec2.run_instances(ImageId=cloud.image, InstanceType=cloud.type, MinCount=1, MaxCount=1, ClientToken=token)


def test_paused_and_suspended_instances_are_stopped_and_start(ec2, cloud, rest):
    identifier, = cloud.run()
    server = rest.get("/servers")["servers"][0]["id"]
    for action, status in (("pause", "PAUSED"), ("suspend", "SUSPENDED")):
        rest.action(server, action)
        rest.wait(server, status)
        answer, = ec2.stop_instances(InstanceIds=[identifier])["StoppingInstances"]
        assert answer["CurrentState"]["Name"] == "stopped"
        ec2.start_instances(InstanceIds=[identifier])
        rest.wait(server, "ACTIVE")


def test_instances_have_key_groups_user_data_tags_and_zone(ec2, cloud, rest, admin):
    ec2.create_key_pair(KeyName="key")
    group = ec2.create_security_group(GroupName="web", Description="d")["GroupId"]
    identifier, = cloud.run(
        KeyName="key", SecurityGroupIds=[group], SecurityGroups=["default"], UserData="#!/bin/sh",
        Placement={"AvailabilityZone": "nova"}, BlockDeviceMappings=[
            {"DeviceName": "/dev/vdc", "Ebs": {"VolumeSize": 1, "DeleteOnTermination": True}},
            {"DeviceName": "sdz", "NoDevice": ""}],
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "one"}]}])
    shown = cloud.instance(identifier)
    assert (shown["KeyName"], shown["Placement"]["AvailabilityZone"], shown["Tags"]) == (
        "key", "nova", [{"Key": "Name", "Value": "one"}])
    assert {"GroupId": group, "GroupName": "web"} in shown["SecurityGroups"]
    server, = admin.get("/servers/detail")["servers"]
    assert (server["name"], base64.b64decode(server["OS-EXT-SRV-ATTR:user_data"])) == ("one", b"#!/bin/sh")
    device, = shown["BlockDeviceMappings"]
    assert (device["DeviceName"], device["Ebs"]["Status"], device["Ebs"]["DeleteOnTermination"]) == (
        "/dev/vdc", "attached", True)
    mapping = ec2.describe_instance_attribute(InstanceId=identifier, Attribute="blockDeviceMapping")
    assert mapping["BlockDeviceMappings"] == shown["BlockDeviceMappings"]
    ec2.terminate_instances(InstanceIds=[identifier])
    wait_for(lambda: not ec2.describe_volumes()["Volumes"])
    ec2.delete_security_group(GroupId=group)
    ec2.delete_key_pair(KeyName="key")


def test_instance_stops_starts_and_reboots(ec2, cloud):
    identifier, = cloud.run()
    answer, = ec2.stop_instances(InstanceIds=[identifier])["StoppingInstances"]
    assert answer["PreviousState"] == {"Code": 16, "Name": "running"}
    cloud.wait(identifier, "stopped")
    answer, = ec2.start_instances(InstanceIds=[identifier])["StartingInstances"]
    assert answer["PreviousState"] == {"Code": 80, "Name": "stopped"}
    cloud.wait(identifier, "running")
    ec2.reboot_instances(InstanceIds=[identifier])
    cloud.wait(identifier, "running")


def test_no_instance_is_changed_if_an_id_does_not_exist(ec2, cloud, refused):
    identifier, = cloud.run()
    with refused("InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=[identifier, "i-00ffffff"])
    assert cloud.instance(identifier)["State"]["Name"] == "running"


def test_instances_are_filtered(ec2, cloud):
    first, = cloud.run(TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "role", "Value": "db"}]}])
    second, = cloud.run()

    def matching(name, *values):
        return ids_of(ec2.describe_instances(Filters=[{"Name": name, "Values": list(values)}]))

    assert matching("tag:role", "d?") == matching("tag-key", "role") == matching("tag-value", "*b") == [first]
    assert set(matching("instance-state-name", "running", "stopped")) == {first, second}
    assert matching("instance-state-name", "stopped") == matching("tag:role", "d") == matching("image-id", "") == []
    assert matching("instance-id", second) == [second]
    assert set(matching("image-id", cloud.image)) == {first, second}


def test_pages_contain_every_instance_once(service, admin, flavor, image_id, refused):
    ec2 = connect(service, access="u:pages")  # in the project "p", pages contain the instances of all earlier tests
    cloud = Cloud(ec2, admin, flavor, image_id)
    made = cloud.run(5)
    ec2.terminate_instances(InstanceIds=made[1:2])
    cloud.wait(made[1], "terminated")
    pages, token = [], {}
    while True:
        answer = ec2.describe_instances(MaxResults=2, **token)
        pages.append([instance["InstanceId"] for reservation in answer["Reservations"]
                      for instance in reservation["Instances"]])
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}
    assert len(pages) > 2
    assert sorted(instance for page in pages for instance in page) == sorted(made)
    for token in ("garbage!", base64.b64encode(b"i-00ffffff").decode(), "\u00e9"):
        with refused("InvalidParameterValue"):
            ec2.describe_instances(NextToken=token)


def test_instance_attributes(ec2, cloud, refused):
    identifier, = cloud.run()

    def attribute(name):
        return ec2.describe_instance_attribute(InstanceId=identifier, Attribute=name)

    assert attribute("instanceType")["InstanceType"]["Value"] == cloud.type
    assert attribute("disableApiTermination")["DisableApiTermination"]["Value"] is False
    assert attribute("rootDeviceName")["RootDeviceName"]["Value"] == "/dev/vda"
    assert attribute("groupSet")["Groups"] == cloud.instance(identifier)["SecurityGroups"]
    for name in ("kernel", "ramdisk", "instanceInitiatedShutdownBehavior", "ebsOptimized", "productCodes"):
        attribute(name)
    with refused("UnsupportedOperation"):
        attribute("userData")  # the policies show it to administrators
    with refused("InvalidParameterValue"):
        attribute("colour")
    with refused("InvalidParameterCombination"):
        attribute("sourceDestCheck")
    with refused("InvalidParameterCombination"):
        ec2.modify_instance_attribute(InstanceId=identifier)
    with refused("UnsupportedOperation"):
        ec2.modify_instance_attribute(InstanceId=identifier, InstanceType={"Value": "m1.large"})
    with refused("UnsupportedOperation"):
        ec2.reset_instance_attribute(InstanceId=identifier, Attribute="kernel")


def test_repeated_termination_succeeds_and_terminates_the_others(ec2, cloud, stranger, refused):
    """A client repeats a request whose response was lost, and some of its instances may be gone by then."""
    first, second = cloud.run(2)
    ec2.terminate_instances(InstanceIds=[first])
    cloud.wait(first, "terminated")
    changes = {change["InstanceId"]: change for change in ec2.terminate_instances(
        InstanceIds=[first, second])["TerminatingInstances"]}
    assert changes[first]["PreviousState"]["Name"] == changes[first]["CurrentState"]["Name"] == "terminated"
    assert changes[second]["PreviousState"]["Name"] == "running"
    cloud.wait(second, "terminated")
    for call in (ec2.stop_instances, ec2.start_instances, ec2.reboot_instances, stranger.terminate_instances):
        with refused("InvalidInstanceID.NotFound"):
            call(InstanceIds=[first])


def test_protected_instance_is_not_terminated(ec2, cloud, refused):
    identifier, = cloud.run(DisableApiTermination=True)

    def protected():
        answer = ec2.describe_instance_attribute(InstanceId=identifier, Attribute="disableApiTermination")
        return answer["DisableApiTermination"]["Value"]

    assert (protected(), cloud.instance(identifier)["Tags"]) == (True, [])
    with refused("OperationNotPermitted"):
        ec2.terminate_instances(InstanceIds=[identifier])
    ec2.delete_tags(Resources=[identifier])
    assert protected()
    for value in (False, True):
        ec2.modify_instance_attribute(InstanceId=identifier, DisableApiTermination={"Value": value})
        assert protected() is value
    with refused("MissingParameter"):
        ec2.modify_instance_attribute(InstanceId=identifier, Attribute="disableApiTermination")
    ec2.modify_instance_attribute(InstanceId=identifier, Attribute="disableApiTermination", Value="false")
    ec2.terminate_instances(InstanceIds=[identifier])


def test_security_groups_of_an_instance_are_changed(ec2, cloud):
    group = ec2.create_security_group(GroupName="other", Description="d")["GroupId"]
    identifier, = cloud.run()
    ec2.modify_instance_attribute(InstanceId=identifier, Groups=[group])
    assert cloud.instance(identifier)["SecurityGroups"] == [{"GroupId": group, "GroupName": "other"}]
    ec2.terminate_instances(InstanceIds=[identifier])
    cloud.wait(identifier, "terminated")
    ec2.delete_security_group(GroupName="other")


def test_console_output_and_password(ec2, cloud):
    identifier, = cloud.run()
    answer = ec2.get_console_output(InstanceId=identifier)
    assert answer["InstanceId"] == identifier
    assert answer["Output"]
    assert ec2.get_password_data(InstanceId=identifier)["PasswordData"] == ""


def test_errors_of_run_instances(ec2, cloud, refused, admin, suite):
    def run(code, **values):
        wanted = {"ImageId": cloud.image, "InstanceType": cloud.type, "MinCount": 1, "MaxCount": 1, **values}
        with refused(code) as error:
            ec2.run_instances(**{name: value for name, value in wanted.items() if value is not None})
        return error.message

    run("InvalidAMIID.NotFound", ImageId="ami-00000001")
    run("InvalidAMIID.Malformed", ImageId="tiny")
    run("InvalidParameterValue", InstanceType="m9.huge")
    run("MissingParameter", MinCount=None)
    run("MissingParameter", ImageId=None)
    run("InvalidKeyPair.NotFound", KeyName="none")
    run("InvalidGroup.NotFound", SecurityGroups=["none"])
    run("InvalidGroup.NotFound", SecurityGroupIds=["sg-00000001"])
    run("InvalidParameterValue", MinCount=2)
    run("InvalidParameterValue", Placement={"AvailabilityZone": "nowhere"})
    run("InvalidParameterValue", Placement={"AvailabilityZone": "nova:host"})
    run("UnknownParameter", SubnetId="subnet-1")
    run("UnsupportedOperation", InstanceInitiatedShutdownBehavior="terminate")
    run("InvalidSnapshot.NotFound", BlockDeviceMappings=[{"DeviceName": "b", "Ebs": {"SnapshotId": "snap-00000001"}}])
    run("DryRunOperation", DryRun=True)
    admin.put("/os-quota-sets/p", {"quota_set": {"instances": 0}})
    try:
        assert "Quota exceeded" in run("InstanceLimitExceeded")
    finally:
        admin.delete("/os-quota-sets/p")
    assert Client(suite.url).get("/servers")["servers"] == []


@pytest.mark.parametrize("call", ["terminate_instances", "stop_instances", "start_instances", "reboot_instances",
                                  "describe_instances"])
def test_instances_of_another_project_do_not_exist(cloud, stranger, refused, call):
    identifier, = cloud.run()
    with refused("InvalidInstanceID.NotFound"):
        getattr(stranger, call)(InstanceIds=[identifier])
    assert cloud.instance(identifier)["State"]["Name"] == "running"
