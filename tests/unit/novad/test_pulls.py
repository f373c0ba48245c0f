"""Size checks before image pulls, and error reasons of podman in messages to the user."""

import contextlib
import http.server
import json
import pathlib
import platform
import shutil
import socket
import threading

import pytest

from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.platform import Component
from nova.novad.runtime import podman
from nova.novad.runtime.podman import Podman, Wanted

DIGEST = "sha256:" + "1" * 64
MACHINE = podman._MACHINES.get(platform.machine(), platform.machine())
IMAGE = {"layers": [{"size": 1000}, {"size": 2000}], "config": {"size": 9}}
INDEX = {"manifests": [
    {"digest": "sha256:" + "2" * 64, "platform": {"os": "linux", "architecture": "s390x"}},
    {"digest": "sha256:" + "3" * 64, "platform": {"os": "windows", "architecture": MACHINE}},
    {"digest": DIGEST, "platform": {"os": "linux", "architecture": MACHINE}}]}


@pytest.fixture
def site():
    """A registry on loopback: ``answers`` by path; a non-empty ``token`` is required from clients."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            if self.path.startswith("/token"):
                return self._send(200, json.dumps({"token": self.server.token}).encode())
            if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
                return self._send(401, b"{}", self.server.challenge)
            body = self.server.answers.get(self.path)
            return self._send(404, b"{}") if body is None else self._send(200, body)

        def _send(self, status, body, challenge=""):
            self.send_response(status)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.answers, server.asked, server.token = {}, [], ""
        server.host = f"127.0.0.1:{server.server_port}"
        server.challenge = f'Bearer realm="http://{server.host}/token",service="s",scope="repository:a/b:pull"'
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def manifest(name, content=IMAGE):
    return {f"/v2/a/b/manifests/{name}": content if isinstance(content, bytes) else json.dumps(content).encode()}


@pytest.mark.parametrize("token", ["", "one"])
@pytest.mark.parametrize("index", [False, True])
def test_image_size_is_the_sum_of_layers_for_this_architecture(site, token, index):
    site.token = token
    site.answers = {**manifest("1", INDEX), **manifest(DIGEST)} if index else manifest("1")
    assert podman.image_size(f"{site.host}/a/b:1") == 3000
    assert [path.partition("?")[2] for path in site.asked if path.startswith("/token")] == (
        ["service=s&scope=repository%3Aa%2Fb%3Apull"] if token else [])


def test_image_size_is_read_by_tag_digest_or_default_tag(site):
    site.answers = {**manifest("latest"), **manifest(DIGEST)}
    assert [podman.image_size(f"{site.host}/a/b{end}") for end in ("", f"@{DIGEST}", f":1@{DIGEST}")] == [3000] * 3


@pytest.mark.parametrize("content", [
    b"", b"[]", b"{", b"null", {}, {"layers": 1}, {"layers": [1]}, {"layers": [{}]}, {"layers": [{"size": "x"}]},
    {"layers": [{"size": None}]}, {"manifests": []}, {"manifests": 1}, {"manifests": [1]}, {"manifests": [{}]},
    {"manifests": [{"platform": []}]}, {"manifests": INDEX["manifests"][:2]}, b"[" * 100_000,
    b'"' + b"x" * (5 << 20) + b'"', b"\xff"], ids=lambda content: str(content)[:40])
def test_invalid_registry_response_leaves_the_size_unknown(site, content):
    site.answers = manifest("1", content)
    assert podman.image_size(f"{site.host}/a/b:1") is None


def test_unreachable_registry_or_foreign_token_realm_leaves_the_size_unknown(site):
    assert podman.image_size(f"{site.host}/a/b:1") is None
    assert podman.image_size("short-name:1") is None
    assert podman.image_size("127.0.0.1:9/a/b:1") is None
    site.token, site.answers = "one", manifest("1")
    for realm in ("file:///etc/passwd", "https://127.0.0.1:9/token", "", "x"):
        site.challenge = f'Bearer realm="{realm}"'
        assert podman.image_size(f"{site.host}/a/b:1") is None
    site.challenge = 'Basic realm="x"'
    assert podman.image_size(f"{site.host}/a/b:1") is None


@pytest.mark.parametrize(("entry", "size"), [
    ('prefix = "docker.io"\nlocation = "HOST"', 3000), ('prefix = "docker.io/a"\nlocation = "HOST/a"', 3000),
    ('prefix = "docker.io/a/b"\nlocation = "HOST/a/b"\n[[registry]]\nprefix = "docker.io"\nlocation = "127.0.0.1:9"',
     3000),
    ('prefix = "docker.io"\nblocked = true', None), ('prefix = "docker.io"\nlocation = "HOST"\ninsecure = true', None),
    ('prefix = "docker.io"\n[[registry.mirror]]\nlocation = "HOST"', None), ('prefix = "*.io"', None), ("x", None)])
def test_image_size_uses_the_registries_configured_for_podman(site, tmp_path, monkeypatch, entry, size):
    """Unconfigured registries are not contacted, in particular not the registry replaced by the configuration."""
    (tmp_path / "registries.conf").write_text("[[registry]]\n" + entry.replace("HOST", site.host))
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    monkeypatch.setattr(podman, "is_on_loopback", lambda _reference: True)  # The site has no TLS.
    urls, ask = [], podman._json
    monkeypatch.setattr(podman, "_json", lambda url, headers: urls.append(url) or ask(url, headers))
    site.answers = manifest("1")
    assert podman.image_size("docker.io/a/b:1") == size
    assert not [url for url in urls if "docker.io" in url]


@pytest.fixture
def service(tmp_path):
    """Return ``service(answer, …)``, which serves an answer per request and returns the path of its socket."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "s"))
    listening.listen()

    def serve(*answers):
        def run():
            for answer in answers:
                with contextlib.suppress(OSError):
                    connection, _address = listening.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(answer)
        threading.Thread(target=run, daemon=True).start()
        return str(tmp_path / "s")

    yield serve
    listening.close()


