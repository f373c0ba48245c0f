"""Schedules: the objects of a group that a cluster runs, and the reports of its agent.

The scheduler owns ``spec``. The agent owns ``status`` (a subresource) and removes the finalizer after it has deleted
the copies. A group with large manifests has several schedules, its parts.
"""

import base64
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import zstandard

from nova.common.errors import Invalid
from nova.federator.api.names import (
    FINALIZER,
    MATCHING_POLICY,
    SCHEDULE_GROUP,
    TRACE,
    VERSION,
    cluster_namespace,
    label_value,
)
from nova.federator.api.objects import GRACE, POD_KINDS, consumes, finished
from nova.federator.api.types import Ref

API_VERSION = f"{SCHEDULE_GROUP}/{VERSION}"
SCHEDULES = f"/apis/{API_VERSION}/schedules"
NEVER = 10**9  # seconds; value of Schedule.silence for workloads that a silent agent does not stop
STOP_MARGIN = 30  # seconds for the agent's requests that stop workloads, and for the error of both clocks
PART_LIMIT = 512 << 10  # maximum size of the compressed manifests of a schedule, in bytes
_MANIFEST_LIMIT = 64 << 20  # maximum size of the uncompressed manifests of a schedule, in bytes

_compressor = zstandard.ZstdCompressor(level=3)
_NO_STATUS: dict[str, Any] = {}  # shared by all reports without a status of the copy

Phase = Literal["Pending", "Applied", "Ready", "Failed", "Conflict", "Fenced"]
PHASES: tuple[Phase, ...] = ("Pending", "Applied", "Ready", "Failed", "Conflict", "Fenced")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object of a schedule. ``replicas``: its share, or None for the whole object. ``digest``: of its manifest."""

    ref: Ref
    uid: str
    digest: str
    replicas: int | None = None


class Observed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The agent's report on one object. ``digest``: of the manifest that was applied. ``status``: of the copy.
    ``uid``: of the user's object."""

    ref: Ref
    phase: Phase = "Pending"
    digest: str = ""
    message: str = ""
    status: dict[str, Any] = {}
    uid: str = ""


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of a schedule. ``generation``: the generation of the spec that the agent processed. ``epoch``: epoch
    of the agent's Lease; reports with an older epoch are ignored."""

    generation: int = 0
    epoch: int = 0
    objects: tuple[Observed, ...] = ()


class Schedule(msgspec.Struct, frozen=True):
    """A schedule, decoded. ``retiring``: its group moves away; it is deleted once the group is ready elsewhere."""

    cluster_namespace: str
    name: str
    group: str
    entries: tuple[Entry, ...]
    report: Report
    part: int = 0
    policy: str = ""
    failover: str = "Never"
    fence_after: int = 60
    stop_time: int = GRACE  # seconds that pods may take to end
    prior_silence: int = 0  # longest ``silence`` of earlier specs, which the agent may still carry out
    retiring: bool = False
    deleting: bool = False
    generation: int = 0
    version: str = ""  # resourceVersion
    uid: str = ""
    finalizers: tuple[str, ...] = ()
    packed: str = ""  # manifests, compressed
    trace: str = ""  # span of the decision

    @property
    def path(self) -> str:
        return path_of(self.cluster_namespace, self.name)

    @property
    def ready(self) -> bool:
        """Return True if the agent has applied this spec and all objects are ready."""
        return self.report.generation >= self.generation and bool(self.report.objects) and all(
            observed.phase == "Ready" for observed in self.report.objects)

    @property
    def silence(self) -> int:
        """Return the seconds without a heartbeat after which no workload of this schedule runs any more; NEVER if the
        agent does not stop them. Until the agent confirms this spec, it may carry out an earlier one: the longest time
        counts."""
        own = self.fence_after + self.stop_time + STOP_MARGIN if self.failover == "Fenced" else NEVER
        applied = {observed.ref.key: observed.digest for observed in self.report.objects}
        confirmed = self.report.generation >= self.generation and all(
            applied.get(entry.ref.key) == entry.digest for entry in self.entries)
        return own if confirmed else max(own, self.prior_silence)

    @property
    def runs_pods(self) -> bool:
        """Return True if objects of this schedule run pods. ClusterReports contain only such schedules."""
        return any(entry.ref.kind in POD_KINDS for entry in self.entries)

    @property
    def consumes(self) -> bool:
        """Return True if objects of this schedule use resources of the cluster. Ended Jobs and Pods do not count."""
        ended = {observed.ref.key for observed in self.report.objects if finished(observed.ref, observed.status)}
        return any(consumes(entry.ref, entry.replicas) and entry.ref.key not in ended for entry in self.entries)

    def manifests(self) -> list[dict[str, Any]]:
        """Return the objects to apply, in the order of ``entries``. Raises Invalid."""
        return unpack(self.packed)


