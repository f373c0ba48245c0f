"""Real Kubernetes clusters of tests: a control plane of Nova, members with fake nodes, whole clusters with pods."""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from nova.federator.kube.config import Kubeconfig
from nova.federator.local.cluster import ClusterOptions, LocalCluster
from nova.federator.local.fake_nodes import NodeOptions
from nova.federator.local.whole import WholeCluster
from tests.paths import ROOT
from tests.polling import poll

# The processes end with the process of the tests, even if it is killed.
END_WITH_TESTS = ("setpriv", "--pdeathsig", "KILL")
_FIRST = random.SystemRandom().randrange(0, 250, 2)  # parallel runs on a machine rarely choose the same
WHOLE = {"whole-1": _FIRST, "whole-2": _FIRST + 1}  # name -> index, which is part of its addresses
# Whole clusters reach the control plane at an address of this machine in their network.
CONTROL_PLANE = ClusterOptions(nova=True, fsync=False, small=True, prefix=END_WITH_TESTS, address="0.0.0.0",
                               hosts=tuple(f"10.200.{index}.1" for index in WHOLE.values()))
MEMBER = ClusterOptions(controllers=True, scheduler=True, nodes=NodeOptions(count=2), fsync=False, small=True,
                        prefix=END_WITH_TESTS)
WHOLE_OPTIONS = ClusterOptions(fsync=False, small=True, prefix=END_WITH_TESTS)
CRDS = [ROOT / "nova/federator/install/base/control-plane" / name for name in ("nova_crds.yaml", "schedule_crds.yaml")]
RUNNING: list[Cluster] = []
_START = 180.0  # seconds, on a machine with a load of 20 to 40


class Cluster:
    """A cluster, with the verbs that tests need."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.name, self.kubeconfig = local.name, local.kubeconfig
        self.separated = False

    @property
    def config(self) -> Kubeconfig:
        return self.local.config

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: int = 60) -> str:
        """Run kubectl and return its output. ``check=False``: return errors instead of raising AssertionError."""
        command = [self.local.binaries.path("kubectl"), f"--kubeconfig={self.kubeconfig}", "--request-timeout=30s",
                   f"--cache-dir={self.local.directory / 'discovery'}", *arguments]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        if check:
            assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout if check else result.stdout + result.stderr

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return the JSON that ``kubectl get`` prints."""
        result: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return result

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def cut(self) -> None:
        """Freeze the API server: connections stay open, and no request is answered. Of a whole cluster, drop all
        packets from and to the machine instead, while its parts and pods go on."""
        if isinstance(self.local, WholeCluster):
            asyncio.run(self.local.cut())
        else:
            assert self.local.processes.signal("kube-apiserver", signal.SIGSTOP)
        self.separated = True

    def heal(self) -> None:
        if isinstance(self.local, WholeCluster):
            asyncio.run(self.local.heal())
        else:
            assert self.local.processes.signal("kube-apiserver", signal.SIGCONT)
        self.separated = False

    def config_inside(self, cluster: Cluster) -> Kubeconfig:
        """Return the credentials of this cluster with the address at which a whole cluster reaches it."""
        assert isinstance(cluster.local, WholeCluster)
        port = self.config.server.rpartition(":")[2]
        return msgspec.structs.replace(self.config, server=f"https://{cluster.local.gateway}:{port}")

    def run_inside(self, *command: str, timeout: int = 30) -> str:
        """Run a command in the network namespace of a whole cluster and return its output, also if it fails."""
        assert isinstance(self.local, WholeCluster)
        return subprocess.run(["nsenter", f"--net=/run/netns/{self.local.namespace}", *command], check=False, text=True,
                              capture_output=True, timeout=timeout).stdout

    def kill(self, part: str = "kube-apiserver") -> None:
        assert self.local.processes.signal(part, signal.SIGKILL)

    def logs(self) -> Iterator[tuple[str, str]]:
        for name in self.local.processes.names():
            yield f"{name} of cluster {self.name}", self.local.processes.log_tail(name)


def merge(contexts: Mapping[str, Kubeconfig]) -> str:
    """Return a kubeconfig with several contexts; the first is the current one."""
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": next(iter(contexts)),
                              "clusters": [], "contexts": [], "users": []}
    for name, config in contexts.items():
        document = yaml.safe_load(config.render(name))
        merged["clusters"].append({**document["clusters"][0], "name": name})
        merged["users"].append({**document["users"][0], "name": name})
        merged["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    return yaml.safe_dump(merged)


def start(clusters: Sequence[LocalCluster]) -> list[Cluster]:
    """Start clusters in parallel; if a cluster fails, remove all of them."""
    async def start_all() -> None:
        results = await asyncio.gather(*(local.start(_START) for local in clusters), return_exceptions=True)
        if errors := [result for result in results if result is not None]:
            await asyncio.gather(*(local.remove() for local in clusters))
            raise errors[0]
    asyncio.run(start_all())
    started = [Cluster(local) for local in clusters]
    RUNNING.extend(started)
    return started


def remove(clusters: Sequence[Cluster]) -> None:
    async def remove_all() -> None:
        await asyncio.gather(*(cluster.local.remove() for cluster in clusters))
    asyncio.run(remove_all())
    for cluster in clusters:
        RUNNING.remove(cluster)


def start_control_plane(directory: pathlib.Path, small: bool = True) -> Cluster:
    """Start a control plane of Nova and install the custom resources. ``small``: see ClusterOptions."""
    return install_definitions(start([LocalCluster(directory, "nova", msgspec.structs.replace(
        CONTROL_PLANE, small=small))])[0])


def install_definitions(cluster: Cluster) -> Cluster:
    """Install the custom resources in a cluster, and return it."""
    if files := [path for path in CRDS if path.exists()]:
        cluster.kubectl("apply", *(f"--filename={path}" for path in files))
        until(lambda: "rror" not in cluster.kubectl(  # fails while a definition has no condition yet
            "wait", "--for=condition=Established", "customresourcedefinition", "--all", check=False))
    return cluster


def deployment(name: str, replicas: int = 1, namespace: str = "default", labels: dict[str, str] | None = None,
               annotations: dict[str, str] | None = None, pod_annotations: dict[str, str] | None = None,
               cpu: str = "10m", memory: str = "16Mi") -> dict[str, Any]:
    """Return a Deployment of the image lab.local/web:1, which whole clusters have."""
    container = {"name": "web", "image": "lab.local/web:1", "ports": [{"containerPort": 8080}],
                 "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    selector = {"app": name}
    return {"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace, "labels": {**selector, **(labels or {})},
                         "annotations": annotations or {}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": selector},
                     "template": {"metadata": {"labels": selector, "annotations": pod_annotations or {}},
                                  "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}}}


def job(name: str, namespace: str = "default", pod_annotations: dict[str, str] | None = None,
        retries: int = 0) -> dict[str, Any]:
    container = {"name": "job", "image": "lab.local/web:1", "command": ["true"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace},
            "spec": {"backoffLimit": retries,
                     "template": {"metadata": {"annotations": pod_annotations or {}},
                                  "spec": {"restartPolicy": "Never", "containers": [container]}}}}


def until(condition: Callable[[], Any], timeout: float = 60.0, interval: float = 0.1) -> Any:
    """Return the first true result of the condition. Raises AssertionError after ``timeout`` seconds."""
    result = poll(condition, timeout, interval)
    assert result, f"no result within {timeout} s"
    return result