def answer(status, *documents):
    return f"HTTP/1.0 {status} x\r\n\r\n".encode() + b"".join(json.dumps(one).encode() + b"\n" for one in documents)


@pytest.mark.parametrize(("limit", "free", "said"), [
    (2000, 1 << 40, "has layers of 0 MiB, and image_limit is"), (0, 3000, "take more when they are unpacked"),
    (0, podman.MARGIN + 2999, "63|64 MiB are free")])
def test_too_large_image_is_refused_before_the_pull(site, tmp_path, monkeypatch, limit, free, said):
    site.answers = manifest("1")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(podman.shutil, "disk_usage", lambda _path: usage._replace(free=free))
    runtime = Podman(str(tmp_path / "nobody"), limit)
    runtime._storage = tmp_path
    with pytest.raises(ImageFault, match=said):
        runtime.fetch(f"{site.host}/a/b:1")


def test_pull_is_cancelled_before_it_fills_the_disk(tmp_path, monkeypatch, service):
    """The reported size is not sufficient, for example with layers that grow when unpacked."""
    usage, listening = shutil.disk_usage(tmp_path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    monkeypatch.setattr(podman.shutil, "disk_usage", lambda _path: usage._replace(free=1 << 20))
    listening.bind(str(tmp_path / "slow"))
    listening.listen()

    def slow():
        connection, _address = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer(200, {"stream": "Copying blob"}))
            ended.append(connection.recv(1))

    ended = []
    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    runtime = Podman(str(tmp_path / "slow"))
    runtime._storage = tmp_path
    with pytest.raises(ImageFault, match=r"short:1 cannot be fetched: the pull was cancelled, since less than 64"):
        runtime.fetch("short:1")
    thread.join(30)
    listening.close()
    assert ended == [b""]


@pytest.mark.parametrize(("answers", "said"), [
    ([answer(500, {"message": "no space left on device"})], "short:1 cannot be fetched: no space left on device"),
    ([answer(200, {"stream": "x"}, {"error": "write: no space left on device"})], "fetched: write: no space left"),
    ([answer(200)], "short:1 cannot be fetched: podman reported no reason"), ([answer(200, [], 1, {})], "no reason")])
def test_failed_pull_reports_the_reason(service, tmp_path, answers, said):
    runtime = Podman(service(*answers))
    runtime._storage = tmp_path
    with pytest.raises(ImageFault, match=said):
        runtime.fetch("short:1")


@pytest.mark.parametrize("verb", ["create", "start", "stop", "remove", "find", "containers", "make_network",
                                  "remove_network", "has_image", "version", "fetch"])
@pytest.mark.parametrize("full", [True, False])
def test_broken_podman_connection_reports_reason_and_full_disk(service, tmp_path, monkeypatch, verb, full):
    """The message of the library is only "POST operation failed", for every verb."""
    runtime = Podman(service(*[b""] * 5))
    runtime._storage = pathlib.Path(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(podman.shutil, "disk_usage",
                        lambda _path: usage._replace(free=5 << 20 if full else 1 << 40))
    words = {"create": [Wanted(name="c", image="i", labels={}, component=Component(image="i"))], "stop": ["c", 1],
             "version": [], "fetch": ["short:1"]}
    with pytest.raises(RuntimeFault) as told:
        getattr(runtime, verb)(*words.get(verb, ["c"]))
    message = told.value.message
    assert not message.partition(" (the disk")[0].endswith("operation failed")
    assert any(word in message for word in ("Connection aborted", "closed connection", "without response", "not HTTP"))
    assert (f"the disk of {tmp_path} is full: 5 MiB are free" in message) == full
