"""Instances through boto3."""


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
