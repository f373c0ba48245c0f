"""A podman service that hangs, sends garbage or reports success without effect, in the middle of changes."""

import pathlib
import tempfile

import pytest

from nova.novad.daemon import Daemon
from nova.novad.errors import ImageFault
from nova.novad.options import Options
from nova.novad.runtime import podman as podman_module
from nova.novad.runtime import podman_stream
from nova.novad.runtime.podman import Podman
from nova.novad.server import Server
from tests.functional.client import wait_for
from tests.functional.novad.conftest import Node, free_port
from tests.functional.novad.fake_podman import FakePodman, reply
from tests.unit.novad.platforms import parse

PLATFORM = """
name = "s"
networks = ["n"]
[components.db]
image = "db"
version = "1"
networks = ["n"]
volumes = [{name = "rows", destination = "/rows"}]
health = {command = ["ok"], interval = 0.2, start = 0.5}
stop_timeout = 1
[components.api]
image = "api"
version = "1"
networks = ["n"]
depends = ["db"]
health = {command = ["ok"], interval = 0.2, start = 0.5}
stop_timeout = 1
"""
BOTH = {"s-db": ("db:1", True), "s-api": ("api:1", True)}
UPGRADED = {"s-db": ("db:2", True), "s-api": ("api:1", True)}


@pytest.fixture
def podman(tmp_path):
    with tempfile.TemporaryDirectory() as short:  # A socket path has at most 107 characters.
        service = FakePodman(pathlib.Path(short) / "podman.sock")
        yield service
        service.fault = lambda _method, _path: None
        service.close()


@pytest.fixture
def node(podman, monkeypatch):
    monkeypatch.setattr(podman_module, "_TIMEOUT", 1.0)
    monkeypatch.setattr(podman_module, "_QUERY_TIMEOUT", 1.0)
    monkeypatch.setattr(podman_stream, "_TIMEOUT", 1.0)
    with tempfile.TemporaryDirectory() as data_dir:
        daemon = Daemon(Options(data_dir=data_dir, listen=f"tcp://127.0.0.1:{free_port()}", interval=0.1),
                        parse(PLATFORM, "toml"), Podman(str(podman.path)))
        server = Server(daemon)
        daemon.start()
        server.start()
        yield Node(daemon, server, monkeypatch)
        podman.fault = lambda _method, _path: None
        podman.released.set()
        server.stop()
        daemon.stop()


def during(podman, method, path, fault, times=1000):
    """Answer requests whose path contains ``path`` with the fault, at most ``times``.

    If ``times`` is 1, wait for a deployment, which excludes the periodic check of components.
    """
    used, armed = [], [times != 1]

    def decide(given_method, given_path):
        armed.append(armed[-1] or given_path == "/images/pull")
        if armed[-1] and given_method == method and path in given_path and len(used) < times:
            used.append(given_path)
            return fault() if callable(fault) else fault
        return None
    podman.fault = decide
    return used


UNEXPECTED = [
    ("GET", "/images/", reply({})), ("GET", "/images/", reply(None)), ("POST", "/containers/create", reply({})),
    ("POST", "/containers/create", reply([])), ("POST", "/containers/create", reply({"Id": None})),
    ("GET", "/containers/s-db/json", reply({})), ("GET", "/containers/s-db/json", reply("x")),
    ("GET", "/containers/s-db/json", reply({"State": "running", "Config": [], "Name": 7, "Image": None})),
    ("POST", "/stop", reply({})), ("POST", "/stop", reply([], 500)), ("POST", "/exec", reply({}, 201)),
    ("POST", "/exec", reply([], 201)), ("GET", "/exec/", reply([])),
    ("GET", "/exec/", reply(b"[" * 100_000)),
    ("POST", "/start", b"HTTP/1.0 200 x\r\n\r\n\x01\0\0\0\0\0\0\x09half"),  # of an exec; of a container: no effect
    ("GET", "/containers/s-db/json", b"HTTP/1.0 200 x\r\nContent-Length: 500\r\n\r\n{\"Id\": \"ab"),
    ("GET", "/images/", reply(b"<html>")), ("POST", "/images/pull", b"\0\xff\x1b[31m")]


