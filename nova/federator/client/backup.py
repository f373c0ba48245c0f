"""Backup and restoration of a control plane in a hosting cluster: a snapshot of etcd.

A restoration stops all components. Pods that mount the volumes of etcd prepare the new data beside the present ones.
When all members are prepared, the data are exchanged, and the components start again. It can be interrupted and
repeated: annotations contain the replicas of stopped components, and whether the exchange has begun.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
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
# Annotation of etcd while the data of its members are being exchanged: the new name of the previous data.
REPLACED = "nova.elotl.co/replaced-data"
_PORT = 2379
_HASH = 32  # bytes of the SHA-256 at the end of a snapshot
_PAGE = 512  # bytes; the size of the data in a snapshot is a multiple of this
_BLOCK = 1 << 20  # bytes of a snapshot that are read at once; a snapshot can have gigabytes
_POLL = 0.5  # seconds between two checks
_TIMEOUT = 360.0  # timeout of each step for a component or a member of etcd, in seconds
_STOPPED = "Components of the control plane may be stopped. Remove the cause, if there is one, and repeat the command."
_SEND = "cat > /transfer/snapshot.db && touch /transfer/complete"
_CLEAN = "rm -rf /var/lib/etcd/restored"
_RECEIVE = f"{_CLEAN}; until [ -e /transfer/complete ]; do sleep 0.2; done"
_WAIT = "until [ -e /transfer/exchange ]; do sleep 0.2; done"
# Runs in the folder of the volume. $0: the new name of the previous data. If $0 exists, an interrupted restoration has
# created ``data``, which were never used. Keeps the three newest folders of previous data.
REPLACE = """if [ -e "$0" ]; then rm -rf data; elif [ -e data ]; then mv data "$0"; fi; mv restored data; sync
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
    """Raise Invalid if a file is not a complete snapshot."""
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
        raise Invalid(f"{snapshot} is not a complete backup.")


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
    """Write the snapshot to a file; etcd sends it as lines of JSON with encoded blocks."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60.0)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=login), timeout=timeout) as session:
            async with session.post(f"{server}/v3/maintenance/snapshot", json={}, read_bufsize=1 << 20) as response:
                if response.status != 200:
                    raise ReportedError(f"etcd refused to send a snapshot: {(await response.text())[:300]}")
                with target.open("wb") as file:
                    while line := await response.content.readline():
                        message = json.loads(line)
                        if "result" not in message:
                            raise ReportedError(f"etcd aborted the snapshot, no backup exists: {message.get('error')}")
                        file.write(base64.b64decode(message["result"].get("blob", "")))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ReportedError(f"The snapshot of etcd was not received: {error}") from None


class Unchanged(ReportedError):
    """A restoration failed before it replaced data, and the control plane runs again."""


class Restoration:
    """The restoration of a control plane. Methods raise ReportedError and ApiError."""

    def __init__(self, hosting: Api, namespace: str, snapshot: pathlib.Path, report: Reporter) -> None:
        self.hosting, self.namespace, self.snapshot, self.report = hosting, namespace, snapshot, report
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._created: dict[str, str] = {}  # the uid of each pod

    async def run(self) -> None:
        """Replace the data of the control plane by the snapshot."""
        check(self.snapshot)
        etcd = await self._workload("statefulsets", "etcd")
        scheduler = await self._workload("deployments", "nova-scheduler")
        image = scheduler["spec"]["template"]["spec"]["containers"][0]["image"]
        members = _members(etcd, self.namespace)
        self.report("Stopping the control plane")
        try:
            for plural, name, _title in reversed(manifests.COMPONENTS):
                await self._stop(plural, name, len(members))
            for plural, name, _title in manifests.COMPONENTS:
                await self._wait_ended(await self._workload(plural, name))
            notes = (await self._workload("statefulsets", "etcd"))["metadata"]["annotations"]
            replaced = notes.get(REPLACED) or f"replaced-{times.now()}"
            self.report(f"Restoring {len(members)} members of etcd")
            pods = [_pod(etcd, image, name, members, replaced) for name in members]
            await self._prepare_all(pods, REPLACED in notes)
            await self.hosting.patch(self._path("statefulsets", "etcd"), {
                "metadata": {"annotations": {REPLACED: replaced}}})
            await asyncio.gather(*(self._exchange(pod) for pod in pods))
            self.report("Starting the control plane")
            await self._start_all()
        except asyncio.CancelledError:
            self.report(_STOPPED)
            raise
        except Unchanged:
            raise
        except ReportedError as error:
            raise ReportedError(f"{error.message} {_STOPPED}") from None

    def _path(self, plural: str, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/{plural}/{name}"

    async def _workload(self, plural: str, name: str) -> Object:
        workload = await self.hosting.find(self._path(plural, name))
        if workload is None:
            raise Invalid(f"Namespace {self.namespace} of {self.hosting.config.server} has no {name}: is this the"
                          " hosting cluster, and its namespace?")
        return workload

    async def _stop(self, plural: str, name: str, default: int) -> None:
        """Stop a component. ``default``: number of replicas to store if it was stopped before. A component that runs
        despite the annotation REPLICAS was started by an operator after an interruption."""
        workload = await self._workload(plural, name)
        replicas = int(workload["spec"]["replicas"])
        if replicas or REPLICAS not in (workload["metadata"].get("annotations") or {}):
            await self.hosting.patch(self._path(plural, name), {
                "metadata": {"annotations": {REPLICAS: str(replicas or default), REPLACED: None}},
                "spec": {"replicas": 0}})

    async def _start_all(self) -> None:
        for plural, name, _title in manifests.COMPONENTS:
            annotations = (await self._workload(plural, name))["metadata"].get("annotations") or {}
            if REPLICAS in annotations:
                await self.hosting.patch(self._path(plural, name), {
                    "metadata": {"annotations": {REPLICAS: None, REPLACED: None}},
                    "spec": {"replicas": int(annotations[REPLICAS])}})
            await manifests.wait_ready(self.hosting, self.namespace, plural, name, _TIMEOUT)

    async def _wait_ended(self, workload: Object) -> None:
        """Wait until a component has no pods: pods of etcd use volumes, pods of other components cache data."""
        selector = ",".join(f"{key}={value}" for key, value in workload["spec"]["selector"]["matchLabels"].items())
        deadline = time.monotonic() + _TIMEOUT
        while pods := (await self.hosting.list(self._pods, labelSelector=selector))["items"]:
            if time.monotonic() > deadline:
                name = pods[0]["metadata"]["name"]
                raise ReportedError(f"Pod {name} did not end within {_TIMEOUT:.0f} s. If its node is lost, run 'kubectl"
                                    f" delete pod {name} -n {self.namespace} --force'; then repeat the command.")
            await asyncio.sleep(_POLL)

    async def _prepare_all(self, pods: Sequence[Object], exchanging: bool) -> None:
        """Prepare the data of all members. If that fails, start the components with their present data and raise
        Unchanged. ``exchanging``: an earlier attempt may have replaced data, so the components must not start."""
        results = await asyncio.gather(*(self._prepare(pod) for pod in pods), return_exceptions=True)
        for error in results:
            if isinstance(error, ReportedError):
                for pod in pods:
                    await self._discard(pod)
                if exchanging:
                    raise error
                self.report("Starting the control plane with its present data")
                await self._start_all()
                raise Unchanged(f"{error.message} The control plane runs with its previous data. Repeat the command"
                                " when the cause is removed.")
            if error is not None:
                raise error

    async def _prepare(self, pod: Object) -> None:
        """Create the pod of a member, send the snapshot, and wait until the new data exist beside the present data."""
        name = pod["metadata"]["name"]
        await self._remove(name)
        self._created[name] = (await self.hosting.create(self._pods, pod))["metadata"]["uid"]
        await self._wait(name, "receive", "running")
        await execute(self.hosting.config, self.namespace, name, "receive", _SEND, self.snapshot)
        await self._wait(name, "restore", "terminated")

    async def _exchange(self, pod: Object) -> None:
        """Replace the data of a member."""
        name = pod["metadata"]["name"]
        await self._execute(name, "touch /transfer/exchange")
        await self._wait(name, "exchange", "terminated")
        await self._remove(name)

    async def _discard(self, pod: Object) -> None:
        """Remove prepared data, which may fill the volume, and the pod. Raises ReportedError if the pod belongs to
        another call of the command: its exchange must not be disturbed."""
        name = pod["metadata"]["name"]
        stored = await self.hosting.find(f"{self._pods}/{name}")
        if (stored or {"metadata": {}})["metadata"].get("uid") != self._created.get(name):
            raise ReportedError(f"Pod {name} was replaced: another restoration runs.")
        if stored:
            with contextlib.suppress(ReportedError):  # the container does not run yet
                await self._execute(name, _CLEAN)
            await self._remove(name)

    async def _execute(self, pod: str, command: str) -> None:
        await execute(self.hosting.config, self.namespace, pod, "exchange", command, pathlib.Path(os.devnull))

    async def _remove(self, pod: str) -> None:
        await self.hosting.remove(f"{self._pods}/{pod}")
        while await self.hosting.find(f"{self._pods}/{pod}"):
            await asyncio.sleep(_POLL)

    async def _wait(self, pod: str, container: str, state: str) -> None:
        """Wait until a container is "running" or "terminated". Raises ReportedError if a container has failed."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            status = (await self.hosting.get(f"{self._pods}/{pod}")).get("status", {})
            states = {entry["name"]: entry["state"] for field in ("initContainerStatuses", "containerStatuses")
                      for entry in status.get(field, ())}
            for name, ended in ((name, entry["terminated"]) for name, entry in states.items() if "terminated" in entry):
                if ended["exitCode"]:
                    lines = (ended.get("message") or "").strip().splitlines() or [str(ended.get("reason"))]
                    raise ReportedError(f"Container {name} of pod {pod} failed: {lines[-1][:300]}.")
            if state in states.get(container, {}):
                return
            if time.monotonic() > deadline:
                raise ReportedError(f"Container {container} of pod {pod} was not {state} within {_TIMEOUT:.0f} s:"
                                    f" {json.dumps(states or status)[:500]}.")
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
    """Return a pod that receives a snapshot, creates the data of a member from it, and exchanges the data once a file
    exists. ``former``: the new name of the previous data."""
    initial = ",".join(f"{name}={address}" for name, address in members.items())
    mounts = [{"name": "data", "mountPath": "/var/lib/etcd"}, {"name": "transfer", "mountPath": "/transfer"}]
    spec = etcd["spec"]["template"]["spec"]

    def container(name: str, image: str, *command: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "image": image, "command": list(command), "volumeMounts": mounts,
                "terminationMessagePolicy": "FallbackToLogsOnError", **fields}

    return {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": f"restore-{member}", "namespace": etcd["metadata"]["namespace"]}, "spec": {
        "restartPolicy": "Never", "securityContext": {"runAsUser": 0}, "automountServiceAccountToken": False,
        "imagePullSecrets": spec.get("imagePullSecrets", []), "terminationGracePeriodSeconds": 1,
        "serviceAccountName": spec.get("serviceAccountName", "default"),
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"etcd-data-{member}"}},
                    {"name": "transfer", "emptyDir": {}}],
        "initContainers": [container("receive", image, "sh", "-c", _RECEIVE)],
        "containers": [
            container("restore", spec["containers"][0]["image"], "etcdctl", "snapshot", "restore",
                      "/transfer/snapshot.db", "--data-dir=/var/lib/etcd/restored", f"--name={member}",
                      f"--initial-cluster={initial}", "--initial-cluster-token=nova",
                      f"--initial-advertise-peer-urls={members[member]}",
                      env=[{"name": "ETCDCTL_API", "value": "3"}]),
            container("exchange", image, "sh", "-e", "-c", f"{_WAIT}\n{REPLACE}", former,
                      workingDir="/var/lib/etcd")]}}
