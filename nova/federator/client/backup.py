"""Backup and restoration of a control plane in a hosting cluster: a snapshot of etcd.

A restoration stops all components, replaces the data of each member of etcd by a pod that mounts its volume, and starts
the components again. It can be interrupted and repeated: replicas are noted in annotations until the end.
"""

import asyncio
import base64
import hashlib
import json
import os
import pathlib
import ssl
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from nova.common.errors import Invalid, ReportedError
from nova.federator.api import times
from nova.federator.api.objects import holds
from nova.federator.client import certificates, manifests
from nova.federator.client.installation import Reporter
from nova.federator.kube.client import Api, Object
from nova.federator.kube.streams import execute, forward

REPLICAS = "nova.elotl.co/replicas"  # annotation of a component that is stopped for a restoration
_PORT = 2379
_HASH = 32  # bytes of the SHA-256 at the end of a snapshot
_PAGE = 512  # bytes; the data of a snapshot are a multiple
_BLOCK = 1 << 20  # bytes of a snapshot, which can have gigabytes, that are in memory
_POLL = 0.5
_TIMEOUT = 360.0  # seconds for each component, and for each member of etcd
_SEND = "cat > /transfer/snapshot.db && touch /transfer/complete"
_RECEIVE = "until [ -e /transfer/complete ]; do sleep 0.2; done; rm -rf /var/lib/etcd/restored"
# Runs in the folder of the volume. $0: a new name for the present data. Retains the last three.
REPLACE = """if [ -e data ]; then mv data "$0"; fi; mv restored data
for old in $(ls -d replaced-* 2>/dev/null | sort -r | tail -n +4); do rm -rf "$old"; done"""


async def save(hosting: Api, namespace: str, target: pathlib.Path, report: Reporter) -> None:
    """Store a snapshot of etcd in a file of mode 0600. Raises ReportedError, ApiError."""
    pod = await _ready_member(hosting, namespace)
    report(f"Reading the data of {pod}")
    files = {name: certificates.files_of(await hosting.get(f"/api/v1/namespaces/{namespace}/secrets/{name}"))
             for name in (certificates.CONTROL_PLANE, certificates.ETCD)}
    try:
        handle, name = tempfile.mkstemp(prefix=".new-", dir=target.parent)  # mode 0600; no other process has the file
    except OSError as error:
        raise Invalid(f"Cannot write to {target.parent}: {error.strerror}.") from None
    os.close(handle)
    draft = pathlib.Path(name)
    try:
        async with forward(hosting.config, namespace, pod, _PORT) as port:
            await _download(f"https://127.0.0.1:{port}", _login(files), draft)
        check(draft)
        draft.replace(target)
    except OSError as error:
        raise ReportedError(f"The backup was not stored in {target}: {error.strerror}.") from None
    finally:
        draft.unlink(missing_ok=True)


def check(snapshot: pathlib.Path) -> None:
    """Raise Invalid if a file is no complete snapshot."""
    try:
        with snapshot.open("rb") as file:
            left = size = os.fstat(file.fileno()).st_size - _HASH
            digest = hashlib.sha256()
            while left > 0 and (block := file.read(min(left, _BLOCK))):
                digest.update(block)
                left -= len(block)
            stored = file.read(_HASH)
    except OSError as error:
        raise Invalid(f"Cannot read {snapshot}: {error.strerror}.") from None
    if size <= 0 or size % _PAGE or digest.digest() != stored:
        raise Invalid(f"{snapshot} is no complete backup.")


async def _ready_member(hosting: Api, namespace: str) -> str:
    pods = await hosting.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="app=etcd")
    for pod in pods["items"]:
        if holds(pod.get("status"), "Ready"):
            return str(pod["metadata"]["name"])
    raise ReportedError(f"No pod of etcd in namespace {namespace} is ready.")


