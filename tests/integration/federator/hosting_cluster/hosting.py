"""A hosting cluster with three nodes and two workload clusters that run pods, and what their provider would supply.

Substitutes: the address of a load balancer is that of the cluster, where kube-proxy receives its port; volumes are
local directories; the three nodes have labels of different zones but share one network namespace; images that
tools/images builds are loaded under the names in the manifests, Kubernetes in the version of tools/kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import subprocess
import threading
from collections.abc import Iterator, Sequence

from nova import __version__
from nova.common.errors import ReportedError
from nova.federator.client import manifests
from nova.federator.client.manifests import Settings
from nova.federator.kube.client import Api
from nova.federator.local.images import write_archive
from nova.federator.local.whole import WholeCluster
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster
from tests.paths import ROOT

CONTEXTS = ("kind-cp", "kind-workload-1", "kind-workload-2")
_OUTPUT = pathlib.Path(os.environ.get("NOVA_IMAGES", "/var/lib/nova-images"))  # reused by the next run
_AGENT = "nova-federator"
_BUILT = (_AGENT, "etcd", "kube-apiserver", "kube-controller-manager")


def start(directory: pathlib.Path, contexts: Sequence[str] = CONTEXTS, nodes: int = 3) -> list[Cluster]:
    """Start the clusters of contexts, with a network between them. ``nodes``: of the hosting cluster, the first one."""
    archives = _build_images(directory)
    indexes = random.SystemRandom().sample(range(251), len(contexts))
    started = clusters.start([
        WholeCluster(directory / name, name, index, clusters.WHOLE_OPTIONS, nodes=1 if name != CONTEXTS[0] else nodes)
        for name, index in zip(contexts, indexes, strict=True)])
    try:
        for workload in started[1:]:
            _connect(started[0], workload)
        asyncio.run(_load_images(started, *archives))
        _prepare_nodes(started[0])
    except BaseException:
        clusters.remove(started)
        raise
    return started


def _connect(hosting: Cluster, workload: Cluster) -> None:
    """Connect the networks of two clusters: the workload cluster reaches the address of the hosting cluster."""
    assert isinstance(hosting.local, WholeCluster)
    assert isinstance(workload.local, WholeCluster)
    number = workload.local.address.split(".")[2]
    near, far = f"10.201.{number}.1", f"10.201.{number}.2"
    hosts, works = hosting.local.namespace, workload.local.namespace
    for command in (f"link add link{number} netns {hosts} type veth peer name hosting netns {works}",
                    f"-netns {hosts} address add {near}/30 dev link{number}",
                    f"-netns {hosts} link set link{number} up",
                    f"-netns {works} address add {far}/30 dev hosting", f"-netns {works} link set hosting up",
                    f"-netns {works} route add {hosting.local.address} via {near}"):
        subprocess.run(["ip", *command.split()], check=True)


def _build_images(directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Return archives of the images for the hosting cluster, and for workload clusters."""
    done = subprocess.run([ROOT / "tools/images/build.sh"], capture_output=True, text=True, check=False, timeout=1800,
                          env={**os.environ, "OUTPUT": str(_OUTPUT), "PUSH": "False", "IMAGES": " ".join(_BUILT)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    used = {container["image"] for obj in (*manifests.control_plane(Settings()), *manifests.agent(Settings()))
            for container in obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())}
    names = {f"nova/{name}:{__version__}": next(_registry(image) for image in used if f"/{name}:" in image)
             for name in _BUILT}
    assert len(names) == len(used), used
    everything, agent = directory / "images.tar", directory / "agent.tar"
    write_archive(_OUTPUT / "oci", names, everything)
    write_archive(_OUTPUT / "oci", {name: names[name] for name in names if f"/{_AGENT}:" in name}, agent)
    return everything, agent


async def _load_images(started: list[Cluster], everything: pathlib.Path, agent: pathlib.Path) -> None:
    for cluster in started:
        assert isinstance(cluster.local, WholeCluster)
        await cluster.local.import_images(agent if cluster is not started[0] else everything)


def _registry(image: str) -> str:
    """Return the full name of an image, as container runtimes complete it."""
    return image if "." in image.partition("/")[0] else f"docker.io/{image}"


def _prepare_nodes(hosting: Cluster) -> None:
    """Put the nodes into three zones, and create the default storage class."""
    hosting.apply({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {
        "name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"})
    for number, node in enumerate(hosting.get("nodes")["items"]):
        hosting.kubectl("label", "node", node["metadata"]["name"], f"topology.kubernetes.io/zone=zone-{number}")


def add_volumes(hosting: Cluster, directory: pathlib.Path) -> None:
    """Give each node an empty volume of the default storage class."""
    for number, node in enumerate(hosting.get("nodes")["items"]):
        name = node["metadata"]["name"]
        path = directory / f"volume-{number}"
        path.mkdir(exist_ok=True)
        place = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
        hosting.apply({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{number}"}, "spec": {
                "capacity": {"storage": "50Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "local": {"path": str(path)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}}}})


@contextlib.contextmanager
def load_balancer(cluster: Cluster) -> Iterator[None]:
    """Give each Service of the type LoadBalancer the address of the cluster."""
    ended = threading.Event()

    async def assign() -> None:
        assert isinstance(cluster.local, WholeCluster)
        status = {"status": {"loadBalancer": {"ingress": [{"ip": cluster.local.address}]}}}
        async with Api(cluster.config) as api:
            while not ended.is_set():
                with contextlib.suppress(ReportedError):
                    for service in (await api.list("/api/v1/services"))["items"]:
                        metadata = service["metadata"]
                        if service["spec"]["type"] == "LoadBalancer" and not service["status"]["loadBalancer"]:
                            await api.patch(f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}"
                                            "/status", status)
                await asyncio.sleep(0.3)

    thread = threading.Thread(target=asyncio.run, args=(assign(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
