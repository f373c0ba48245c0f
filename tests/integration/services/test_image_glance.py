"""The Glance back end against a small server that implements the images API v2 and injects failures."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import urllib.parse
from types import SimpleNamespace

import pytest
from keystoneauth1 import loading

import nova.conf
import nova.image.glance
from nova import context, exception
from nova.conductor.resources.server_images import ServerImages
from nova.conf import CONF
from nova.image.glance import GlanceStore
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance
from tests.service_recorder import Recorder, check_sent, senders

CTX = context.RequestContext(overwrite=False, project_id="p1")
DATA = b"disk" * 500_000


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def _send(self, status, body=b"", kind="application/json", length=None):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        if length is not None:
            self.close_connection = True

    def _handle(self):
        glance = self.server.glance
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        glance.requests.append((self.command, url.path, query, dict(self.headers), body))
        if url.path.startswith("/v3"):
            return self._keystone(glance, url.path, body)
        if glance.failures:
            return self._send(glance.failures.pop(0))
        if self.headers.get("X-Auth-Token") in glance.revoked:
            return self._send(401)
        if self.command == "PUT" and self.headers.get("X-Auth-Token") in glance.revoked_for_data:
            return self._send(401)
        if url.path == "/v2/images":
            return self._create(glance, json.loads(body)) if self.command == "POST" else self._index(glance, query)
        image = glance.images.get(url.path.split("/")[3])
        if image is None:
            return self._send(404)
        if isinstance(image, bytes):
            return self._send(200, image)
        if self.headers.get("X-Auth-Token") == "stranger" and self.command != "GET":
            return self._send(403)
        if url.path.endswith("/members"):
            glance.members.append((image["id"], json.loads(body)["member"]))
            return self._send(200, {})
        if self.command == "PUT":
            if image["status"] != "queued":
                return self._send(409)
            image["status"] = "saving"
            threading.Event().wait(glance.storing)
            glance.data[image["id"]] = body
            image.update(status="active", size=len(body))
            return self._send(204)
        if url.path.endswith("/file"):
            if image["id"] == "empty":
                return self._send(204)
            if glance.cuts:
                glance.cuts -= 1
                return self._send(200, DATA[:1000], "application/octet-stream", len(DATA))
            return self._send(200, DATA, "application/octet-stream")
        if self.command == "DELETE":
            del glance.images[image["id"]]
            return self._send(204)
        if self.command == "PATCH":
            for change in json.loads(body):
                name = change["path"][1:].replace("~1", "/").replace("~0", "~")
                if change["op"] == "remove":
                    del image[name]
                else:
                    image[name] = change["value"]
        return self._send(200, image)

    def _keystone(self, glance, path, body):
        """Answer as Keystone: issue tokens for the password, with a catalog that names this server as Glance."""
        if path != "/v3/auth/tokens":
            return self._send(200, {"version": {"id": "v3.14", "status": "stable", "links": [
                {"rel": "self", "href": glance.url + "/v3/"}]}})
        user = json.loads(body)["auth"]["identity"]["password"]["user"]
        if user["password"] != "right":
            return self._send(401, {"error": {"code": 401, "message": "no"}})
        glance.tokens += 1
        endpoint = {"id": "e", "interface": "public", "region": "R", "region_id": "R", "url": glance.url}
        token = {"methods": ["password"], "expires_at": "2099-01-01T00:00:00.000000Z", "user": user, "roles": [],
                 "issued_at": "2026-01-01T00:00:00.000000Z",
                 "catalog": [{"type": "image", "name": "glance", "id": "s", "endpoints": [endpoint]}]}
        body = json.dumps({"token": token}).encode()
        self.send_response(201)
        self.send_header("X-Subject-Token", f"service-{glance.tokens}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def _create(self, glance, wanted):
        if wanted["id"] in glance.images:
            return self._send(409)
        glance.images[wanted["id"]] = {"status": "queued", **wanted}
        return self._send(201, glance.images[wanted["id"]])

    def _index(self, glance, query):
        images = [image for image in glance.images.values()
                  if all(str(image.get(name)) == value for name, value in query.items()
                         if name not in ("limit", "marker"))]
        if "marker" in query:
            ids = [image["id"] for image in images]
            if query["marker"] not in ids:
                return self._send(400)
            images = images[ids.index(query["marker"]) + 1:]
        size = min(int(query.get("limit", 25)), glance.page)
        page = images[:size]
        more = {"next": f"/v2/images?marker={page[-1]['id']}"} if len(images) > size else {}
        return self._send(200, {"images": page, **more})

    do_GET = do_DELETE = do_PATCH = do_POST = do_PUT = _handle


class Glance:
    def __init__(self):
        self.images, self.requests, self.failures, self.cuts, self.page = {}, [], [], 0, 1000
        self.revoked, self.tokens, self.storing = {"expired"}, 0, 0.0
        self.members, self.data, self.revoked_for_data = [], {}, set()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.glance = self
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, image_id, **more):
        self.images[image_id] = {
            "id": image_id, "name": "cirros", "status": "active", "size": len(DATA), "disk_format": "qcow2",
            "container_format": "bare", "min_disk": 1, "min_ram": 64, "owner": "p1", "visibility": "public",
            "protected": False, "checksum": hashlib.md5(DATA, usedforsecurity=False).hexdigest(),
            "virtual_size": None, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
            "self": f"/v2/images/{image_id}", "file": f"/v2/images/{image_id}/file", "schema": "/v2/schemas/image",
            "tags": [], "os_hidden": False, "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(DATA).hexdigest(), "hw_disk_bus": "virtio", **more}


@pytest.fixture
def glance(monkeypatch):
    monkeypatch.setattr("nova.image.glance.time.sleep", lambda seconds: None)
    nova.conf.register()
    nova.conf.register_external_services()
    made = Glance()
    CONF.set_override("endpoint_override", made.url + "/v2/", group="glance")
    yield made
    CONF.clear_override("endpoint_override", group="glance")
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def store(glance):
    return GlanceStore()


def test_show_maps_fields_and_properties(glance, store):
    glance.add("i1", os_distro="debian", unset=None)
    found = store.show(CTX, "i1", token="user")
    assert (found.name, found.min_disk, found.min_ram, found.size, found.owner) == ("cirros", 1, 64, len(DATA), "p1")
    assert found.properties == {"hw_disk_bus": "virtio", "os_distro": "debian"}
    headers = glance.requests[-1][3]
    assert headers["X-Auth-Token"] == "user"
    assert headers["X-OpenStack-Request-ID"] == CTX.request_id


def test_index_follows_pages_up_to_the_limit(glance, store):
    for number in range(7):
        glance.add(f"i{number}", name="odd" if number % 2 else "even")
    glance.page = 3
    assert len(store.index(CTX, {})) == 7
    assert [image.id for image in store.index(CTX, {}, limit=4, marker="i1")] == ["i2", "i3", "i4", "i5"]
    assert [image.id for image in store.index(CTX, {"name": "odd"})] == ["i1", "i3", "i5"]
    with pytest.raises(exception.MarkerNotFound):
        store.index(CTX, {}, marker="nothing")


@pytest.mark.parametrize("wrong", [{"size": "large"}, {"name": 7}, {"min_ram": None, "min_disk": [1]}])
def test_image_with_invalid_fields_raises_backend_unavailable(glance, store, wrong):
    glance.add("i1", **wrong)
    with pytest.raises(exception.ImageBackendUnavailable):
        store.show(CTX, "i1")
    with pytest.raises(exception.ImageBackendUnavailable):
        store.index(CTX, {})


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"[" * 100_000, b""])
def test_invalid_json_from_glance_raises_backend_unavailable(glance, store, body):
    glance.images["i1"] = body
    with pytest.raises(exception.ImageBackendUnavailable):
        store.show(CTX, "i1")


def test_download_is_verified_and_retried(glance, store, tmp_path):
    glance.add("i1")
    glance.cuts = 2
    told = []
    store.download(CTX, "i1", str(tmp_path / "out"), told.append)
    assert (tmp_path / "out").read_bytes() == DATA
    assert told == [len(DATA)]


def test_download_of_damaged_or_missing_data_is_refused(glance, store, tmp_path):
    glance.add("damaged", os_hash_value="0" * 128)
    glance.add("empty")
    glance.add("queued", status="queued")
    for image_id, error in (("damaged", exception.ImageUnacceptable), ("empty", exception.ImageUnacceptable),
                            ("queued", exception.ImageNotActive), ("nothing", exception.ImageNotFound)):
        with pytest.raises(error):
            store.download(CTX, image_id, str(tmp_path / "out"), lambda size: None)
    assert list(tmp_path.iterdir()) == []


def test_download_writes_no_more_than_the_admitted_size(glance, store, tmp_path):
    def refuse(size):
        raise exception.DiskFull(reason=f"{size} bytes")

    glance.add("i1")
    glance.add("longer", size=1000)
    glance.add("unknown", size=None)
    with pytest.raises(exception.DiskFull, match=f"{len(DATA)} bytes"):
        store.download(CTX, "i1", str(tmp_path / "out"), refuse)
    assert not [request for request in glance.requests if request[1].endswith("/file")]
    for image_id, word in (("longer", "more than its 1000 bytes"), ("unknown", "size is unknown")):
        with pytest.raises(exception.ImageUnacceptable, match=word):
            store.download(CTX, image_id, str(tmp_path / "out"), lambda size: None)
    assert list(tmp_path.iterdir()) == []


def test_glance_properties_are_merged_or_replaced(glance, store):
    glance.add("i1", odd="x")
    assert store.set_properties(CTX, "i1", {"a/b~c": "1"}, False).properties == {
        "hw_disk_bus": "virtio", "odd": "x", "a/b~c": "1"}
    assert store.set_properties(CTX, "i1", {"odd": "y"}, True).properties == {"odd": "y"}
    patches = [request for request in glance.requests if request[0] == "PATCH"]
    assert patches[0][3]["Content-Type"] == "application/openstack-images-v2.1-json-patch"
    store.set_properties(CTX, "i1", {"odd": "y"}, True)
    assert len([request for request in glance.requests if request[0] == "PATCH"]) == 2
    with pytest.raises(exception.QuotaLimit):
        store.set_properties(CTX, "i1", {"more": "z"}, False, max_properties=1)
    assert store.set_properties(CTX, "i1", {"more": "z"}, True, max_properties=1).properties == {"more": "z"}


def test_deleted_image_is_not_found(glance, store):
    glance.add("i1")
    store.delete(CTX, "i1")
    with pytest.raises(exception.ImageNotFound):
        store.delete(CTX, "i1")


WANTED = Image(id="s1", name="copy", owner="p1", min_disk=1, min_ram=64, visibility="shared", members=["p2"],
               properties={"image_type": "snapshot"})


def test_repeated_create_and_upload_are_idempotent(glance, store, tmp_path):
    source = tmp_path / "disk"
    source.write_bytes(DATA)
    glance.failures = [503]
    for _ in range(2):
        store.create(CTX, WANTED)
    assert glance.images == {"s1": {
        "id": "s1", "name": "copy", "owner": "p1", "status": "queued", "visibility": "shared", "min_disk": 1,
        "min_ram": 64, "image_type": "snapshot"}}
    assert set(glance.members) == {("s1", "p2")}
    glance.failures = [503]
    for _ in range(2):
        store.upload(CTX, "s1", str(source), "qcow2")
    assert glance.data == {"s1": DATA}
    made = store.show(CTX, "s1")
    assert (made.status, made.disk_format, made.container_format) == ("active", "qcow2", "bare")
    assert [request[0] for request in glance.requests].count("PUT") == 1


def test_upload_to_a_missing_or_saving_image_is_refused(glance, store, tmp_path):
    source = tmp_path / "disk"
    source.write_bytes(DATA)
    with pytest.raises(exception.ImageNotFound):
        store.upload(CTX, "s1", str(source), "qcow2")
    store.create(CTX, WANTED)
    glance.images["s1"]["status"] = "saving"
    with pytest.raises(exception.ImageBackendUnavailable, match="another upload"):
        store.upload(CTX, "s1", str(source), "qcow2")
    assert glance.data == {}


def test_upload_waits_until_glance_has_stored_the_data(glance, store, tmp_path):
    """Storing takes longer than any other request, and a second upload would not help."""
    source = tmp_path / "disk"
    source.write_bytes(DATA)
    CONF.set_override("timeout", 1, group="glance")  # starts with the first request
    CONF.set_override("num_retries", 0, group="glance")
    glance.storing = 3.0
    try:
        store.create(CTX, WANTED)
        store.upload(CTX, "s1", str(source), "qcow2")
    finally:
        CONF.clear_override("timeout", group="glance")
        CONF.clear_override("num_retries", group="glance")
    assert store.show(CTX, "s1").status == "active"


def test_upload_is_repeated_with_a_new_token(glance, keystone, store, tmp_path):
    source = tmp_path / "disk"
    source.write_bytes(DATA)
    store.create(CTX, WANTED)
    glance.revoked_for_data.add("service-1")
    store.upload(CTX, "s1", str(source), "qcow2")
    assert glance.data == {"s1": DATA}


def test_glance_errors_are_mapped_to_exceptions(glance, store):
    glance.add("i1")
    with pytest.raises(exception.ImageNotFound):
        store.show(CTX, "nothing")
    with pytest.raises(exception.ImageNotFound):
        store.show(CTX, "../v2/tasks")
    with pytest.raises(exception.ImageNotAuthorized):
        store.delete(CTX, "i1", token="stranger")
    with pytest.raises(exception.ImageNotAuthorized):
        store.show(CTX, "i1", token="expired")


def test_failed_glance_requests_are_retried_then_unavailable(glance, store):
    glance.add("i1")
    glance.failures = [503, 500]
    assert store.show(CTX, "i1").id == "i1"
    glance.failures = [503] * 10
    with pytest.raises(exception.ImageBackendUnavailable):
        store.show(CTX, "i1")
    assert len(glance.failures) == 10 - 1 - CONF.glance.num_retries


def test_unreachable_glance_raises_backend_unavailable(glance, store):
    CONF.set_override("endpoint_override", "http://127.0.0.1:1", group="glance")
    with pytest.raises(exception.ImageBackendUnavailable):
        store.show(CTX, "i1")


def test_fields_sent_to_glance_are_listed(glance, store, monkeypatch, tmp_path):
    recorder = Recorder(monkeypatch, nova.image.glance)
    monkeypatch.setattr(nova.image, "store", lambda: store)
    ctx = context.RequestContext(overwrite=False, project_id="p2", user_id="u", project_name="P", user_name="U",
                                 roles=["member"])
    base = Image(id="base", properties={"hw_disk_bus": "virtio", "img_signature": "s"})
    images = ServerImages(SimpleNamespace(ctx=ctx, instance=Instance(
        uuid="u", project_id="p1", user_id="u", display_name="n", hostname="n", created_at=utcnow(), image_ref="base",
        flavor=Flavor(flavorid="1", name="m1", vcpus=1, memory_mb=512, root_gb=1), image=base)))
    wanted = images.describe("copy", {"backup_type": "daily"}, "backup")
    images.make(wanted)
    images.fill(wanted.id, {"bdm_v2": "true"})
    store.set_properties(CTX, wanted.id, {"hw_disk_bus": "scsi", "bdm_v2": None}, False)
    store.index(CTX, {}, marker=wanted.id)
    images.rotate(wanted, 0)
    assert glance.images == {}
    glance.add("i1")
    store.download(CTX, "i1", str(tmp_path / "out"), lambda size: None)
    assert sorted(senders(nova.image.glance) - recorder.methods) == []
    check_sent("glance", recorder.requests("glance"))


@pytest.fixture
def keystone(glance):
    CONF.clear_override("endpoint_override", group="glance")
    values = {"auth_type": "password", "auth_url": glance.url + "/v3", "username": "glance-user", "password": "right",
              "project_name": "service", "user_domain_id": "default", "project_domain_id": "default"}
    options = loading.get_auth_plugin_conf_options("password")
    CONF.register_opts(options, group="glance")
    for name, value in values.items():
        CONF.set_override(name, value, group="glance")
    yield values
    for name in values:
        CONF.clear_override(name, group="glance")
    # Some of these options are required and would be missing for later tests in this process.
    CONF.clear()
    CONF.unregister_opts(options, group="glance")


def test_glance_requests_use_the_service_token_and_the_catalog(glance, keystone, store):
    glance.add("i1")
    store.show(CTX, "i1")
    assert glance.requests[-1][3]["X-Auth-Token"] == "service-1"
    store.show(CTX, "i1", token="user")
    assert glance.requests[-1][3]["X-Auth-Token"] == "user"
    assert glance.tokens == 1


def test_revoked_service_token_is_renewed(glance, keystone, store):
    glance.add("i1")
    store.show(CTX, "i1")
    glance.revoked.add("service-1")
    assert store.show(CTX, "i1").id == "i1"
    assert glance.requests[-1][3]["X-Auth-Token"] == "service-2"


def test_error_for_wrong_service_credentials_hides_the_password(glance, keystone, store):
    glance.add("i1")
    CONF.set_override("password", "wrong", group="glance")
    with pytest.raises(exception.ImageBackendUnavailable) as caught:
        store.show(CTX, "i1")
    assert "wrong" not in str(caught.value)
