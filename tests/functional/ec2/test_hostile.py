"""Requests that are malformed, too large, unsigned, or of unsupported actions."""

import socket
import threading
import xml.etree.ElementTree
from urllib.parse import urlencode

import botocore.exceptions
import pytest
import requests
import sqlalchemy as sa

from nova.cmd.ec2 import Ec2Service
from nova.conf import CONF
from nova.db import tables
from nova.ec2 import app, rest
from tests.functional.ec2.conftest import connect

SIGNED = {"AWSAccessKeyId": "u:p", "Signature": "x", "SignatureVersion": "2", "SignatureMethod": "HmacSHA256",
          "Timestamp": "2026-01-01T00:00:00Z", "Version": "2016-11-15"}
PRESIGNED = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": "u:p/20260101/r/ec2/aws4_request",
             "X-Amz-Date": "20260101T000000Z", "X-Amz-SignedHeaders": "host", "X-Amz-Signature": "x"}
RUN = {"ImageId": "ami-00000001", "MinCount": "1", "MaxCount": "1", "InstanceType": "t"}


def send(service, body, method="POST", **options):
    """Send a request; return its status, the code of its error and its request id."""
    text = body if isinstance(body, (str, bytes)) else urlencode(body)
    headers = {"Content-Type": "application/x-www-form-urlencoded", **options.pop("headers", {})}
    response = requests.request(method, f"{service.url}/", data=text, headers=headers, timeout=30, **options)
    return response.status_code, *read(response)


def read(response):
    root = xml.etree.ElementTree.fromstring(response.content)
    request_id = root.findtext("RequestID") or root.findtext("{*}requestId")
    assert request_id == response.headers["x-openstack-request-id"]
    return root.findtext("Errors/Error/Code"), request_id


def refused(service, code, body, status=400, **options):
    answer = send(service, body, **options)
    assert answer[:2] == (status, code)


def action(name="DescribeInstances", **parameters):
    return {**SIGNED, "Action": name, **{key.replace("__", "."): value for key, value in parameters.items()}}


def test_get_and_post_are_served_with_the_request_id_of_nova(service):
    assert send(service, action())[:2] == (200, None)
    answer = requests.get(f"{service.url}/services/Cloud/", params=action("DescribeRegions"), timeout=30)
    code, request_id = read(answer)
    assert (answer.status_code, code, request_id[:4]) == (200, None, "req-")


def test_parameters_that_the_signature_does_not_cover_are_refused(service):
    """Keystone checks the body of a POST request that is signed by version 4, but not its query string."""
    signed = {"X-Amz-Date": "20260101T000000Z", "Authorization":
              "AWS4-HMAC-SHA256 Credential=u:p/20260101/r/ec2/aws4_request, SignedHeaders=host, Signature=x"}
    body = {"Action": "DescribeInstances", "Version": "2016-11-15"}
    assert send(service, body, headers=signed)[:2] == (200, None)
    refused(service, "AuthFailure", body, 401, headers=signed, params={"Filter.1.Name": "instance-id"})
    refused(service, "AuthFailure", {"Version": "2016-11-15"}, 401, headers=signed,
            params={"Action": "TerminateInstances", "InstanceId.1": "i-00000001"})
    refused(service, "AuthFailure", body, 401, params={**PRESIGNED, "Filter.1.Name": "instance-id"})
    assert requests.get(f"{service.url}/", params={**body, **PRESIGNED}, timeout=30).status_code == 200


@pytest.mark.parametrize("changes", [
    {"SignatureVersion": "0"}, {"SignatureVersion": "1"}, {"SignatureVersion": None}, {"Timestamp": None},
    {"Timestamp": ""}])
def test_signatures_that_do_not_cover_the_whole_request_are_refused(service, changes):
    """Version 0 covers only the action and the time; Keystone accepts a request without Timestamp at any time."""
    body = {name: value for name, value in {**action(), **changes}.items() if value is not None}
    refused(service, "AuthFailure", body, 401)


@pytest.mark.parametrize("changes", [
    {"X-Amz-Credential": "u:p"}, {"X-Amz-Date": "20270101T000000Z"}, {"X-Amz-Date": None},
    {"X-Amz-SignedHeaders": None},
    {"X-Amz-Algorithm": "AWS4"}, {"SignatureVersion": "0"}])
def test_incomplete_signatures_of_version_4_are_refused(service, changes):
    """Keystone answers them with status 500."""
    parameters = {"Action": "DescribeInstances", **PRESIGNED, **changes}
    answer = requests.get(f"{service.url}/", timeout=30, params={
        name: value for name, value in parameters.items() if value is not None})
    assert (answer.status_code, read(answer)[0]) == (401, "AuthFailure")


def test_request_id_is_that_of_the_requests_to_nova(service, monkeypatch):
    sent = []
    send_rest = rest.Rest.send
    monkeypatch.setattr(rest.Rest, "send", lambda self, *args, **more: (
        sent.append(self._headers["X-OpenStack-Request-ID"]), send_rest(self, *args, **more))[1])
    _status, _code, request_id = send(service, action())
    assert sent
    assert set(sent) == {request_id}