def _login(files: Mapping[str, Mapping[str, bytes]]) -> ssl.SSLContext:
    """Return the TLS settings of the API server as a client of etcd."""
    own = files[certificates.CONTROL_PLANE]
    context = ssl.create_default_context(cadata=files[certificates.ETCD]["ca.crt"].decode())
    with tempfile.NamedTemporaryFile(prefix="nova-") as file:  # mode 0600; ssl reads files only
        file.write(own["apiserver-etcd-client.crt"] + b"\n" + own["apiserver-etcd-client.key"])
        file.flush()
        context.load_cert_chain(file.name)
    return context


async def _download(server: str, login: ssl.SSLContext, target: pathlib.Path) -> None:
    """Write the snapshot that etcd sends as lines of JSON with encoded blocks."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60.0)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=login), timeout=timeout) as session:
            async with session.post(f"{server}/v3/maintenance/snapshot", json={}, read_bufsize=1 << 20) as response:
                if response.status != 200:
                    raise ReportedError(f"etcd sends no snapshot: {(await response.text())[:300]}")
                with target.open("wb") as file:
                    while line := await response.content.readline():
                        message = json.loads(line)
                        if "result" not in message:
                            raise ReportedError(f"etcd ended the snapshot: {message.get('error')}")
                        file.write(base64.b64decode(message["result"].get("blob", "")))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ReportedError(f"The snapshot of etcd was not received: {error}") from None


class Restoration:
    """The restoration of a control plane. Methods raise ReportedError and ApiError."""

    def __init__(self, hosting: Api, namespace: str, snapshot: pathlib.Path, report: Reporter) -> None:
        self.hosting, self.namespace, self.snapshot, self.report = hosting, namespace, snapshot, report
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def run(self) -> None:
        """Replace the data of the control plane by the snapshot."""
        check(self.snapshot)
        etcd = await self._workload("statefulsets", "etcd")
        scheduler = await self._workload("deployments", "nova-scheduler")
        self.report("Stopping the control plane")
        for plural, name, _title in reversed(manifests.COMPONENTS):
            await self._stop(plural, name)
        await self._wait_ended()
        image = scheduler["spec"]["template"]["spec"]["containers"][0]["image"]
        members = _members(etcd, self.namespace)
        former = f"replaced-{times.now()}"
        self.report(f"Restoring {len(members)} members of etcd")
        await asyncio.gather(*(self._restore(_pod(etcd, image, name, members, former)) for name in members))
        self.report("Starting the control plane")
        for plural, name, _title in manifests.COMPONENTS:
            await self._start(plural, name)
            await manifests.wait_ready(self.hosting, self.namespace, plural, name, _TIMEOUT)

    def _path(self, plural: str, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/{plural}/{name}"

    async def _workload(self, plural: str, name: str) -> Object:
        workload = await self.hosting.find(self._path(plural, name))
        if workload is None:
            raise Invalid(f"Namespace {self.namespace} of {self.hosting.config.server} has no {name}: is this the"
                          " hosting cluster, and its namespace?")
        return workload

    async def _stop(self, plural: str, name: str) -> None:
        workload = await self._workload(plural, name)
        if REPLICAS not in (workload["metadata"].get("annotations") or {}):
            await self.hosting.patch(self._path(plural, name), {
                "metadata": {"annotations": {REPLICAS: str(workload["spec"]["replicas"])}}, "spec": {"replicas": 0}})

    async def _start(self, plural: str, name: str) -> None:
        annotations = (await self._workload(plural, name))["metadata"].get("annotations") or {}
        if REPLICAS in annotations:
            await self.hosting.patch(self._path(plural, name), {
                "metadata": {"annotations": {REPLICAS: None}}, "spec": {"replicas": int(annotations[REPLICAS])}})

    async def _wait_ended(self) -> None:
        """Wait until no pod uses the volumes of etcd."""
        deadline = time.monotonic() + _TIMEOUT
        while pods := (await self.hosting.list(self._pods, labelSelector="app=etcd"))["items"]:
            if time.monotonic() > deadline:
                raise ReportedError(f"Pod {pods[0]['metadata']['name']} did not end within {_TIMEOUT:.0f} s.")
            await asyncio.sleep(_POLL)

    async def _restore(self, pod: Object) -> None:
        """Run the pod that restores a member."""
        name = pod["metadata"]["name"]
        path = f"{self._pods}/{name}"
        await self._remove(path)
        await self.hosting.create(self._pods, pod)
        await self._wait(path, "receive")
        await execute(self.hosting.config, self.namespace, name, "receive", _SEND, self.snapshot)
        await self._wait(path, "")
        await self._remove(path)

    async def _remove(self, path: str) -> None:
        await self.hosting.remove(path)
        while await self.hosting.find(path):
            await asyncio.sleep(_POLL)

    async def _wait(self, path: str, container: str) -> None:
        """Wait until an init container runs, or until the pod has ended if the name is empty."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            status = (await self.hosting.get(path)).get("status", {})
            states = {entry["name"]: entry["state"] for field in ("initContainerStatuses", "containerStatuses")
                      for entry in status.get(field, ())}
            if status.get("phase") == "Succeeded" or "running" in states.get(container, {}):
                return
            if status.get("phase") == "Failed" or time.monotonic() > deadline:
                raise ReportedError(f"{path.rpartition('/')[2]} restored nothing: {json.dumps(states)[:500]}")
            await asyncio.sleep(_POLL)


