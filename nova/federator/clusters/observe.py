"""The state of a copy in a workload cluster, as far as an agent needs it: phase, ownership of fields, pods."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from nova.federator.api import objects
from nova.federator.api.names import AGENT, BACKPROPAGATE, MANAGED_BY, TARGET
from nova.federator.api.types import Ref
from nova.federator.kube.client import Object
from nova.federator.store.schedules import Phase

DIGEST = "nova.elotl.co/digest"  # annotation of a copy: the digest of the applied manifest
ORIGIN = "nova.elotl.co/uid"  # annotation of a copy: the uid of the user's object
FENCE_AFTER = "nova.elotl.co/fence-after"  # annotation of a copy: seconds without heartbeat after which it is stopped
FENCED = "nova.elotl.co/fenced"  # annotation of a stopped copy: JSON of the fields to restore
NEVER_CHANGED = {"Job", "Pod"}  # kinds whose copies are never changed; if a user replaces the object, so is the copy


class Copy(msgspec.Struct, frozen=True):
    """A copy. ``owned``: digest of the names of Nova's fields. ``pods``: number of pods that the copy must have.
    ``settled``: True if its controller has created them. ``content``: JSON, empty once the fields are verified."""

    ref: Ref
    uid: str
    schedule: str
    digest: str
    origin: str
    phase: Phase
    message: str = ""
    status: dict[str, Any] = {}
    deleting: bool = False
    fence_after: float | None = None
    fenced: str = ""
    owned: str = ""
    owns_replicas: bool = False
    replicas: int | None = None  # number of replicas, or the parallelism of a Job
    pods: int = 0
    settled: bool = True
    storage_class: str = ""
    shown: bool = False  # True if ReplicaSets and Pods of the copy are shown in the control plane
    content: bytes = b""
    target: str = ""  # the cluster whose agent has applied the copy, as a label value

    @property
    def finished(self) -> bool:
        """Return True for a Job or Pod that has ended."""
        return objects.finished(self.ref, self.status)


def copy_of(obj: Object) -> Copy:
    """Return the state of a copy. Raises ValueError if its annotations are damaged."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    ref, names = objects.ref_of(obj), owned_fields(obj)
    phase, message = phase_of(obj)
    fence_after = annotations.get(FENCE_AFTER)
    pods, settled = _pods(ref, obj)
    count = spec.get("parallelism" if ref.kind == "Job" else "replicas") if isinstance(spec, Mapping) else None
    return Copy(
        ref=ref, uid=str(metadata.get("uid", "")), schedule=owner_of(obj),
        digest=str(annotations.get(DIGEST, "")), origin=str(annotations.get(ORIGIN, "")), phase=phase, message=message,
        status=dict(status) if isinstance(status, Mapping) else {}, deleting="deletionTimestamp" in metadata,
        fence_after=None if fence_after is None else float(fence_after), fenced=str(annotations.get(FENCED, "")),
        owned=hashlib.sha256(msgspec.json.encode(names, order="sorted")).hexdigest()[:20],
        owns_replicas="f:replicas" in (names.get("f:spec") or {}), replicas=count if isinstance(count, int) else None,
        pods=pods, settled=settled, storage_class=str(spec.get("storageClassName") or "")
        if ref.kind == "PersistentVolumeClaim" else "", shown=annotations.get(BACKPROPAGATE) == "true",
        target=str((metadata.get("labels") or {}).get(TARGET, "")))


def owner_of(obj: Object) -> str:
    """Return the name of the schedule that has applied an object, or an empty text. The label alone proves nothing:
    users copy manifests with their labels."""
    if not any(entry.get("manager") == AGENT and entry.get("operation") == "Apply"
               for entry in obj["metadata"].get("managedFields") or ()):
        return ""
    return str((obj["metadata"].get("labels") or {}).get(MANAGED_BY, ""))


def content_of(obj: Object) -> bytes:
    """Return the JSON of the part of an object that a manifest can set."""
    return msgspec.json.encode({
        **{key: value for key, value in obj.items() if key not in ("status", "metadata")},
        "metadata": {key: obj["metadata"].get(key) or {} for key in ("labels", "annotations")}})


def owned_fields(obj: Object) -> dict[str, Any]:
    """Return the names of the fields that Nova has applied and no client has changed since, in the format fieldsV1."""
    for entry in obj["metadata"].get("managedFields") or ():
        if entry.get("manager") == AGENT and entry.get("operation") == "Apply":
            return entry.get("fieldsV1") or {}
    return {}


