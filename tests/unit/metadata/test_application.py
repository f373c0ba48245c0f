"""The metadata service for guests and proxies, with a fake conductor."""

from __future__ import annotations

import hashlib
import hmac
import io
import os

import pytest

from nova import exception
from nova.api.guest_metadata.app import NETWORK, Application
from nova.api.guest_metadata.instances import Instances
from nova.metadata.settings import MetadataSettings
from nova.network.linux.state_files import Guest, StateFiles
from nova.objects.networks.network import VIF, FixedIp
from tests.unit.metadata.test_trees import make

SECRET = "shared"


class Conductor:
    """A fake of both conductor interfaces that counts its queries."""

    def __init__(self):
        self.instance = make()
        self.queries = 0
        self.error = None

    def by_address(self, ctx, network_id, address):
        self.queries += 1
        if self.error:
            raise self.error
        if (network_id, address) != ("n1", "10.0.0.5"):
            raise exception.InstanceNotFound(instance_id=address)
        return self.instance

    def get(self, ctx, uuid):
        self.queries += 1
        if uuid != self.instance.uuid:
            raise exception.InstanceNotFound(instance_id=uuid)
        return self.instance

    def set_password(self, ctx, uuid, items):
        self.instance.system_metadata = {**self.instance.system_metadata, **items}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def conductor():
    return Conductor()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def app(conductor, clock):
    return Application(Instances(conductor, conductor, 15, clock), MetadataSettings(), SECRET)


def ask(app, path, method="GET", body=b"", **environ):
    started = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "wsgi.input": io.BytesIO(body),
               "CONTENT_LENGTH": str(len(body)), "REMOTE_ADDR": "10.0.0.5", **environ}
    answer = b"".join(app(environ, lambda status, headers: started.append((status, dict(headers)))))
    return int(started[0][0].split()[0]), answer.decode(), started[0][1]


def guest(app, path, **more):
    return ask(app, path, **{NETWORK: "n1", **more})


def proxy(app, path, uuid, project="p1", secret=SECRET, **more):
    headers = {"HTTP_X_INSTANCE_ID": uuid, "HTTP_X_TENANT_ID": project, "HTTP_X_FORWARDED_FOR": "10.0.0.5",
               "HTTP_X_INSTANCE_ID_SIGNATURE": hmac.new(secret.encode(), uuid.encode(), hashlib.sha256).hexdigest()}
    return ask(app, path, **{**headers, **more})


def test_guest_reads_its_own_metadata(app):
    status, body, headers = guest(app, "/latest/meta-data/hostname")
    assert (status, body) == (200, "web-one.novalocal")
    assert headers["Content-Length"] == str(len(body))
    assert guest(app, "/openstack/latest/meta_data.json")[2]["Content-Type"] == "application/json"


def test_metadata_root_needs_no_rpc(app, conductor):
    assert guest(app, "/", REMOTE_ADDR="10.0.0.99")[0] == 200
    assert conductor.queries == 0


def test_unknown_paths_and_guests_are_not_found(app):
    assert guest(app, "/nothing")[0] == 404
    assert guest(app, "/latest/meta-data/", REMOTE_ADDR="10.0.0.6")[0] == 404
    assert guest(app, "/latest/meta-data/", **{NETWORK: "n2"})[0] == 404
    assert guest(app, "/latest/meta-data/", method="DELETE")[0] == 405


def test_head_has_content_length_and_no_body(app):
    status, body, headers = guest(app, "/latest/meta-data/hostname", method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, "", "17")


def test_conductor_is_queried_again_after_the_cache_expires(app, conductor, clock):
    for _ in range(3):
        guest(app, "/latest/meta-data/hostname")
    assert conductor.queries == 1
    conductor.instance = make(hostname="renamed")
    clock.now += 16
    assert guest(app, "/latest/meta-data/hostname")[1] == "renamed.novalocal"


def test_requests_of_unknown_addresses_are_rate_limited(app, conductor, clock):
    for _ in range(5):
        guest(app, "/latest", REMOTE_ADDR="10.0.0.99")
    assert conductor.queries == 1
    clock.now += 1.5
    guest(app, "/latest", REMOTE_ADDR="10.0.0.99")
    assert conductor.queries == 2


def plugged(records, uuid, address):
    """Record the instance on this host, in network n1 with the address."""
    records.save_guest("n1", Guest(uuid=uuid, vifs=[VIF(
        id="v", network_id="n1", label="private", mac="fa:16:3e:00:00:01", devname="tap1",
        fixed_ips=[FixedIp(address=address, prefix=24)])]))