@pytest.mark.parametrize(("method", "path", "answer"), UNEXPECTED, ids=lambda value: str(value)[:40])
def test_unexpected_response_of_podman_is_reported_and_undone(podman, node, method, path, answer):
    node.nova("deploy")
    assert during(podman, method, path, answer, times=1) == []
    failed = node.nova("deploy", "db=2", code=1).err
    assert "podman" in failed or "does not become healthy" in failed
    assert not any(word in failed for word in ("KeyError: '", "TypeError: '", "bug", "AttributeError: ")) or (
        "cannot be read" in failed)
    wait_for(lambda: podman.named() == BOTH, 20)
    assert node.daemon.journal.unfinished() == []
    node.nova("deploy", "db=2")
    assert podman.named() == UPGRADED


@pytest.mark.parametrize(("method", "path"), [("GET", "/containers/json"), ("GET", "/version")])
@pytest.mark.parametrize("answer", [reply(None), reply(["x"]), reply(7), reply(b"x" * 300_000, 500), b""],
                         ids=["null", "list", "number", "huge", "closed"])
def test_query_with_an_unexpected_response_of_podman_fails_clearly(podman, node, method, path, answer):
    during(podman, method, path, answer)
    failed = node.nova("info" if path == "/version" else "platform-info", code=4).err
    assert "podman: " in failed
    assert len(failed) < 3000


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/containers/s-db/start"), ("POST", "/stop"), ("DELETE", "/containers/"), ("POST", "/containers/create"),
    ("POST", "/networks/create")])
def test_success_without_effect_is_detected(podman, node, method, path):
    """A stop that did not happen must be detected before the data are copied."""
    if "networks" not in path:
        node.nova("deploy")
    before = podman.named()
    copied = len(node.daemon.journal.backups())
    used = during(podman, method, path if path != "/containers/s-db/start" else "/start", "lie", times=1)
    failed = node.nova("deploy", "db=2", code=1 if "networks" not in path else 0)
    assert used
    if failed.code:
        assert "podman" in failed.err or "the container exited" in failed.err
        wait_for(lambda: podman.named() == before, 20)
    if path == "/stop":
        assert "still runs although podman reported its stop" in failed.err
        assert len(node.daemon.journal.backups()) == copied


def test_long_error_of_podman_reaches_the_client_and_the_history(podman, node):
    node.nova("deploy")
    during(podman, "POST", "/containers/create", reply({"cause": "c", "message": "why\x1b[2J" + "é" * 300_000}, 500), 1)
    failed = node.nova("deploy", "db=2", code=1).err
    assert "container s-db cannot be created: why" in failed
    assert "The previous state was restored" in failed
    assert "\x1b" not in failed + node.nova("history").out
    assert len(failed) < 3000


def test_image_with_ten_thousand_volumes_is_refused_in_few_words(podman, node):
    node.nova("deploy")
    podman.image_configs["db:2"] = {"Volumes": {f"/v{number}/../../x{number}\n\x1b[2J": {} for number in range(10_000)}}
    for _time in range(20):
        failed = node.nova("deploy", "db=2", code=1).err
    assert "9990 more paths" in failed
    assert "\x1b" not in failed
    assert len(failed) < 3000
    assert "undone" in node.nova("history").out
    assert podman.named() == BOTH


@pytest.mark.parametrize("path", ["/", "/etc", "../..", "", "relative", "/rows/../rows2", "/rows2"])
def test_image_volume_outside_of_all_mounts_is_refused(podman, node, path):
    node.nova("deploy")
    podman.image_configs["db:2"] = {"Volumes": {path: {}}, "Labels": {"x" * 1000: "y" * 1000_000}}
    assert "stores data at /" in node.nova("deploy", "db=2", code=1).err
    assert podman.named() == BOTH


UNNAMED, OTHERS, NAMED = "0" * 64, "1" * 64, "operators"
VOLUMES = {UNNAMED: "s-db", OTHERS: "another", NAMED: "s-db"}


@pytest.mark.parametrize(("words", "removed"), [
    (("deploy", "db=2"), set()), (("remove", "--yes"), set()), (("remove", "--yes", "--remove-volumes"), {UNNAMED})],
    ids=str)
def test_podman_volume_without_a_name_is_removed_with_the_data_of_its_container_only(podman, node, words, removed):
    """The container was created by an earlier release, from an image whose volumes are unknown now."""
    node.nova("deploy")
    podman.volumes.update(VOLUMES)
    node.nova(*words)
    assert podman.volumes.keys() == VOLUMES.keys() - removed