def _members(etcd: Object, namespace: str) -> dict[str, str]:
    """Return the names and addresses of the members of etcd. Raises Invalid."""
    variables = {entry["name"]: entry.get("value", "")
                 for entry in etcd["spec"]["template"]["spec"]["containers"][0].get("env", ())}
    initial = variables.get("INITIAL_CLUSTER", "").replace("$(POD_NAMESPACE)", namespace)
    members = dict(entry.split("=", 1) for entry in initial.split(",") if "=" in entry)
    if not members:
        raise Invalid(f"StatefulSet {namespace}/etcd has no variable INITIAL_CLUSTER.")
    return members


def _pod(etcd: Object, image: str, member: str, members: Mapping[str, str], former: str) -> dict[str, Any]:
    """Return a pod that receives a snapshot, makes it the data of a member, and renames its previous data."""
    initial = ",".join(f"{name}={address}" for name, address in members.items())
    mounts = [{"name": "data", "mountPath": "/var/lib/etcd"}, {"name": "transfer", "mountPath": "/transfer"}]
    spec = etcd["spec"]["template"]["spec"]

    def container(name: str, image: str, *command: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "image": image, "command": list(command), "volumeMounts": mounts, **fields}

    return {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": f"restore-{member}", "namespace": etcd["metadata"]["namespace"]}, "spec": {
        "restartPolicy": "Never", "securityContext": {"runAsUser": 0}, "automountServiceAccountToken": False,
        "imagePullSecrets": spec.get("imagePullSecrets", []), "terminationGracePeriodSeconds": 1,
        "serviceAccountName": spec.get("serviceAccountName", "default"),
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"etcd-data-{member}"}},
                    {"name": "transfer", "emptyDir": {}}],
        "initContainers": [
            container("receive", image, "sh", "-c", _RECEIVE),
            container("restore", spec["containers"][0]["image"], "etcdctl", "snapshot", "restore",
                      "/transfer/snapshot.db", "--data-dir=/var/lib/etcd/restored", f"--name={member}",
                      f"--initial-cluster={initial}", "--initial-cluster-token=nova",
                      f"--initial-advertise-peer-urls={members[member]}",
                      env=[{"name": "ETCDCTL_API", "value": "3"}])],
        "containers": [container("replace", image, "sh", "-e", "-c", REPLACE, former, workingDir="/var/lib/etcd")]}}