def test_cached_metadata_of_an_address_are_not_sent_to_its_next_owner(conductor, tmp_path):
    """The guest of the previous owner has left this host, and the next guest requests before the cache expires."""
    records = StateFiles(str(tmp_path))
    app = Application(Instances(conductor, conductor, 15, Clock(), has=records.has_address), MetadataSettings())
    former = conductor.instance
    plugged(records, former.uuid, "10.0.0.5")
    for _ in range(3):
        assert guest(app, "/latest/meta-data/hostname")[1] == "web-one.novalocal"
    assert conductor.queries == 1
    records.delete_guest("n1", former.uuid)
    conductor.instance = make(uuid="22222222-0000-0000-0000-000000000000", hostname="next")
    plugged(records, conductor.instance.uuid, "10.0.0.5")
    assert guest(app, "/latest/meta-data/hostname")[1] == "next.novalocal"


def test_deleted_guest_cannot_read_metadata_of_its_successor(conductor, tmp_path, clock):
    """A guest deleted during an outage of its host still uses an address assigned to a guest on another host."""
    records = StateFiles(str(tmp_path))
    app = Application(Instances(conductor, conductor, 15, clock, has=records.has_address), MetadataSettings())
    plugged(records, "33333333-0000-0000-0000-000000000000", "10.0.0.5")
    for _ in range(5):
        assert guest(app, "/latest/meta-data/hostname")[0] == 404
    assert conductor.queries <= 2, "repeated requests were sent to the conductor"
    clock.now += 20
    plugged(records, conductor.instance.uuid, "10.0.0.6")
    assert guest(app, "/latest/meta-data/hostname")[0] == 404
    clock.now += 20
    plugged(records, conductor.instance.uuid, "10.0.0.5")
    assert guest(app, "/latest/meta-data/hostname")[0] == 200


def test_network_state_files_are_readable_by_other_users(conductor, tmp_path):
    before = os.umask(0o077)
    try:
        plugged(StateFiles(str(tmp_path)), conductor.instance.uuid, "10.0.0.5")
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert set(modes.values()) == {0o755, 0o644}, modes


def test_unreachable_conductor_is_503_and_defect_is_500_without_details(app, conductor):
    conductor.error = exception.ServiceUnavailable("no answer")
    assert guest(app, "/latest/meta-data/hostname")[0] == 503
    conductor.error = RuntimeError("secret detail")
    status, body, _headers = guest(app, "/latest/meta-data/hostname")
    assert status == 500
    assert "secret" not in body


def test_proxy_requests_metadata_of_an_instance(app, conductor):
    uuid = conductor.instance.uuid
    assert proxy(app, "/latest/meta-data/hostname", uuid)[1] == "web-one.novalocal"
    assert proxy(app, "/latest/", uuid, project="p2")[0] == 404
    assert proxy(app, "/latest/", "unknown")[0] == 404
    assert proxy(app, "/latest/", uuid, secret="wrong")[:2] == (403, "Invalid proxy request signature.")


@pytest.mark.parametrize("header", ["INSTANCE_ID", "TENANT_ID", "FORWARDED_FOR", "INSTANCE_ID_SIGNATURE"])
def test_proxy_request_without_a_required_header_is_refused(app, conductor, header):
    status, body, _headers = proxy(app, "/latest/", conductor.instance.uuid, **{f"HTTP_X_{header}": ""})
    assert status == 400
    assert header.replace("_", "-") in body.upper()


def test_proxy_requests_without_a_configured_secret_are_refused(conductor):
    app = Application(Instances(conductor, conductor, 15), MetadataSettings())
    assert proxy(app, "/latest/", conductor.instance.uuid, secret="")[0] == 403


def test_guest_cannot_act_as_a_proxy(app):
    status, body, _headers = proxy(app, "/latest/meta-data/hostname", "other", **{NETWORK: "n1"})
    assert (status, body) == (200, "web-one.novalocal")


def test_password_is_posted_once_and_read(app):
    path = "/openstack/latest/password"
    assert guest(app, path)[:2] == (200, "")
    assert guest(app, path, method="POST", body=b"c2VjcmV0")[0] == 200
    assert guest(app, path)[:2] == (200, "c2VjcmV0")
    assert guest(app, path, method="POST", body=b"again")[0] == 409


def test_invalid_password_posts_are_refused(app):
    path = "/openstack/latest/password"
    assert guest(app, path, method="POST", body=b"x" * 1021)[0] == 400
    assert guest(app, path, method="POST", body=b"\xff\xfe")[0] == 400
    assert guest(app, path, method="POST", CONTENT_LENGTH="many")[0] == 400
    assert guest(app, "/openstack/2012-08-10/password", method="POST", body=b"x")[0] == 404
    assert guest(app, "/openstack/latest/meta_data.json", method="POST", body=b"x")[0] == 405
    assert guest(app, path, method="POST", body=b"x" * 1020)[0] == 200