def path_of(namespace: str, name: str = "", subresource: str = "") -> str:
    tail = "".join(f"/{part}" for part in (name, subresource) if part)
    return f"/apis/{API_VERSION}/namespaces/{namespace}/schedules{tail}"


def name_of(group: str, part: int = 0) -> str:
    """Return the name of a group's schedule: readable, unique and a valid label value."""
    readable = re.sub(r"[^a-z0-9]+", "-", group.rpartition("/")[2].lower()).strip("-")[:36]
    digest = hashlib.sha256(group.encode()).hexdigest()[:16]
    return f"{readable or 'group'}-{digest}{f'-{part}' if part else ''}"


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return a digest of a manifest that does not depend on the order of its fields."""
    return hashlib.sha256(msgspec.json.encode(manifest, order="sorted")).hexdigest()[:20]


def pack(manifests: Sequence[Mapping[str, Any]]) -> str:
    compressed = _compressor.compress(msgspec.json.encode(manifests, order="sorted"))
    return base64.b64encode(compressed).decode()


def unpack(packed: str, limit: int = _MANIFEST_LIMIT) -> list[dict[str, Any]]:
    """Return packed manifests. Raises Invalid if they are damaged or too large."""
    try:
        data = base64.b64decode(packed, validate=True)
        if zstandard.frame_content_size(data) > limit:
            raise Invalid("spec.manifests: too large.")
        return msgspec.json.decode(zstandard.ZstdDecompressor().decompress(data), type=list[dict[str, Any]])
    except (ValueError, zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise Invalid(f"spec.manifests: {error}") from None


def partition(manifests: Sequence[Mapping[str, Any]]) -> list[tuple[list[int], str]]:
    """Return the indexes of the manifests of each part, in order, and the packed manifests, so that no part exceeds
    PART_LIMIT by far: a single manifest that is larger is a part of its own."""
    parts: list[list[int]] = [[]]
    size = 0
    if len(packed := pack(manifests)) <= PART_LIMIT:
        return [(list(range(len(manifests))), packed)]
    for index, manifest in enumerate(manifests):
        length = len(pack([manifest]))
        if parts[-1] and size + length > PART_LIMIT:
            parts.append([])
            size = 0
        parts[-1].append(index)
        size += length
    return [(part, pack([manifests[index] for index in part])) for part in parts]


def render_spec(group: str, entries: Iterable[Entry], packed: str, part: int = 0, policy: str = "",
                failover: str = "Never", fence_after: int = 60, retiring: bool = False, stop_time: int = GRACE,
                prior_silence: int = 0) -> dict[str, Any]:
    """Return the spec of a schedule as it is stored."""
    objects = [{**msgspec.to_builtins(entry.ref), "uid": entry.uid, "digest": entry.digest,
                **({} if entry.replicas is None else {"replicas": entry.replicas})} for entry in entries]
    return {"group": group, "part": part, "policy": policy, "failover": failover, "fenceAfterSeconds": fence_after,
            "stopSeconds": stop_time, "priorSilenceSeconds": prior_silence, "retiring": retiring, "objects": objects,
            "manifests": packed}


def render(cluster: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new Schedule object for a cluster."""
    labels = {MATCHING_POLICY: label_value(str(spec["policy"]))} if spec["policy"] else {}
    return {"apiVersion": API_VERSION, "kind": "Schedule", "spec": spec,
            "metadata": {"name": name_of(spec["group"], spec["part"]), "namespace": cluster_namespace(cluster),
                         "labels": labels, "finalizers": [FINALIZER]}}


