"""The packaged platform files, and the build of the images."""

import http.server
import json
import os
import re
import subprocess
import tarfile
import threading

import msgspec
import pytest

from nova.novad.platform import Place, load
from tests.paths import ROOT
from tools.images import oci


@pytest.fixture(autouse=True)
def epoch(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")


def tree(place, files):
    for name, text in files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place


def packed(place, out):
    oci.pack(place, sorted(path.name for path in place.iterdir()), out)
    return out


@pytest.fixture(params=["nova.yaml", "nova-libvirt.yaml", "nova-nodes.yaml"])
def platform(request):
    return load(ROOT / "etc/novad" / request.param)


def test_platform_files_use_the_built_images(platform):
    text = (ROOT / "tools/images/images.sh").read_text()
    built = text.partition('ALL_IMAGES="')[2].partition('"')[0].split()
    assert sorted(f"127.0.0.1:5050/nova/{name}" for name in built) == sorted(
        one.image for one in platform.components.values())
    assert all(one.health and one.version_command for one in platform.components.values())
    here = Place(node="n1", address="127.0.0.1", roles=("control", "compute"))
    assert all(port.address == "127.0.0.1" for one in platform.at(here, [here]).components.values()
               for port in one.ports)
    assert [name for name, one in platform.components.items() if one.files and not one.user.isdigit()] == []


def test_database_secret_is_limited_to_conductors_and_master_key_to_control(platform):
    components = platform.components
    assert {name for name, one in components.items() if "database-nova" in one.secrets()} == {
        "database", "nova-conductor"}
    hosts = [one for one in components.values() if one.roles == ("compute",)]
    assert hosts
    assert not [one.image for one in hosts if "master-key" in one.secrets()]


def test_services_on_the_network_of_a_node_send_secrets_to_privileged_loopback_ports_only(platform):
    """Any account may listen on another port of loopback while the container that publishes the port is stopped."""
    used = {(name, option, int(port)) for name, one in platform.components.items() if not one.networks
            for text in one.files.values() for option, port in re.findall(
                r"(?m)^(transport_url|auth_url|endpoint_override|connection) = .*[@/]127\.0\.0\.1:(\d+)", text)}
    print(f"connections by loopback: {sorted(used)}")
    assert [each for each in used if each[2] >= 1024] == []
    assert {port for _name, _option, port in used} <= {
        port.node for one in platform.components.values() for port in one.ports}


def test_compute_hosts_use_node_names_and_the_control_node_address():
    control = Place(node="ctl", address="10.0.0.1", roles=("control",))
    places = [control, *(Place(node=f"host{each}", address=f"10.0.1.{each}", roles=("compute",)) for each in (1, 2))]
    whole = load(ROOT / "etc/novad/nova-nodes.yaml")
    first, *hosts = [whole.at(place, places) for place in places]
    assert {(name, port.node, port.address) for name, one in first.components.items() for port in one.ports
            if port.address != "127.0.0.1"} == {(name, port, "10.0.0.1") for name, port in (
                ("rabbitmq", 5672), ("keystone", 5000), ("glance", 9292))}
    assert "nova-compute" not in first.components
    for number, host in enumerate(hosts, 1):
        [(name, compute)] = host.components.items()
        *_nova, own, reached = [compute.files[name] for name in sorted(compute.files)]
        assert name == "nova-compute"
        assert f"host = host{number}\n" in own
        assert compute.health.command[-1] == f"compute.host{number}"
        assert [line.partition("@10.0.0.1:")[2] for line in reached.replace("://10", "://@10").splitlines()
                if "://" in line] == ["5672/nova", "5000/v3", "9292"]


def test_layer_is_reproducible_regardless_of_mtime_and_directory_order(tmp_path):
    first = packed(tree(tmp_path / "a", {"etc/one": "1", "etc/two": "2", "usr/three": "3"}), tmp_path / "a.tar")
    second = packed(tree(tmp_path / "b", {"usr/three": "3", "etc/two": "2", "etc/one": "1"}), tmp_path / "b.tar")
    os.utime(tmp_path / "b/etc/one", (1, 1))
    assert first.read_bytes() == packed(tmp_path / "b", second).read_bytes()
    layers = [oci.compress(one, tmp_path / "layout") for one in (first, second)]
    assert layers[0] == layers[1]
    with tarfile.open(first) as tar:
        assert {member.mtime for member in tar.getmembers()} == {1600000000}


def test_layer_contains_new_and_changed_files_and_whiteouts(tmp_path):
    base = packed(tree(tmp_path / "a", {"etc/same": "1", "etc/other": "2", "var/gone/file": "3"}), tmp_path / "a.tar")
    full = packed(tree(tmp_path / "b", {"etc/same": "1", "etc/other": "3", "var/new": "4"}), tmp_path / "b.tar")
    oci.subtract(base, full, tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames() == ["etc", "etc/other", "var", "var/new", "var/.wh.gone"]
    oci.subtract(base, base, tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames() == []


@pytest.mark.parametrize(("options", "words"), [
    ({"PUSH": "yes"}, "PUSH=yes: choose True or False"),
    ({"REGISTRY": "example.org:5000"}, "REGISTRY=example.org:5000: must be HOST:PORT on loopback"),
    ({"OUTPUT": "images"}, "OUTPUT=images: must be an absolute path"),
    ({"IMAGES": "nova-api nothing"}, "IMAGES=nothing: choose of"),
])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_invalid_build_option_is_reported_before_the_build(tmp_path, options, words):
    done = subprocess.run([ROOT / "tools/images/build.sh"], capture_output=True, text=True, check=False,
                          env={**os.environ, "OUTPUT": str(tmp_path / "out"), **options})
    assert (done.returncode, words in done.stderr, (tmp_path / "out").exists()) == (1, True, False)


def test_platform_files_are_pinned_to_the_built_digests(tmp_path):
    built = {name: f"sha256:{number:064x}" for number, name in enumerate(sorted(
        one.image.partition("/")[2] for one in load(ROOT / "etc/novad/nova.yaml").components.values()))}
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [
        {"digest": digest, "annotations": {"org.opencontainers.image.ref.name": f"{name}:{version}"}}
        for name, found in built.items() for version, digest in (("0", "sha256:" + "f" * 64), ("1", found))]}))
    files = sorted((ROOT / "etc/novad").glob("nova*.yaml"))
    oci.pin(files, tmp_path, "1", tmp_path / "platforms")
    for file in files:
        pinned, shipped = load(tmp_path / "platforms" / file.name), load(file)
        assert {one.image.partition("/")[2]: one.digest for one in pinned.components.values()} == built
        assert msgspec.structs.replace(pinned, components={name: msgspec.structs.replace(one, digest="")
                                       for name, one in pinned.components.items()}) == shipped


