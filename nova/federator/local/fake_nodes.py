"""Simulated nodes: the status of their pods becomes Running and then, for jobs, Succeeded; deletions are confirmed.

Annotations of a pod change this:
  lab/never-ready: "true"   the pod runs but never becomes ready
  lab/start-delay: "3.5"    seconds before it runs
  lab/run-for: "2"          seconds before a pod that is not restarted ends
  lab/exit-code: "1"        exit code of a pod that is not restarted
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
import pathlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from nova.common.errors import Invalid, ReportedError
from nova.federator.api import times
from nova.federator.kube import config
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer, key_of

LOG = logging.getLogger(__name__)
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_HOST = "198.51.100.10"  # address of the nodes, from the range for documentation
_LONGEST = 3600.0  # longest delay in an annotation, in seconds
_ATTEMPTS = 20  # tries of a request before it is given up


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Number and properties of nodes. ``prefix``: their names without the number. ``labels``, ``resources``: KEY=VALUE.
    ``taints``: KEY=VALUE:EFFECT. ``start_delay``, ``stop_delay``: seconds until a pod runs or ends."""

    count: int = 2
    prefix: str = "fake-"
    cpu: str = "8"
    memory: str = "32Gi"
    pods: int = 110
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    start_delay: float = 0.05
    stop_delay: float = 0.05

    def arguments(self) -> list[str]:
        """Return the options of the command line with these values."""
        options = [f"--{field}={getattr(self, field.replace('-', '_'))}" for field in (
            "count", "prefix", "cpu", "memory", "pods", "start-delay", "stop-delay")]
        return [*options, *(f"--{field[:-1]}={value}" for field in ("labels", "taints", "resources")
                            for value in getattr(self, field))]


