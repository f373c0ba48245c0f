"""The EC2 API with a real Keystone, which checks the signatures.

NOVA_TEST_KEYSTONE names a virtual environment with keystone and gunicorn."""

from __future__ import annotations

import datetime
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.auth
import botocore.config
import botocore.exceptions
import pytest
import requests

from tests.integration.allinone import start_allinone
from tests.integration.processes import Process, eventually, free_port
from tests.integration.services.test_kept_connections import (
    _LOGIN,
    _PASSWORD,
    HOME,
    Service,
    keystone,  # noqa: F401  (a fixture)
)

_OPTIONS = """auth_strategy = keystone
[keystone_authtoken]
{credentials}
www_authenticate_uri = {url}/v3
[ec2]
{credentials}
enabled = True
port = {port}
"""


class Cloud:
    """nova-allinone with the EC2 API; ``project`` and ``credentials`` are those of a member."""

    def __init__(self, url: str, project: str, credentials: dict[str, str]) -> None:
        self.url, self.project, self.credentials = url, project, credentials

    def client(self, secret: str | None = None, **options: Any) -> Any:
        return boto3.client(
            "ec2", endpoint_url=self.url, region_name="RegionOne", aws_access_key_id=self.credentials["access"],
            aws_secret_access_key=secret or self.credentials["secret"],
            config=botocore.config.Config(retries={"total_max_attempts": 1}, **options))


@pytest.fixture(scope="module")
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if not (HOME / "bin/gunicorn").exists():
        pytest.skip("NOVA_TEST_KEYSTONE names no Keystone")
    keystone: Service = request.getfixturevalue("keystone")  # noqa: F811
    answer = requests.post(f"{keystone.url}/v3/auth/tokens", json=_LOGIN, timeout=60)
    headers = {"X-Auth-Token": answer.headers["X-Subject-Token"]}

    def call(method: str, path: str, body: Any = None) -> Any:
        response = requests.request(method, f"{keystone.url}/v3{path}", json=body, headers=headers, timeout=60)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    project = call("POST", "/projects", {"project": {"name": "ec2"}})["project"]["id"]
    user = call("POST", "/users", {"user": {"name": "member", "password": _PASSWORD}})["user"]["id"]
    role = call("GET", "/roles?name=member")["roles"][0]["id"]
    call("PUT", f"/projects/{project}/users/{user}/roles/{role}")
    credentials = call("POST", f"/users/{user}/credentials/OS-EC2", {"tenant_id": project})["credential"]
    own = "\n".join((
        "auth_type = password", f"auth_url = {keystone.url}/v3", "username = admin", f"password = {_PASSWORD}",
        "project_name = admin", "user_domain_name = Default", "project_domain_name = Default"))
    port = free_port()
    base: pathlib.Path = tmp_path_factory.mktemp("ec2")
    with start_allinone(base, _OPTIONS.format(credentials=own, url=keystone.url, port=port)) as (process, _url, _image):
        yield Cloud(f"http://127.0.0.1:{port}", project, credentials)
    assert "Traceback" not in process.log.read_text()


def refused(client: Any) -> tuple[int, str]:
    with pytest.raises(botocore.exceptions.ClientError) as error:
        client.describe_security_groups()
    answer = error.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


@pytest.mark.parametrize("signature", ["v4", "v2"])
def test_signed_requests_are_served_with_the_rights_of_the_member(cloud: Cloud, signature: str) -> None:
    client = cloud.client(signature_version=signature)
    group, = client.describe_security_groups()["SecurityGroups"]
    assert (group["OwnerId"], group["GroupName"]) == (cloud.project, "default")
    made = client.create_security_group(GroupName=f"a b&c+{signature}", Description="* ?=é")["GroupId"]
    client.delete_security_group(GroupId=made)


@pytest.mark.parametrize("signature", ["v4", "v2"])
def test_wrong_secret_and_unknown_access_key_are_refused(cloud: Cloud, signature: str) -> None:
    assert refused(cloud.client("wrong", signature_version=signature)) == (401, "AuthFailure")
    other = Cloud(cloud.url, cloud.project, {**cloud.credentials, "access": "0" * 32})
    assert refused(other.client(signature_version=signature)) == (401, "AuthFailure")


@pytest.mark.parametrize("signature", ["v4", "v2"])
def test_expired_signature_is_refused(cloud: Cloud, signature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature of a minute ago shows that the changed clock is what Keystone refuses."""
    def sign_at(minutes: int) -> None:
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
        if signature == "v4":
            monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_args: past.replace(tzinfo=None))
        else:
            monkeypatch.setattr(time, "gmtime", lambda *_args: past.timetuple())

    client = cloud.client(signature_version=signature)
    sign_at(1)
    assert client.describe_security_groups()["SecurityGroups"]
    sign_at(60)
    assert refused(client) == (401, "AuthFailure")


def test_changed_request_is_refused(cloud: Cloud) -> None:
    client = cloud.client()

    def change(request: Any, **_more: Any) -> None:
        request.body = request.body.replace("DescribeSecurityGroups", "DescribeSecurityGroupX")

    client.meta.events.register("before-send.ec2.*", change)
    assert refused(client) == (401, "AuthFailure")


def test_request_cannot_be_extended_by_moving_its_signature_into_the_url(cloud: Cloud) -> None:
    """Keystone accepts this: its signature of a POST request covers neither parameters in the URL nor their time."""
    client, sent = cloud.client(), []
    client.meta.events.register("before-send.ec2.*", lambda request, **_more: sent.append(request))
    client.describe_security_groups()
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in sent[0].headers.items()}
    authorization = dict(part.split("=", 1) for part in headers.pop("Authorization").partition(" ")[2].split(", "))
    moved = {f"X-Amz-{name}": value for name, value in authorization.items()}
    answer = requests.post(sent[0].url, data=sent[0].body, headers=headers, timeout=30, params={
        **moved, "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "GroupName.1": "added"})
    assert (answer.status_code, "AuthFailure" in answer.text) == (401, True)


def test_processes_serve_requests_and_end(tmp_path: pathlib.Path) -> None:
    """nova-api-ec2 answers malformed requests without any other service, and ends at SIGTERM."""
    port = free_port()
    config = tmp_path / "nova.conf"
    config.write_text(f"[DEFAULT]\ntransport_url = kombu+memory://\nstate_path = {tmp_path}\n[api]\n"
                      f"auth_strategy = noauth\n[ec2]\nport = {port}\nworkers = 2\n")
    process = Process("nova-api-ec2", [str(pathlib.Path(sys.executable).parent / "nova-api-ec2"), "--config-file",
                                       str(config)], tmp_path / "ec2.log", env={"PATH": os.defpath})
    process.start()
    try:
        eventually(lambda: _status(port) == 400, 60, "nova-api-ec2 answers")
        process.stop()
    finally:
        process.kill()
    assert "Traceback" not in process.log.read_text()


def _status(port: int) -> int:
    try:
        return requests.get(f"http://127.0.0.1:{port}/", timeout=30).status_code
    except requests.ConnectionError:
        return 0