def test_podman_volume_without_a_name_stays_after_a_failed_removal_and_is_removed_by_the_next(podman, node):
    node.nova("deploy")
    podman.volumes.update(VOLUMES)
    faults = [reply({"cause": "x", "message": "x"}, 500)]
    podman.fault = lambda method, _path: faults.pop() if method == "DELETE" and faults else None
    node.nova("remove", "--yes", "--remove-volumes", code=1)
    assert (podman.volumes, podman.named()) == (VOLUMES, BOTH)
    node.nova("remove", "--yes", "--remove-volumes")
    assert (podman.volumes.keys(), podman.named()) == ({OTHERS, NAMED}, {})


def test_image_of_unknown_size_is_removed_after_the_pull_if_it_exceeds_the_limit(podman):
    podman.image_sizes = {"db:1": 2 << 20, "db:2": 3 << 20}
    limited = Podman(str(podman.path), image_limit=2 << 20)
    limited.fetch("db:1")
    with pytest.raises(ImageFault, match="db:2 has 3 MiB when it is unpacked, and image_limit is 2 MiB"):
        limited.fetch("db:2")
    assert list(podman.images.values()) == ["db:1"]
    Podman(str(podman.path)).fetch("db:2")
    with pytest.raises(ImageFault, match="image_limit is 2 MiB"):  # An image of an earlier deployment stays.
        limited.fetch("db:2")
    assert list(podman.images.values()) == ["db:1", "db:2"]


def test_stop_may_take_longer_than_the_stop_timeout(podman, node, monkeypatch):
    """podman kills the container after stop_timeout, and reports that some time later."""
    monkeypatch.setattr(podman_module, "_TIMEOUT", 20.0)
    node.nova("deploy")
    during(podman, "POST", "/stop", lambda: podman.released.wait(3) and None)
    node.nova("deploy", "db=2")
    assert podman.named() == UPGRADED


@pytest.mark.parametrize("words", [("deploy", "db=2"), ("restart",), ("remove", "--yes"), ()], ids=str)
def test_renamed_container_does_not_run_beside_its_successor(podman, node, words):
    """Check that no two containers write to the same data. The periodic check replaces a renamed container, too."""
    node.nova("deploy")
    podman.container("s-db")["Name"] = "by-hand"
    if words:
        node.nova(*words)
    after = {} if words[:1] == ("remove",) else UPGRADED if words[:1] == ("deploy",) else BOTH
    wait_for(lambda: podman.named() == after, 20)


@pytest.mark.parametrize("status", ["paused", "stopping"])
@pytest.mark.parametrize("words", [("deploy", "db=2"), ("restart", "db"), ("backup", "create", "db"), ()], ids=str)
def test_container_with_suspended_processes_is_stopped_before_its_data_are_copied(podman, node, status, words):
    """An operator paused the container, or podman was killed while it stopped it. The periodic check heals both."""
    node.nova("deploy")
    podman.container("s-db")["State"] = {"Running": False, "Status": status, "ExitCode": 0}
    if words:
        with node.daemon.deployer.alone("test"):  # without the periodic check before the command
            podman.stopped.clear()
            podman.container("s-db")["State"] = {"Running": False, "Status": status, "ExitCode": 0}
        node.nova(*words)
        assert "s-db" in podman.stopped
    wait_for(lambda: podman.named() == (UPGRADED if words[:1] == ("deploy",) else BOTH), 20)


def test_container_that_disappears_during_a_query_is_no_error(podman, node):
    node.nova("deploy")
    during(podman, "GET", f"/containers/{podman.container('s-db')['Id']}/json",
           reply({"cause": "c", "message": "no such container"}, 404))
    assert "db" in node.nova("platform-info").out


@pytest.mark.parametrize("what", ["/stop", "/create", "/json"])
def test_request_without_an_answer_of_podman_ends_and_blocks_no_later_change(podman, node, what):
    node.nova("deploy")
    during(podman, "GET" if what == "/json" else "POST", what, "hang")
    assert "Read timed out" in node.nova("deploy", "db=2", code=1).err
    podman.fault = lambda _method, _path: None
    wait_for(lambda: node.daemon.journal.unfinished() == [] and podman.named() == BOTH, 30)
    node.nova("deploy", "db=2")
    assert podman.named() == UPGRADED
