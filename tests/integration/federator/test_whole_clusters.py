"""Whole clusters on this machine run real pods, and can be cut off from the machine while their pods go on."""

from __future__ import annotations

import asyncio
import os
import pathlib
import random
import sys
import time

import aiohttp
import pytest

from nova.common.errors import ReportedError
from nova.federator.kube import streams
from tests.integration.federator.clusters import Cluster, deployment, until

pytestmark = [pytest.mark.root, pytest.mark.slow]


def fetch(cluster: Cluster, address: str) -> str:
    """Return the response to a request from the network of the cluster, or an empty text after an error."""
    script = ("import ssl, sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=2, "
              "context=ssl._create_unverified_context()).read().decode(), end='')")
    return cluster.run_inside(sys.executable, "-c", script, address)


def test_pods_answer_at_the_address_of_their_service(whole_clusters: list[Cluster]) -> None:
    for cluster in whole_clusters:
        cluster.apply(deployment("web", 2))
        cluster.kubectl("expose", "deployment", "web", "--port=80", "--target-port=8080")
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=120s", timeout=150)
        address = cluster.get("service", "web")["spec"]["clusterIP"]
        until(lambda cluster=cluster, address=address: fetch(cluster, f"http://{address}") == "1\n")
    pods = whole_clusters[0].get("pods", "-l", "app=web")["items"]
    pod = pods[0]["metadata"]["name"]
    assert whole_clusters[0].kubectl("exec", pod, "--", "hostname").strip() == pod
    for name in ("web", "web.default.svc.cluster.local"):
        assert whole_clusters[0].kubectl("exec", pod, "--", "wget", "-qO-", f"http://{name}") == "1\n"


def test_control_plane_is_reachable_inside(whole_clusters: list[Cluster], control_plane: Cluster) -> None:
    """An agent in the network of the workload cluster reaches the control plane until the cluster is cut off."""
    config = control_plane.config_inside(whole_clusters[1])
    assert fetch(whole_clusters[1], f"{config.server}/readyz") == "ok"
    whole_clusters[1].cut()
    assert fetch(whole_clusters[1], f"{config.server}/readyz") == ""
    whole_clusters[1].heal()
    assert fetch(whole_clusters[1], f"{config.server}/readyz") == "ok"


def test_pods_go_on_while_the_cluster_is_cut_off(whole_clusters: list[Cluster], tmp_path: pathlib.Path) -> None:
    """A pod writes to the disk of the machine each second. Its API server answers nobody outside until it is healed."""
    cluster = whole_clusters[0]
    lines = tmp_path / "lines"
    container = {"name": "c", "image": "lab.local/web:1", "volumeMounts": [{"name": "host", "mountPath": "/host"}],
                 "command": ["sh", "-c", "while :; do echo x >> /host/lines; sleep 0.2; done"]}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": {
        "terminationGracePeriodSeconds": 1, "volumes": [{"name": "host", "hostPath": {"path": str(tmp_path)}}],
        "containers": [container]}})
    until(lines.exists)
    cluster.cut()
    output = cluster.kubectl("get", "--raw=/readyz", "--request-timeout=2s", check=False)
    assert "Unable to connect" in output
    length = lines.stat().st_size
    until(lambda: lines.stat().st_size > length)
    cluster.heal()
    node, = cluster.get("nodes")["items"]
    assert {"True"} == {condition["status"] for condition in node["status"]["conditions"]
                        if condition["type"] == "Ready"}
    cluster.kubectl("delete", "pod", "writer", "--timeout=60s", timeout=90)
    length = lines.stat().st_size
    time.sleep(1)
    assert lines.stat().st_size == length


def test_commands_and_ports_of_pods_are_reachable_by_kubectl(
        whole_clusters: list[Cluster], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nova.federator.kube.streams: a command receives its input, and a connection is forwarded to a port."""
    cluster = whole_clusters[0]
    monkeypatch.setenv("PATH", f"{cluster.local.binaries.directory}:{os.environ['PATH']}")
    container = {"name": "web", "image": "lab.local/web:1"}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "streams"}, "spec": {
        "terminationGracePeriodSeconds": 1, "containers": [container]}})
    cluster.kubectl("wait", "pod/streams", "--for=condition=Ready", "--timeout=60s", timeout=90)
    source, data = tmp_path / "data", random.Random(0).randbytes(3_000_000)
    source.write_bytes(data)

    async def use() -> None:
        place = (cluster.config, "default", "streams")
        await streams.execute(*place, "web", "cat > /www/data && sync", source)
        with pytest.raises(ReportedError, match="in pod streams failed: sorry"):
            await streams.execute(*place, "web", "echo sorry >&2; false", source)
        async with streams.forward(*place, 8080) as port, aiohttp.ClientSession() as session:
            for _attempt in range(2):
                async with session.get(f"http://127.0.0.1:{port}/data") as response:
                    assert await response.read() == data
        with pytest.raises(ReportedError, match="cannot be reached"):
            async with streams.forward(cluster.config, "default", "missing", 8080):
                pass
    asyncio.run(use())
