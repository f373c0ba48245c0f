"""novad with real containers: podman, a registry, and programs that write to their data."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from nova.novad.secrets import MASK
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry, wait_for
from tests.unit.novad.test_masking import SHOWN, longest

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_PLATFORM = """\
name = "{name}"
[secrets.key]
[components.db]
image = "{host}/toy"
version = "1"
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 0.5, timeout = 5, start = 20}}
version_command = ["/bin/busybox", "tail", "-n1", "/data/written"]
stop_timeout = 2
[components.web]
image = "{host}/toy"
version = "1"
depends = ["db"]
env = {{KEY = "${{secret:key}}"}}
volumes = [{{name = "state", destination = "/data"}}]
stop_timeout = 2
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    made = Registry(tmp_path_factory.mktemp("registry"))
    try:
        for version in "123":
            made.push("toy", version)
        made.push("toy", "broken", broken=True)
        yield made
    finally:
        made.stop()


@pytest.fixture
def node(registry: Registry, tmp_path: pathlib.Path) -> Iterator[Node]:
    name = f"t{os.getpid()}"
    with novad_node.node(tmp_path, _PLATFORM.format(name=name, host=registry.host)) as made:
        made.name = name  # type: ignore[attr-defined]
        yield made


def versions(node: Node) -> dict[str, str]:
    """Return the running versions as users see them."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in node.nova("platform-info", "-f", "table").stdout.splitlines() if line.startswith("|")]
    return {row[0]: row[4].rpartition(":")[2] for row in rows[1:] if row[2] == "running"}


def test_container_port_is_published_at_all_its_addresses(registry: Registry, tmp_path: pathlib.Path) -> None:
    name, ports = f"t{os.getpid()}", [("127.0.0.1", novad_node.free_port()), ("127.0.0.2", novad_node.free_port())]
    program = "/bin/busybox mkdir /w\necho here > /w/x\nexec /bin/busybox httpd -f -p 80 -h /w\n"
    registry.push("web", "1", program=program)
    listed = ", ".join(f'{{container = 80, node = {port}, address = "{address}"}}' for address, port in ports)
    health = f'{{tcp = "127.0.0.1:{ports[0][1]}", interval = 0.5, start = 20}}'
    with novad_node.node(tmp_path, f'name = "{name}"\n[components.web]\nimage = "{registry.host}/web"\nversion = "1"\n'
                                   f"ports = [{listed}]\nhealth = {health}\nstop_timeout = 2\n") as node:
        node.nova("deploy")
        for address, port in ports:
            with urllib.request.urlopen(f"http://{address}:{port}/x", timeout=10) as answer:
                assert answer.read() == b"here\n"


def test_platform_is_deployed_upgraded_and_rolled_back_with_its_data(node: Node) -> None:
    out = node.nova("deploy").stdout
    assert "db: runs version 1" in out
    assert versions(node) == {"db": "1", "web": "1"}
    assert "alive" in node.nova("service-logs", "db", "--no-follow").stdout
    assert json.loads(node.nova("service-info", "web").stdout)["env"] == {"KEY": "********"}

    node.nova("deploy", "db=2", "web=2")
    assert (versions(node), node.written("db")) == ({"db": "2", "web": "2"}, ["1", "2"])

    failed = node.nova("deploy", "db=3", "web=broken", check=False)
    assert (failed.returncode, "The previous state was restored" in failed.stderr) == (1, True)
    assert versions(node) == {"db": "2", "web": "2"}
    assert (node.written("db"), node.written("web")) == (["1", "2", "2"], ["1", "2", "2"])

    node.nova("deploy", "db=3")
    assert node.written("db")[-1] == "3"
    node.nova("rollback", "db", "--to", "1")
    assert (versions(node), node.written("db")) == ({"db": "1", "web": "2"}, ["1", "1"])


def test_undeclared_volume_of_an_image_is_refused(registry: Registry, tmp_path: pathlib.Path) -> None:
    for version in "12":
        registry.push("keeper", version, declared='VOLUME ["/data", "/cache"]\n')
    text = f'name = "v{os.getpid()}"\n[components.db]\nimage = "{registry.host}/keeper"\nversion = "VERSION"\n' \
           'stop_timeout = 2\nvolumes = [{name = "state", destination = "/data"}'
    with novad_node.node(tmp_path, text.replace("VERSION", "1") + "]\n") as node:
        refused = node.nova("deploy", check=False)
        assert ("stores data at /cache, which" in refused.stderr, node.podman("ps", "-aq")) == (True, "")
        cache = ', {name = "cache", destination = "/cache", backup = false}]\n'
        for version in "12":
            node.kill(signal.SIGTERM)
            (tmp_path / "platform.toml").write_text(text.replace("VERSION", version) + cache)
            node.start()
            node.nova("deploy")
            wait_for(lambda version=version: node.written("db")[-1] == version, "the expected data are written",
                     node.log)  # type: ignore[misc]
        assert (node.written("db"), node.podman("volume", "ls", "-q")) == (["1", "2"], "")
        node.nova("rollback", "db")
        wait_for(lambda: node.written("db") == ["1", "1"], "the expected data are written", node.log)
        # A container of an earlier release, with a volume without a name.
        node.kill(signal.SIGTERM)
        name = f"v{os.getpid()}-db"
        image = node.podman("inspect", "--format", "{{.Image}}", name).strip()
        node.podman("rm", "-f", name)
        node.podman("create", "--name", name, "--label", f"io.nova.platform=v{os.getpid()}", "--label",
                    "io.nova.component=db", "--network", "host", "--volume", "/old", "--image-volume", "ignore", image)
        node.start()
        old = node.podman("volume", "ls", "-q")
        node.nova("remove", "--yes")
        assert (len(old.split()), node.podman("ps", "-aq"), node.podman("volume", "ls", "-q")) == (1, "", old)
        node.nova("deploy")
        node.kill(signal.SIGTERM)
        node.podman("rm", "-f", name)
        node.podman("create", "--name", name, "--label", f"io.nova.platform=v{os.getpid()}", "--label",
                    "io.nova.component=db", "--network", "host", "--volume", "/new", "--image-volume", "ignore", image)
        node.start()
        node.nova("remove", "--yes", "--remove-volumes")
        assert (node.podman("ps", "-aq"), node.podman("volume", "ls", "-q")) == ("", old)
        node.podman("volume", "rm", *old.split())


@contextlib.contextmanager
def component_that_wrote(registry: Registry, tmp_path: pathlib.Path, lines: str) -> Iterator[Node]:
    """Start a node whose component web has the secret in $KEY and has run the shell commands ``lines``."""
    name = f"l{os.getpid()}"
    registry.push("writer", "1", program=f"{lines}echo end\nexec /bin/busybox sleep 1000\n")
    text = (f'name = "{name}"\n[secrets.key]\n[components.web]\nimage = "{registry.host}/writer"\nversion = "1"\n'
            'stop_timeout = 2\nenv = {KEY = "${secret:key}"}\n')
    with novad_node.node(tmp_path, text) as node:
        node.nova("deploy")
        wait_for(lambda: node.podman("logs", f"{name}-web").endswith("end\n"), "the component has written its log",
                 node.log)
        yield node


def test_secret_split_by_podmans_log_line_limit_is_masked(registry: Registry, tmp_path: pathlib.Path) -> None:
    """podman splits lines at 8 KiB. Each line has the secret at a different offset around that limit."""
    lines = ("for start in $(/bin/busybox seq 8152 8196); do\n/bin/busybox printf %0${start}d 0\necho \"$KEY\"\n"
             "echo between >&2\ndone\n")
    with component_that_wrote(registry, tmp_path, lines) as node:
        value = (node.data / "secrets" / "key").read_text()
        shown = node.nova("service-logs", "web", "--no-follow", "--tail", "1000").stdout.splitlines()
        assert longest("".join(line for line in shown if line != "between"), value) <= SHOWN
        assert len([line for line in shown if line.endswith(MASK)]) == 45, [line[-50:] for line in shown]


def test_secret_written_in_parts_is_masked_in_the_log_tail(registry: Registry, tmp_path: pathlib.Path) -> None:
    """podman's own tail would return such parts in another order."""
    half, pause = "?" * 16, "/bin/busybox sleep 0.2\n"
    lines = (f'for line in 1 2 3; do\n/bin/busybox printf %s "$line ${{KEY%{half}}}"\n{pause}'
             f'echo between >&2\n{pause}echo "${{KEY#{half}}}"\n{pause}done\n')
    with component_that_wrote(registry, tmp_path, lines) as node:
        for how in ("--no-follow", "--follow"):
            with subprocess.Popen(node.command("service-logs", "web", how, "--tail", "6"), stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, env=node.environment()) as client:
                assert client.stdout is not None
                shown = [line.rstrip("\n") for line in itertools.islice(client.stdout, 6)]
                client.kill()
            assert shown == [f"1 {MASK}", "between", f"2 {MASK}", "between", f"3 {MASK}", "end"], how