@pytest.mark.parametrize(("code", "body"), [
    ("MissingAction", SIGNED),
    ("InvalidAction", action("Describe<x>")),
    ("NoSuchVersion", {**action(), "Version": "2017-01-01"}),
    ("NoSuchVersion", {**action(), "Version": "new"}),
    ("UnsupportedOperation", action("CreateVpc")),
    ("UnknownParameter", action(Colour="red")),
    ("InvalidQueryParameter", "Action=DescribeInstances&Action=TerminateInstances"),
    ("InvalidQueryParameter", urlencode(action()) + "&InstanceId.1=i-00000001&InstanceId.1=i-00000002"),
    ("InvalidQueryParameter", action(InstanceId="x", InstanceId__1="i-00000001")),
    ("InvalidQueryParameter", action(InstanceId__1__2="x", InstanceId__1="i-00000001")),
    ("InvalidParameterValue", action(InstanceId="i-00000001")),
    ("InvalidParameterValue", action(InstanceId__0="i-00000001")),
    ("InvalidParameterValue", action(InstanceId__x="i-00000001")),
    ("InvalidParameterValue", action(InstanceId__99999="i-00000001")),
    ("InvalidParameterValue", {**action(), "InstanceId.-1": "i-00000001"}),
    ("InvalidParameterValue", {**action(), "InstanceId.\u0661": "i-00000001"}),
    ("InvalidInstanceID.Malformed", action(InstanceId__1="i-")),
    ("InvalidInstanceID.Malformed", action(InstanceId__1="ami-00000001")),
    ("InvalidInstanceID.Malformed", action(InstanceId__1="i-0000000g")),
    ("InvalidQueryParameter", action(**{"a__" * 20 + "a": "x"})),
    ("InvalidQueryParameter", action(**{"a" * 300: "x"})),
    ("InvalidQueryParameter", {**action(), **{f"InstanceId.{number}": "i-00000001" for number in range(1, 1200)}}),
    ("MalformedQueryString", b"Action=Describe\xff"),
    ("MalformedQueryString", "Action=%ff"),
    ("MalformedQueryString", "Action"),
    ("InvalidParameterValue", action(Filter__1__Name="instance-id", Filter__1__Value__1="a\x00b")),
    ("InvalidParameterValue", action(Filter__1__Name="tag-value", **{
        f"Filter__1__Value__{number}": f"*{number}*" for number in range(1, 150)})),
    ("InvalidParameterValue", action(Filter__1__Name="colour", Filter__1__Value__1="red")),
    ("MissingParameter", action(Filter__1__Value__1="red")),
    ("InvalidParameterValue", action(MaxResults="0")),
    ("InvalidParameterValue", action(MaxResults="9" * 30)),
    ("InvalidParameterValue", action(DryRun="perhaps")),
    ("MissingParameter", action("TerminateInstances")),
    ("InvalidParameterValue", action("TerminateInstances", **{
        f"InstanceId__{number}": f"i-{number:08x}" for number in range(1, 200)})),
    ("InvalidParameterValue", {**action("RunInstances", **RUN), "UserData": "not base64!"}),
    ("InvalidParameterValue", {**action("RunInstances", **RUN), "UserData": "QUFB" * 6000}),
    ("InvalidParameterValue", {**action("RunInstances", **RUN), "MaxCount": "100000"}),
])
def test_bad_requests_are_refused_before_any_request_to_nova(service, code, body, monkeypatch):
    called = []
    monkeypatch.setattr(rest.Rest, "send", lambda *args, **more: called.append(args))
    if not isinstance(body, dict):
        signed = urlencode({name: value for name, value in SIGNED.items() if f"{name}=" not in str(body)}).encode()
        body = b"&".join(part for part in (body if isinstance(body, bytes) else body.encode(), signed) if part)
    refused(service, code, body)
    assert called == []


def test_ids_that_do_not_fit_into_the_table_do_not_exist(service):
    refused(service, "InvalidInstanceID.NotFound", action(InstanceId__1="i-ffffffffffff"))
    refused(service, "InvalidVolume.NotFound", action("DeleteVolume", VolumeId="vol-ffffffffffff"))


def test_requests_without_a_signature_are_refused(service):
    for changes in ({"Signature": ""}, {"AWSAccessKeyId": ""}, {"AWSAccessKeyId": "a b"}, {"AWSAccessKeyId": "a" * 300},
                    {"Signature": "s" * 300}):
        refused(service, "AuthFailure", {**action(), **changes}, status=401)
    refused(service, "AuthFailure", {"Action": "DescribeInstances"}, status=401)
    refused(service, "AuthFailure", {"Action": "DescribeInstances"}, status=401, headers={
        "Authorization": "AWS4-HMAC-SHA256 Credential=, SignedHeaders=host, Signature=x"})
    refused(service, "AuthFailure", {"Action": "DescribeInstances"}, status=401, headers={
        "Authorization": "Bearer token"})


