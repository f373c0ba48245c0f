"""Fixtures of the EC2 API in front of the functional suite, with boto3 as the client."""

import xml.etree.ElementTree

import boto3
import botocore.client
import botocore.config
import botocore.exceptions
import pytest

from nova.cmd.ec2 import Ec2Service
from tests.functional.client import Client, wait_for

VERSION = "2016-11-15"
SECRET = "secret"


@pytest.fixture(scope="session")
def service(suite):
    running = Ec2Service(suite.transport, suite.url, "127.0.0.1", 0)
    running.start()
    yield running
    running.stop()


def undeclared(shape, element):
    """Yield the paths of elements that the model of botocore does not have."""
    for child in element:
        name = child.tag.partition("}")[2]
        if shape.type_name == "list":
            yield from undeclared(shape.member, child) if name == "item" else [name]
            continue
        members = {member.serialization.get("name", key): member for key, member in shape.members.items()}
        if name in members:
            if members[name].type_name in ("list", "structure"):
                yield from (f"{name}.{inner}" for inner in undeclared(members[name], child))
            elif len(child):
                yield f"{name}.*"
        else:
            yield name


def check_elements(response_dict, operation_model, **_more):
    """Fail for an element of a response that Amazon's model of the action does not have."""
    if response_dict["status_code"] >= 300:
        return
    root = xml.etree.ElementTree.fromstring(response_dict["body"])
    assert root.tag == f"{{http://ec2.amazonaws.com/doc/{VERSION}/}}{operation_model.name}Response"
    shape = operation_model.output_shape
    unexpected = [] if shape is None else [name for name in undeclared(shape, root) if name not in (
        "requestId", "return")]
    assert not unexpected, f"{operation_model.name}: {unexpected}"


def connect(service, access="u:p", secret=SECRET, check=True, **options):
    """Return a boto3 client for the user and project of the access key."""
    client = boto3.client("ec2", endpoint_url=service.url, region_name="RegionOne", aws_access_key_id=access,
                          aws_secret_access_key=secret, config=botocore.config.Config(
                              retries={"total_max_attempts": 1}, parameter_validation=False, **options))
    if check:
        client.meta.events.register("before-parse.ec2.*", check_elements)
    return client


@pytest.fixture(scope="session")
def ec2(service):
    return connect(service)


@pytest.fixture(scope="session")
def stranger(service):
    """A client of another project."""
    return connect(service, access="s:strangers")


class Refused:
    """Collects the error of a block: ``code``, ``message`` and ``status``."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        assert error is not None, "the request succeeded"
        if not isinstance(error, botocore.exceptions.ClientError):
            return False
        self.code, self.message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        self.status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return True


@pytest.fixture
def refused():
    def refused(code):
        class Expected(Refused):
            def __exit__(self, *details):
                result = super().__exit__(*details)
                assert not result or self.code == code, f"{self.code}: {self.message}"
                return result
        return Expected()

    return refused


class Cloud:
    """The EC2 id of the image and the type of instances, and waits for states."""

    def __init__(self, ec2, admin, flavor, image_id):
        self.ec2, self.admin = ec2, admin
        self.type = admin.get(f"/flavors/{flavor}")["flavor"]["name"]
        self.image = next(image["ImageId"] for image in ec2.describe_images()["Images"] if image["Name"] == "tiny")

    def run(self, count=1, **values):
        """Run instances; return their ids when they run."""
        made = self.ec2.run_instances(ImageId=self.image, InstanceType=self.type, MinCount=count, MaxCount=count,
                                      **values)
        identifiers = [instance["InstanceId"] for instance in made["Instances"]]
        for identifier in identifiers:
            self.wait(identifier, "running")
        return identifiers

    def instance(self, identifier):
        reservation, = self.ec2.describe_instances(InstanceIds=[identifier])["Reservations"]
        instance, = reservation["Instances"]
        return instance

    def wait(self, identifier, state):
        return wait_for(lambda: (instance := self.instance(identifier))["State"]["Name"] == state and instance,
                        reason=lambda: f"{identifier} is {state}: {self.instance(identifier)}")


@pytest.fixture
def cloud(ec2, admin, flavor, image_id):
    return Cloud(ec2, admin, flavor, image_id)


@pytest.fixture
def rest(suite):
    """The REST client of the same user and project."""
    return Client(suite.url, project="p", user="u", roles="member,reader")