def test_killed_container_is_restarted_and_a_removed_one_recreated(node: Node) -> None:
    node.nova("deploy")
    node.podman("kill", f"{node.name}-db")  # type: ignore[attr-defined]
    wait_for(lambda: node.written("db") == ["1", "1"], "the database container runs again", node.log)
    node.podman("rm", "-f", f"{node.name}-web")  # type: ignore[attr-defined]
    wait_for(lambda: node.written("web") == ["1", "1"], "the web container runs again", node.log)
    wait_for(lambda: versions(node) == {"db": "1", "web": "1"}, "both", node.log)


@pytest.mark.slow
def test_containers_keep_running_without_novad(node: Node) -> None:
    node.nova("deploy")
    node.kill(signal.SIGTERM)
    node.start()
    assert (versions(node), node.written("db")) == ({"db": "1", "web": "1"}, ["1"])


@pytest.mark.parametrize("moment", ["db: starting", *(pytest.param(moment, marks=pytest.mark.slow) for moment in (
    "db: fetching", "db: backing up", "web: waiting until"))])
def test_deployment_is_rolled_back_after_novad_was_killed(node: Node, moment: str) -> None:
    node.nova("deploy")
    before = {name: node.written(name) for name in ("db", "web")}
    with subprocess.Popen(node.command("deploy", "db=2", "web=2"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, env=node.environment()) as client:
        assert client.stdout is not None
        assert any(moment in line for line in client.stdout)
        node.kill()
    node.start()
    wait_for(lambda: "undone" in node.nova("history").stdout and versions(node) == {"db": "1", "web": "1"},
             "the previous version is running", node.log)
    for name, written in before.items():
        assert node.written(name)[:1] == written
        assert set(node.written(name)) == {"1"}
    node.nova("deploy", "db=2", "web=2")
    assert versions(node) == {"db": "2", "web": "2"}