def test_requests_in_other_formats_are_refused(service):
    refused(service, "InvalidRequest", "<x/>", status=415, headers={"Content-Type": "text/xml"})
    refused(service, "InvalidRequest", "", method="DELETE", status=405)
    assert send(service, "Action=" + "x" * (app.MOST_BODY + 1))[0] == 413


def test_hostile_filter_values_take_linear_time(service, ec2, cloud):
    cloud.run(TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "k", "Value": "a" * 200}]}])
    for values in (["*a" * 100 + "b"] * 20, ["a*\\**", "(?i)A*", "["], [f"a{number}" for number in range(200)]):
        assert ec2.describe_instances(Filters=[{"Name": "tag:k", "Values": values}])["Reservations"] == []
    for value in ("a" * 200, "\\a" * 50 + "a" * 150, "a*", "?" * 100 + "*"):
        assert ec2.describe_instances(Filters=[{"Name": "tag:k", "Values": ["b", value]}])["Reservations"] != []


def test_names_with_markup_are_escaped(ec2, cloud, service):
    name = "<Code>&\"'\u00e9\u4e2d"
    tag = {"Key": "Name", "Value": name}
    identifier, = cloud.run(TagSpecifications=[{"ResourceType": "instance", "Tags": [tag]}])
    assert cloud.instance(identifier)["Tags"] == [tag]
    assert [tag["Value"] for tag in ec2.describe_tags(Filters=[{"Name": "value", "Values": [name]}])["Tags"]] == [name]


def test_old_versions_are_served(service):
    for version in ("2006-06-26", "2009-04-04", "2014-10-01"):
        assert send(service, {**action(), "Version": version})[:2] == (200, None)


def started(request, suite, url):
    other = Ec2Service(suite.transport, url, "127.0.0.1", 0)
    other.start()
    request.addfinalizer(other.stop)
    return other


def test_unreachable_nova_is_reported_as_unavailable(request, suite):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    refused(started(request, suite, f"http://127.0.0.1:{port}"), "Unavailable", action(), status=503)


def test_silent_nova_is_reported_as_unavailable(request, suite, monkeypatch):
    monkeypatch.setattr(rest, "_CONNECT_TIMEOUT", 1.0)
    CONF.set_override("nova_timeout", 1, group="ec2")
    request.addfinalizer(lambda: CONF.clear_override("nova_timeout", group="ec2"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = started(request, suite, f"http://127.0.0.1:{silent.getsockname()[1]}")
        refused(other, "Unavailable", action(), status=503)


def test_longer_lists_than_max_listed_are_refused(ec2, service, request):
    CONF.set_override("max_listed", 1, group="ec2")
    request.addfinalizer(lambda: CONF.clear_override("max_listed", group="ec2"))
    groups = [ec2.create_security_group(GroupName="one-more", Description="d")["GroupId"]]
    refused(service, "ResourceCountExceeded", action("DescribeSecurityGroups"))
    CONF.clear_override("max_listed", group="ec2")
    ec2.delete_security_group(GroupId=groups[0])


@pytest.mark.parametrize("signature", ["v2", "v4"])
def test_access_key_of_both_signatures_names_the_project(service, signature):
    client = connect(service, access="s:signers", signature_version=signature)
    assert [group["OwnerId"] for group in client.describe_security_groups()["SecurityGroups"]] == ["signers"]


def test_concurrent_first_requests_assign_one_id(suite, service, ec2, admin):
    made = [ec2.create_security_group(GroupName=f"g{number}", Description="d")["GroupId"] for number in range(3)]
    listed = []

    def work():
        client = connect(service)
        listed.append(sorted(group["GroupId"] for group in client.describe_security_groups(
            GroupNames=["g0", "g1", "g2"])["SecurityGroups"]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed == [sorted(made)] * 4
    for group in made:
        ec2.delete_security_group(GroupId=group)


def test_id_whose_row_was_purged_is_resolved_among_visible_objects(suite, ec2, stranger):
    group = ec2.create_security_group(GroupName="old", Description="d")["GroupId"]
    suite.conductor.core.db.write(lambda connection: connection.execute(sa.delete(tables.ec2_ids)))
    with pytest.raises(botocore.exceptions.ClientError, match=r"InvalidGroup\.NotFound"):
        stranger.delete_security_group(GroupId=group)
    ec2.delete_security_group(GroupId=group)
    assert [shown["GroupName"] for shown in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]


def test_nova_gets_the_address_of_the_client(service, monkeypatch):
    sent = []
    send_rest = rest.Rest.send
    monkeypatch.setattr(rest.Rest, "send", lambda self, *args, **more: (
        sent.append(self._headers["X-Forwarded-For"]), send_rest(self, *args, **more))[1])
    send(service, action("DescribeSecurityGroups"))
    assert set(sent) == {"127.0.0.1"}