class _Registry(http.server.BaseHTTPRequestHandler):
    """A registry as far as pushes need it; ``asked`` of the server contains the received requests."""

    def _answer(self, status, **headers):
        size = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.command, self.path.partition("?")[0], self.rfile.read(size)))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_HEAD(self):
        self._answer(404)

    def do_POST(self):
        self._answer(202, Location=f"http://{self.headers['Host']}/v2/upload?state=1")

    def do_PUT(self):
        self._answer(201)

    def log_message(self, *_words):
        pass


def test_image_push_uploads_blobs_before_manifests(tmp_path):
    layer = oci.compress(packed(tree(tmp_path / "a", {"etc/one": "1"}), tmp_path / "a.tar"), tmp_path / "layout")
    digest = oci.image({"name": "nova/toy", "tag": "1", "layers": [{**layer, "name": "files"}], "architecture": "amd64",
                        "created": "2020-01-01T00:00:00Z", "config": {"User": "1"}}, tmp_path / "layout")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        oci.push("nova/toy:1", tmp_path / "layout", f"127.0.0.1:{server.server_port}", ["stable"])
        server.shutdown()
    puts = [(path, body) for verb, path, body in server.asked if verb == "PUT"]
    assert [path for path, _body in puts] == ["/v2/upload", "/v2/upload", "/v2/nova/toy/manifests/1",
                                              "/v2/nova/toy/manifests/stable"]
    blobs = tmp_path / "layout/blobs/sha256"
    manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
    assert [body for _path, body in puts[:2]] == [(blobs / one["digest"].removeprefix("sha256:")).read_bytes()
                                                  for one in (*manifest["layers"], manifest["config"])]
    assert json.loads(puts[2][1]) == manifest