def render_status(schedule: Schedule, report: Report) -> dict[str, Any]:
    """Return the body that replaces the status of a schedule, unless the schedule was changed since it was read."""
    return {"apiVersion": API_VERSION, "kind": "Schedule", "metadata": {
        "name": schedule.name, "namespace": schedule.cluster_namespace, "uid": schedule.uid,
        "resourceVersion": schedule.version}, "status": {
            "observedGeneration": report.generation, "epoch": report.epoch, "objects": [
                {**msgspec.to_builtins(observed.ref), "phase": observed.phase, "digest": observed.digest,
                 "message": observed.message, "status": observed.status, "uid": observed.uid}
                for observed in report.objects]}}


def decode(obj: Mapping[str, Any], with_manifests: bool = True) -> Schedule:
    """Return a stored Schedule. An invalid status of an agent counts as absent. Raises Invalid for a bad spec."""
    metadata = obj["metadata"]
    try:
        spec = msgspec.convert(obj.get("spec"), _Spec)
    except msgspec.ValidationError as error:
        raise Invalid(f"Schedule {metadata.get('namespace')}/{metadata.get('name')}: spec: {error}") from None
    try:
        status = msgspec.convert(obj.get("status") or {}, _Status)
    except msgspec.ValidationError:
        status = _Status()
    return Schedule(
        cluster_namespace=sys.intern(metadata["namespace"]), name=metadata["name"], group=sys.intern(spec.group),
        part=spec.part, policy=sys.intern(spec.policy), failover=spec.failover, fence_after=spec.fenceAfterSeconds,
        stop_time=spec.stopSeconds, prior_silence=spec.priorSilenceSeconds, retiring=spec.retiring,
        entries=tuple(Entry(_ref(entry), sys.intern(entry.uid), sys.intern(entry.digest), entry.replicas)
                      for entry in spec.objects),
        report=Report(status.observedGeneration, status.epoch, tuple(
            Observed(_ref(entry), entry.phase, sys.intern(entry.digest), entry.message, entry.status or _NO_STATUS,
                     sys.intern(entry.uid)) for entry in status.objects)),
        deleting="deletionTimestamp" in metadata, generation=metadata.get("generation", 0),
        version=metadata.get("resourceVersion", ""), uid=metadata.get("uid", ""),
        finalizers=tuple(metadata.get("finalizers") or ()), packed=spec.manifests if with_manifests else "",
        trace=str((metadata.get("annotations") or {}).get(TRACE) or ""))


def decode_checked(obj: Mapping[str, Any]) -> Schedule:
    """Return a stored Schedule for the scheduler, which does not need its manifests. Raises Invalid also if its name
    does not belong to its group: an agent may change a schedule, but must not assign it to another group."""
    schedule = decode(obj, with_manifests=False)
    if schedule.name != name_of(schedule.group, schedule.part):
        raise Invalid(f"Schedule {schedule.cluster_namespace}/{schedule.name}: spec.group: must not change.")
    return schedule


class _Named(msgspec.Struct, kw_only=True):
    group: str = ""
    version: str
    kind: str
    namespace: str = ""
    name: str


class _Entry(_Named, kw_only=True):
    uid: str = ""
    digest: str = ""
    replicas: int | None = None


class _Observed(_Named, kw_only=True):
    phase: Phase = "Pending"
    digest: str = ""
    message: str = ""
    status: dict[str, Any] = {}
    uid: str = ""


class _Spec(msgspec.Struct, kw_only=True):
    group: str
    part: int = 0
    policy: str = ""
    failover: str = "Never"
    fenceAfterSeconds: int = 60
    stopSeconds: int = GRACE
    priorSilenceSeconds: int = 0
    retiring: bool = False
    objects: list[_Entry] = []
    manifests: str = ""


class _Status(msgspec.Struct, kw_only=True):
    observedGeneration: int = 0
    epoch: int = 0
    objects: list[_Observed] = []


def _ref(entry: _Named) -> Ref:
    return Ref.shared(entry.group, entry.version, entry.kind, entry.namespace, entry.name)