class FakeNodes:
    """The kubelets of all nodes of a cluster."""

    def __init__(self, api: Api, options: NodeOptions) -> None:
        self._api, self._options = api, options
        self._names = [f"{options.prefix}{number}" for number in range(options.count)]
        self._labels = dict(_pair("label", text, "=") for text in options.labels)
        self._taints = [_taint(text) for text in options.taints]
        self._resources = {"cpu": options.cpu, "memory": options.memory, "pods": str(options.pods),
                           "ephemeral-storage": "100Gi",
                           **dict(_pair("resource", text, "=") for text in options.resources)}
        self._addresses = itertools.count(1)
        self._stages: dict[str, str] = {}  # uid of a pod -> its newest transition, begun or completed
        self._transitions: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Register the nodes and serve their pods until cancelled."""
        for name in self._names:
            await self._repeat(f"node {name}", lambda name=name: self._register(name))  # type: ignore[misc]
        LOG.info("%d simulated nodes are ready", len(self._names))
        pods: Informer[Object] = Informer(self._api, "/api/v1/pods", lambda pod: pod, self._changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(pods.run())

    async def _register(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                  "lab/fake": "true", **self._labels}
        body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        body["spec"] = {"providerID": f"local:///{name}", **({"taints": self._taints} if self._taints else {})}
        try:
            await self._api.create("/api/v1/nodes", body)
        except ApiError as error:
            if not error.conflict:
                raise
        now = times.now()
        conditions = [{"type": kind, "status": status, "reason": "Fake", "message": "node without a machine",
                       "lastHeartbeatTime": now, "lastTransitionTime": now}
                      for kind, status in (("MemoryPressure", "False"), ("DiskPressure", "False"),
                                           ("PIDPressure", "False"), ("Ready", "True"))]
        info = dict.fromkeys(("bootID", "kernelVersion", "kubeProxyVersion", "machineID", "systemUUID"), "")
        info |= {"kubeletVersion": "v1.20.2-fake", "architecture": "amd64", "operatingSystem": "linux",
                 "containerRuntimeVersion": "fake://1", "osImage": "fake"}
        await self._api.patch(f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": self._resources, "allocatable": self._resources, "conditions": conditions, "nodeInfo": info,
            "addresses": [{"type": "InternalIP", "address": _HOST}, {"type": "Hostname", "address": name}]}})

    async def _renew(self) -> None:
        """Renew the Leases of all nodes: without renewals, controllers evict the pods of a node after 40 s."""
        while True:
            for name in self._names:
                time = times.now_exactly()
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                         "metadata": {"name": name, "namespace": "kube-node-lease"},
                         "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time}}
                try:
                    await self._api.apply(f"{_LEASES}/{name}", lease, "fake-nodes", force=True)
                except ApiError as error:
                    LOG.warning("Cannot renew the Lease of node %s, retrying in 10 s: %s", name, error)
            await asyncio.sleep(10)

    def _changed(self, key: str, pod: Object | None, previous: Object | None) -> None:
        """Begin the next transition of a pod of these nodes."""
        if pod is None:
            if previous:
                self._stages.pop(previous["metadata"]["uid"], None)
            return
        metadata, spec, options = pod["metadata"], pod["spec"], self._options
        if spec.get("nodeName") not in self._names:
            return
        annotations, stage, phase = metadata.get("annotations") or {}, self._stages.get(metadata["uid"]), \
            (pod.get("status") or {}).get("phase")
        if metadata.get("deletionTimestamp"):
            self._begin(key, pod, "delete", stage, options.stop_delay, self._delete)
        elif phase == "Pending":
            delay = _seconds(annotations.get("lab/start-delay"), options.start_delay)
            self._begin(key, pod, "run", stage, delay, self._run)
        elif phase == "Running" and spec.get("restartPolicy") != "Always":
            self._begin(key, pod, "end", stage, _seconds(annotations.get("lab/run-for"), 0.2), self._end)

    def _begin(self, key: str, pod: Object, stage: str, previous: str | None, delay: float,
               transition: Callable[[Object], Coroutine[Any, Any, None]]) -> None:
        uid = pod["metadata"]["uid"]
        if stage == previous:
            return
        self._stages[uid] = stage

        async def wait() -> None:
            await asyncio.sleep(delay)
            if self._stages.get(uid) == stage:
                await self._repeat(f"pod {key}", lambda: transition(pod))
        task = asyncio.create_task(wait())
        self._transitions.add(task)
        task.add_done_callback(self._transitions.discard)

    async def _repeat(self, subject: str, action: Callable[[], Awaitable[None]]) -> None:
        """Repeat an action, at most _ATTEMPTS times, while the API server is unreachable or refuses it."""
        for attempt in range(_ATTEMPTS):
            try:
                await action()
                return
            except ApiError as error:
                if error.missing or error.conflict:  # the object was deleted or replaced meanwhile
                    return
                LOG.warning("Cannot update %s (attempt %d), retrying: %s", subject, attempt + 1, error)
            await asyncio.sleep(min(0.2 * 2 ** attempt, 5.0))

    async def _delete(self, pod: Object) -> None:
        await self._api.delete(_path(pod), uid=pod["metadata"]["uid"], grace=0)

    async def _run(self, pod: Object) -> None:
        number = next(self._addresses)
        address = f"10.{100 + number // 62500 % 100}.{number // 250 % 250}.{number % 250 + 1}"
        ready = (pod["metadata"].get("annotations") or {}).get("lab/never-ready") != "true"
        await self._report(pod, "Running", {"running": {"startedAt": times.now()}}, ready, {
            "podIP": address, "podIPs": [{"ip": address}], "hostIP": _HOST, "startTime": times.now()})

    async def _end(self, pod: Object) -> None:
        code = int(_seconds((pod["metadata"].get("annotations") or {}).get("lab/exit-code"), 0.0))
        state = {"exitCode": code, "startedAt": times.now(), "finishedAt": times.now(),
                 "reason": "Error" if code else "Completed"}
        await self._report(pod, "Failed" if code else "Succeeded", {"terminated": state}, False, {})

    async def _report(self, pod: Object, phase: str, state: Object, ready: bool, more: Mapping[str, Any]) -> None:
        containers = [{"name": container["name"], "image": container["image"], "imageID": "", "ready": ready,
                       "started": phase == "Running", "restartCount": 0, "state": state}
                      for container in pod["spec"]["containers"]]
        conditions = [{"type": kind, "status": "True" if value else "False", "lastTransitionTime": times.now()}
                      for kind, value in (("Initialized", True), ("Ready", ready), ("ContainersReady", ready),
                                          ("PodScheduled", True))]
        await self._api.patch(f"{_path(pod)}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {
            "phase": phase, "containerStatuses": containers, "conditions": conditions, **more}})


def _path(pod: Object) -> str:
    namespace, name = key_of(pod).split("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _seconds(text: object, default: float) -> float:
    """Return the number in an annotation, limited to _LONGEST, or the default if the text is not a number."""
    try:
        value = float(str(text)) if text is not None else default
    except ValueError:
        return default
    return min(max(value, 0.0), _LONGEST) if value == value else default


def _pair(field: str, text: str, separator: str) -> tuple[str, str]:
    key, present, value = text.partition(separator)
    if not key or not present:
        raise Invalid(f"{field} {text!r} must have the form KEY{separator}VALUE.")
    return key, value


def _taint(text: str) -> dict[str, str]:
    pair, effect = _pair("taint", text, ":")
    key, _equals, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


async def _main(path: pathlib.Path, options: NodeOptions) -> None:
    async with Api(config.load([path]), agent="nova-fake-nodes") as api:
        task = asyncio.ensure_future(FakeNodes(api, options).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    defaults = NodeOptions()
    parser = argparse.ArgumentParser(description="Run nodes without machines.")
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    for name in ("count", "prefix", "cpu", "memory", "pods", "start_delay", "stop_delay"):
        value = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    for name in ("label", "taint", "resource"):
        parser.add_argument(f"--{name}", action="append", default=[], dest=f"{name}s")
    arguments = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    file = arguments.pop("kubeconfig")
    try:
        asyncio.run(_main(file, msgspec.convert(arguments, NodeOptions, strict=False)))
    except ReportedError as error:
        parser.error(error.message)
