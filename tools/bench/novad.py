"""novad with real containers: time of a deployment, memory of the daemon, and completeness of followed logs.

Requires root, podman and docker-registry; otherwise nothing is measured. The deployment of the Nova suite needs its
images in a registry (tools/images/build.sh); NOVA_BENCH_PLATFORM: another platform file.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import statistics
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import psutil

from nova.novad import platform
from nova.novad.api import novad_pb2 as pb
from nova.novad.client import Client
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry
from tools.bench.amounts import Amounts

READERS = 10
_REST = 12.0  # seconds after which temporary memory is released
_SUITE = pathlib.Path(__file__).parents[2] / "etc/novad/nova.yaml"
# Prints a little more than a thousand numbered lines each second: the shell itself takes its time for them.
_TALKER = """\
n=0
while true; do
    i=0
    while [ $i -lt 115 ]; do n=$((n + 1)); i=$((i + 1)); echo "$n a line of a component that says a lot"; done
    /bin/busybox usleep 85000
done
"""
_PLATFORM = """\
name = "{name}"
[components.one]
image = "{host}/toy"
version = "1"
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 5, timeout = 5, start = 20}}
stop_timeout = 1
[components.talker]
image = "{host}/talker"
version = "1"
stop_timeout = 1
"""


def measure(amounts: Amounts) -> dict[str, Any]:
    """Return the measurements of novad.

    ``novad_deploy_s``: deployment of a component at a new version, without its stop timeout; ``novad_rss_mb``: memory
    when idle afterwards; ``novad_log_lines_per_s``: the slowest of ten readers; ``novad_log_lost``: most lines that a
    reader missed.
    """
    if reason := novad_node.missing():
        print(f"  novad is not measured: {reason}", flush=True)
        return {}
    with tempfile.TemporaryDirectory(prefix="novad-bench-") as folder:
        place = pathlib.Path(folder)
        for name in ("registry", "node"):
            (place / name).mkdir()
        registry = Registry(place / "registry")
        try:
            for version in "123":
                registry.push("toy", version)
            registry.push("talker", "1", program=_TALKER)
            with novad_node.node(place / "node", _PLATFORM.format(name=f"b{os.getpid()}", host=registry.host)) as node:
                results = _measured(node, amounts)
            return results | (_suite(place) if amounts.suite else {})
        finally:
            registry.stop()


def _measured(node: Node, amounts: Amounts) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with _client(node) as client:
        _deploy(client, "one=1", "talker=1")
        results["novad_deploy_s"] = round(statistics.median(
            _deploy(client, f"one={'23'[number % 2]}") for number in range(3)), 2)
    results |= _logs(node, amounts.read * 4)
    assert node.process is not None
    time.sleep(min(_REST, amounts.read * 10))
    results["novad_rss_mb"] = round(psutil.Process(node.process.pid).memory_info().rss / 2**20, 1)
    for name, value in results.items():
        print(f"  {name:26} {value:10.2f}", flush=True)
    return results


@contextlib.contextmanager
def _client(node: Node) -> Iterator[Client]:
    client = Client(node.address, node.environment()["NOVA_SHARED_SECRET"], {})
    try:
        yield client
    finally:
        client.close()


def _deploy(client: Client, *words: str) -> float:
    """Deploy components; return the seconds until completion."""
    began = time.monotonic()
    for _progress in client.follow(client.platform.Deploy, pb.DeployRequest(components=[
            pb.ComponentVersion(component=name, version=version)
            for name, _sign, version in (word.partition("=") for word in words)])):
        pass
    return time.monotonic() - began


def _logs(node: Node, seconds: float) -> dict[str, Any]:
    """Measure concurrent readers of a log, each with its own connection."""
    results: list[tuple[float, int]] = []
    begin = threading.Barrier(READERS)

    def read() -> None:
        with _client(node) as client:
            begin.wait(30)
            results.append(_read(client, seconds))

    threads = [threading.Thread(target=read) for _number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) < READERS:
        raise AssertionError(f"{READERS - len(results)} readers of logs failed")
    return {"novad_log_lines_per_s": round(min(rate for rate, _lost in results), 1),
            "novad_log_lost": max(lost for _rate, lost in results)}


def _read(client: Client, seconds: float) -> tuple[float, int]:
    """Return the lines per second and the number of missing lines between the first and the last one.

    The first message is skipped: podman may lose lines between the history and the followed log.
    """
    stream = client.follow(client.logs.Read, pb.LogsRequest(name="talker", follow=True, tail=1))
    numbers: list[int] = []
    began = 0.0
    with contextlib.closing(stream):  # type: ignore[type-var]
        next(stream)
        for some in stream:
            numbers += [int(line.split(" ", 1)[0]) for line in some.text.split("\n")]
            began = began or time.monotonic()
            if time.monotonic() > began + seconds:
                break
    took = time.monotonic() - began
    return (len(numbers) - 1) / took, numbers[-1] - numbers[0] + 1 - len(numbers)


def _suite(place: pathlib.Path) -> dict[str, Any]:
    """Return ``novad_suite_s``: the deployment of the whole suite on a node without its images."""
    path = pathlib.Path(os.environ.get("NOVA_BENCH_PLATFORM") or _SUITE)
    if not path.exists() or not _registry_has(path):
        print("  the suite is not measured: its images are missing (tools/images/build.sh)", flush=True)
        return {}
    (place / "suite").mkdir()
    with novad_node.node(place / "suite", json.dumps({"base": str(path), "name": f"s{os.getpid()}"}), "yaml") as node:
        try:
            with _client(node) as client:
                took = round(_deploy(client), 1)
        except grpc.RpcError as error:
            raise AssertionError(f"deployment of the suite failed: {error.details()}") from None
    print(f"  {'novad_suite_s':26} {took:10.2f}", flush=True)
    return {"novad_suite_s": took}


def _registry_has(path: pathlib.Path) -> bool:
    """Return True if the registry has the first image of the platform file."""
    component = next(iter(platform.load(path).components.values()))
    host, _slash, name = component.image.partition("/")
    try:
        with urllib.request.urlopen(f"http://{host}/v2/{urllib.parse.quote(name)}/tags/list", timeout=3) as answer:
            return component.tag.encode() in answer.read(1 << 20)
    except (OSError, ValueError):
        return False