def managers_of(obj: Object) -> str:
    """Return the names of the managers of an object's fields, for messages."""
    managers = {str(entry.get("manager")) for entry in obj["metadata"].get("managedFields") or ()}
    return ", ".join(sorted(managers)) or "unknown"


def contains(actual: Any, desired: Any) -> bool:
    """Return True if an object has all values of a manifest. Lists must have equal lengths; values that the server
    writes in another form count as different."""
    if not desired and actual is None:
        return True
    if isinstance(desired, Mapping):
        return isinstance(actual, Mapping) and all(
            value is None or key in ("namespace", "name") or contains(actual.get(key), value)
            for key, value in desired.items() if key != "status")
    if isinstance(desired, list):
        return isinstance(actual, list) and len(actual) == len(desired) and all(map(contains, actual, desired))
    return bool(actual == desired)


def workload(ref: Ref) -> bool:
    """Return True for kinds that run pods, and for custom resources, which may run pods."""
    return ref.kind in objects.POD_KINDS or objects.kind_of(ref) is None


def phase_of(obj: Object) -> tuple[Phase, str]:
    """Return the phase of a copy and a message that explains a phase other than Ready."""
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    ref = objects.ref_of(obj)
    match ref.group, ref.kind:
        case "apps", "Deployment" | "ReplicaSet" | "StatefulSet":
            wanted, ready = spec.get("replicas", 1), _ready(ref, status)
            updated = status.get("updatedReplicas") or 0 if ref.kind == "Deployment" else wanted
            if _observed(obj) and ready >= wanted and updated >= wanted:
                return "Ready", ""
            problem = next((f": {entry.get('message')}" for entry in status.get("conditions") or ()
                            if (entry.get("status") == "False" and entry.get("type") == "Progressing")
                            or entry.get("type") == "ReplicaFailure"), "")
            return "Applied", f"{ready} of {wanted} replicas are available{problem}"[:1000]
        case "apps", "DaemonSet":
            wanted, ready = status.get("desiredNumberScheduled") or 0, status.get("numberReady") or 0
            if _observed(obj) and ready >= wanted and (status.get("updatedNumberScheduled") or 0) >= wanted:
                return "Ready", ""
            return "Applied", f"{ready} of {wanted} pods are ready"
        case "", "Pod":
            if status.get("phase") == "Succeeded" or objects.holds(status, "Ready"):
                return "Ready", ""
            return ("Failed" if status.get("phase") == "Failed" else "Applied"), f"the pod is {status.get('phase')}"
        case "batch", "Job":
            if objects.holds(status, "Failed"):
                return "Failed", "the job failed"
            if objects.holds(status, "Complete") or status.get("active") or status.get("succeeded"):
                return "Ready", ""  # a running job counts as ready: a job that takes long must not be moved
            return "Applied", "the job has no pods yet"
        case "", "PersistentVolumeClaim":
            state = status.get("phase")
            return {"Bound": ("Ready", ""), "Lost": ("Failed", "the volume of the claim is lost")}.get(
                str(state), ("Applied", f"the claim is {state or 'Pending'}"))  # type: ignore[return-value]
        case "apiextensions.k8s.io", "CustomResourceDefinition":
            if not objects.holds(status, "Established"):
                return "Applied", "the definition is not established yet"
    return "Ready", ""


def _ready(ref: Ref, status: Mapping[str, Any]) -> int:
    return int(status.get("readyReplicas" if ref.kind == "StatefulSet" else "availableReplicas") or 0)


def _observed(obj: Object) -> bool:
    """Return True if the controller of an object has processed its present spec."""
    observed = (obj.get("status") or {}).get("observedGeneration") or 0
    return int(observed) >= int(obj["metadata"].get("generation") or 0)


def _pods(ref: Ref, obj: Object) -> tuple[int, bool]:
    """Return how many pods an object must have, and True if its controller has processed its present spec."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    match ref.group, ref.kind:
        case "apps", "Deployment":
            wanted = int(spec.get("replicas", 1))
            return wanted, _observed(obj) and (status.get("updatedReplicas") or 0) >= wanted
        case "apps", "ReplicaSet" | "StatefulSet":
            return int(spec.get("replicas", 1)), _observed(obj)
        case "batch", "Job":
            if objects.finished(ref, status):
                return 0, True
            parallelism = int(spec.get("parallelism", 1))
            left = max(0, int(spec.get("completions") or parallelism) - int(status.get("succeeded") or 0))
            return min(parallelism, left), "startTime" in status
        case "", "Pod":
            return 0, bool(spec.get("nodeName")) or objects.finished(ref, status)
    return 0, True
