"""Backpropagations: reports of agents to the scheduler on the ReplicaSets and Pods that an object owns in a cluster."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from nova.common.errors import Invalid
from nova.federator.api.names import SCHEDULE_GROUP, VERSION
from nova.federator.api.types import Ref
from nova.federator.store import schedules

API_VERSION = f"{SCHEDULE_GROUP}/{VERSION}"
BACKPROPAGATIONS = f"/apis/{API_VERSION}/backpropagations"
LIMIT = 500  # maximum number of ReplicaSets and Pods that are shown per object and cluster

_CONTENT = 8 << 20  # maximum size of all objects of a report, in bytes before compression

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_Labels = Annotated[dict[str, str], msgspec.Meta(max_length=1000)]


class Owned(msgspec.Struct, frozen=True):
    """A ReplicaSet or Pod. ``uid``: its uid in the cluster. ``parent``: uid of the ReplicaSet that owns it, or empty if
    the copy of the user's object owns it. ``node``: the node of a Pod."""

    kind: Annotated[str, msgspec.Meta(pattern="^(ReplicaSet|Pod)$")]
    uid: _Name
    name: _Name
    spec: dict[str, Any]
    parent: str = ""
    node: Annotated[str, msgspec.Meta(max_length=253)] = ""
    labels: _Labels = {}
    annotations: _Labels = {}


class Published(msgspec.Struct, frozen=True):
    """The report of an agent on one object. ``uid``: uid of the user's object. ``omitted``: number of objects that the
    report leaves out."""

    cluster_namespace: str
    schedule: str
    ref: Ref
    uid: str
    omitted: int
    content: str

    def owned(self) -> list[Owned]:
        """Return the reported objects, at most LIMIT, without repeated uids. Raises Invalid."""
        try:
            entries = schedules.unpack(self.content, _CONTENT)[:LIMIT]
            return list({part.uid: part for part in (msgspec.convert(entry, Owned) for entry in entries)}.values())
        except RecursionError:
            raise Invalid("spec.content: nested too deeply.") from None
        except msgspec.ValidationError as error:
            raise Invalid(f"spec.content: {error}") from None


def path_of(namespace: str, name: str = "") -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/backpropagations{f'/{name}' if name else ''}"


def name_of(ref: Ref) -> str:
    """Return the name of the reports on an object, which is the same in the namespaces of all clusters."""
    return schedules.name_of(ref.key)


def pack(owned: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Return packed objects, and the number of objects that are omitted because of LIMIT or the size of the report."""
    included = list(owned[:LIMIT])
    while len(content := schedules.pack(included)) > schedules.PART_LIMIT or (
            len(msgspec.json.encode(included)) > _CONTENT):
        included = included[:len(included) // 2]
    return content, len(owned) - len(included)


def render(namespace: str, ref: Ref, uid: str, schedule: str, schedule_uid: str, content: str,
           omitted: int) -> dict[str, Any]:
    """Return the object that an agent stores. The garbage collector deletes it with the schedule."""
    owner = {"apiVersion": API_VERSION, "kind": "Schedule", "name": schedule, "uid": schedule_uid}
    return {"apiVersion": API_VERSION, "kind": "Backpropagation",
            "metadata": {"name": name_of(ref), "namespace": namespace, "ownerReferences": [owner]},
            "spec": {"object": msgspec.to_builtins(ref), "uid": uid, "schedule": schedule, "omitted": omitted,
                     "content": content}}


class _Spec(msgspec.Struct):
    object: Ref
    uid: _Name
    schedule: _Name
    content: str
    omitted: Annotated[int, msgspec.Meta(ge=0)] = 0


def decode(obj: Mapping[str, Any]) -> Published:
    """Return a stored report. Raises Invalid if its name does not belong to its object: agents are less trusted."""
    metadata = obj["metadata"]
    try:
        spec = msgspec.convert(obj.get("spec"), _Spec)
    except msgspec.ValidationError as error:
        raise Invalid(f"spec: {error}") from None
    if metadata["name"] != name_of(spec.object):
        raise Invalid("spec.object: does not match metadata.name.")
    if len(spec.content) > schedules.PART_LIMIT:
        raise Invalid(f"spec.content: more than {schedules.PART_LIMIT} characters.")
    return Published(metadata["namespace"], spec.schedule, spec.object, spec.uid, spec.omitted, spec.content)
