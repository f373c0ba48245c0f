"""Kinds that Nova places, and the properties of objects that scheduling needs."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from nova.common.errors import Invalid
from nova.federator.api import quantity
from nova.federator.api.names import NAMESPACE, REPLICAS_PATH
from nova.federator.api.quantity import excerpt
from nova.federator.api.types import Item, PodNeeds, Ref, api_version

_PATH = 253  # maximum length of the annotation REPLICAS_PATH, in characters
_REPLICAS = 1_000_000  # largest number of replicas that is accepted
GRACE = 30  # seconds that pods have to end if their template does not set another time
_CUSTOM_ORDER = 8  # Kind.order of custom resources: before workloads


class Kind(msgspec.Struct, frozen=True):
    """A kind of objects in a version. ``order``: objects with a lower number are applied first in a cluster."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    order: int = _CUSTOM_ORDER

    @property
    def api_version(self) -> str:
        return api_version(self.group, self.version)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object; without ``name``, that of the collection in a namespace or the whole server."""
        middle = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        tail = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
        return f"/api{'s' if self.group else ''}/{self.api_version}{middle}/{self.plural}{tail}"


_RBAC, _NETWORK = "rbac.authorization.k8s.io", "networking.k8s.io"
KINDS = (
    Kind("", "v1", "Namespace", "namespaces", False, 0),
    Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False, 1),
    Kind("", "v1", "ServiceAccount", "serviceaccounts", True, 2),
    Kind(_RBAC, "v1", "ClusterRole", "clusterroles", False, 3),
    Kind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", False, 4),
    Kind(_RBAC, "v1", "Role", "roles", True, 3),
    Kind(_RBAC, "v1", "RoleBinding", "rolebindings", True, 4),
    Kind("", "v1", "ConfigMap", "configmaps", True, 5),
    Kind("", "v1", "Secret", "secrets", True, 5),
    Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, 6),
    Kind("", "v1", "Service", "services", True, 7),
    Kind(_NETWORK, "v1", "IngressClass", "ingressclasses", False, 7),
    Kind(_NETWORK, "v1", "NetworkPolicy", "networkpolicies", True, 7),
    Kind("apps", "v1", "DaemonSet", "daemonsets", True, 9),
    Kind("apps", "v1", "Deployment", "deployments", True, 9),
    Kind("apps", "v1", "ReplicaSet", "replicasets", True, 9),
    Kind("apps", "v1", "StatefulSet", "statefulsets", True, 9),
    Kind("", "v1", "Pod", "pods", True, 9),
    Kind("batch", "v1", "Job", "jobs", True, 9),
    Kind("batch", "v1beta1", "CronJob", "cronjobs", True, 9),
    Kind(_NETWORK, "v1", "Ingress", "ingresses", True, 10),
    Kind("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, 11),
    Kind("policy", "v1beta1", "PodDisruptionBudget", "poddisruptionbudgets", True, 11))
_BY_NAME = {(kind.group, kind.kind): kind for kind in KINDS}
_BOOTSTRAPPING = "kubernetes.io/bootstrapping"  # label of the roles that an API server creates
_WORKLOADS = 9  # order of kinds with pods
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")  # of node affinities
POD_KINDS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"})
_CONSUMERS = POD_KINDS | {"PersistentVolumeClaim"}
# Objects that API servers create by themselves.
_BUILT_IN = {("Namespace", ""): ("default", NAMESPACE), ("ConfigMap", ""): ("kube-root-ca.crt",),
             ("ServiceAccount", ""): ("default",), ("Service", ""): ("kubernetes",)}


def kind_of(ref: Ref) -> Kind | None:
    """Return the kind of an object, or None for a custom resource."""
    return _BY_NAME.get((ref.group, ref.kind))


def custom_kind(definition: Mapping[str, Any]) -> Kind | None:
    """Return the kind of a CustomResourceDefinition, or None if it is incomplete."""
    spec = definition.get("spec")
    names = spec.get("names") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(names, Mapping):
        return None
    served = [version for version in spec.get("versions") or ()
              if isinstance(version, Mapping) and version.get("served")]
    version = next((entry for entry in served if entry.get("storage")), served[0] if served else {})
    values = [spec.get("group"), version.get("name"), names.get("kind"), names.get("plural")]
    if not all(isinstance(value, str) and value for value in values):
        return None
    group, name, kind, plural = map(str, values)
    return Kind(group, name, kind, plural, spec.get("scope") == "Namespaced")


def apply_order(ref: Ref) -> int:
    """Return the position in which an object is applied: objects that other objects need come first."""
    kind = kind_of(ref)
    return kind.order if kind else _CUSTOM_ORDER


def internal(obj: Mapping[str, Any]) -> bool:
    """Return True for objects that an API server or Nova creates for itself: they are never placed."""
    metadata, kind = obj["metadata"], str(obj.get("kind"))
    name = str(metadata["name"])
    group = str(obj.get("apiVersion")).rpartition("/")[0]
    return (name in _BUILT_IN.get((kind, group), ()) or name.startswith("system:") or (kind == "Secret" and obj.get(
        "type") == "kubernetes.io/service-account-token") or (kind == "CustomResourceDefinition" and name.endswith(
        ".elotl.co")) or (group == _RBAC and _BOOTSTRAPPING in (metadata.get("labels") or ())))


def ref_of(obj: Mapping[str, Any]) -> Ref:
    """Return the reference of an object. Raises Invalid, which names the field."""
    metadata = _mapping(obj.get("metadata"), "metadata")
    texts: dict[str, Any] = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"),
                             "metadata.name": metadata.get("name"),
                             "metadata.namespace": metadata.get("namespace") or ""}
    for field, value in texts.items():
        if not isinstance(value, str) or not (value or field == "metadata.namespace"):
            raise Invalid(f"{field}: required." if value in (None, "") else f"{field}: not a text.")
    group, _slash, version = texts["apiVersion"].rpartition("/")
    return Ref.shared(group, version, texts["kind"], texts["metadata.namespace"], texts["metadata.name"])


# Kinds that portable() changes.
NOT_PORTABLE = {"ServiceAccount", "Job", "Namespace", "PersistentVolumeClaim", "Pod", "Service"}


def portable(manifest: dict[str, Any], managed_fields: object = None) -> dict[str, Any]:
    """Remove fields that the control plane's API server has set and that each cluster sets for itself. Addresses and
    ports of a Service stay if a user has set them. ``managed_fields``: metadata.managedFields of the object."""
    kind, spec = manifest.get("kind"), manifest.get("spec")
    if not isinstance(spec, dict):
        if kind == "ServiceAccount":
            manifest.pop("secrets", None)
        return manifest
    if kind == "Job" and not spec.get("manualSelector"):
        spec.pop("selector", None)
        labels = _mapping(_mapping(_mapping(spec.get("template"), "").get("metadata"), "").get("labels"), "")
        if isinstance(labels, dict):
            for label in ("controller-uid", "job-name"):
                labels.pop(label, None)
    removed = {"Namespace": ("finalizers",), "PersistentVolumeClaim": ("volumeName",), "Pod": ("nodeName",),
               "Service": ("healthCheckNodePort",)}
    for field in removed.get(str(kind), ()):
        spec.pop(field, None)
    if kind == "Service":
        chosen = msgspec.json.encode(managed_fields or [])
        if spec.get("clusterIP") != "None" and b'"f:clusterIP"' not in chosen:
            spec.pop("clusterIP", None)
            spec.pop("clusterIPs", None)
        for port in spec.get("ports") or ():
            if isinstance(port, dict) and b'"f:nodePort"' not in chosen:
                port.pop("nodePort", None)
    return manifest


def item_of(obj: Mapping[str, Any]) -> Item:
    """Return the properties of an object that scheduling needs. Raises Invalid, which names the field."""
    item = _item_of(obj)
    return msgspec.structs.replace(item, finished=True, pod=None) if finished(item.ref, obj.get("status")) else item


def conditions_of(status: object) -> dict[str, Mapping[str, Any]]:
    """Return the conditions of a status by type; malformed ones are left out."""
    entries = status.get("conditions") if isinstance(status, Mapping) else None
    return {str(entry.get("type")): entry for entry in entries if isinstance(entry, Mapping)} if isinstance(
        entries, list) else {}


def holds(status: object, kind: str) -> bool:
    """Return True if a status has a condition of a type with the value True."""
    return conditions_of(status).get(kind, {}).get("status") == "True"


def consumes(ref: Ref, replicas: int | None) -> bool:
    """Return True for objects that run pods or store data, and for custom resources, which may do so. ``replicas``:
    number of replicas of the object, or None."""
    return replicas != 0 and (ref.kind in _CONSUMERS or kind_of(ref) is None)


def finished(ref: Ref, status: object) -> bool:
    """Return True if a status is that of a Job or Pod that has ended, by success or failure."""
    match ref.group, ref.kind:
        case "batch", "Job":
            return holds(status, "Complete") or holds(status, "Failed")
        case "", "Pod":
            return isinstance(status, Mapping) and status.get("phase") in ("Succeeded", "Failed")
    return False


def _item_of(obj: Mapping[str, Any]) -> Item:
    ref = ref_of(obj)
    metadata = _mapping(obj.get("metadata"), "metadata")
    labels = {str(key): str(value) for key, value in _mapping(metadata.get("labels"), "metadata.labels").items()}
    kind = kind_of(ref)
    spec = _mapping(obj.get("spec"), "spec") if kind is not None and kind.order == _WORKLOADS else {}
    match (ref.group, ref.kind):
        case ("apps", "Deployment" | "ReplicaSet" | "StatefulSet"):
            strategy = _mapping(spec.get("strategy"), "spec.strategy").get("type")
            return Item(ref, labels, _count(spec.get("replicas"), "spec.replicas"), _pod(spec, "spec.template.spec"),
                        break_first=strategy == "Recreate" or bool(spec.get("volumeClaimTemplates")),
                        stop_time=_stop_time(spec))
        case ("apps", "DaemonSet"):
            return Item(ref, labels, None, _pod(spec, "spec.template.spec", every_node=True),
                        stop_time=_stop_time(spec))
        case ("batch", "Job"):
            parallelism = _count(spec.get("parallelism"), "spec.parallelism")
            completions = spec.get("completions")  # absent: a work queue, which runs all pods in parallel
            pods = parallelism if completions is None else min(parallelism, _count(completions, "spec.completions"))
            return Item(ref, labels, None, _pod(spec, "spec.template.spec"), pods,
                        break_first=True, stop_time=_stop_time(spec))
        case ("batch", "CronJob"):
            return Item(ref, labels, break_first=True, stop_time=_stop_time(_mapping(
                _mapping(spec.get("jobTemplate"), "spec.jobTemplate").get("spec"), "spec.jobTemplate.spec")))
        case ("", "Pod"):
            return Item(ref, labels, None, _needs(spec, "spec"), 1, break_first=True,
                        stop_time=_grace(spec, "spec"))
        case _ if kind is None:
            return Item(ref, labels, _custom_replicas(obj, metadata), stop_time=GRACE)
    return Item(ref, labels)


def _stop_time(spec: Mapping[str, Any]) -> int:
    """Return the seconds that pods of a template may take to end."""
    field = "spec.template.spec"
    return _grace(_mapping(_mapping(spec.get("template"), "spec.template").get("spec"), field), field)


def _grace(pod: Mapping[str, Any], field: str) -> int:
    seconds = pod.get("terminationGracePeriodSeconds")
    return GRACE if seconds is None else _count(seconds, f"{field}.terminationGracePeriodSeconds")


def _custom_replicas(obj: Mapping[str, Any], metadata: Mapping[str, Any]) -> int | None:
    path, value = _replicas_path(metadata), obj
    if not path:
        return None
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None  # type: ignore[assignment]
    if value is None:
        raise Invalid(f"metadata.annotations[{REPLICAS_PATH}]: the object has no field {excerpt('.'.join(path))}.")
    return _count(value, ".".join(path))


def _replicas_path(metadata: Mapping[str, Any]) -> list[str]:
    """Return the path of the number of replicas in a custom resource, or an empty list."""
    path = _mapping(metadata.get("annotations"), "metadata.annotations").get(REPLICAS_PATH) or ""
    if not isinstance(path, str) or len(path) > _PATH:
        raise Invalid(f"metadata.annotations[{REPLICAS_PATH}]: not a text of at most {_PATH} characters.")
    steps = path.removeprefix(".").split(".") if path else []
    if steps and (steps[0] != "spec" or not all(steps) or len(steps) < 2):
        raise Invalid(f"metadata.annotations[{REPLICAS_PATH}]: {excerpt(path)} is not a field of spec.")
    return steps


def set_replicas(manifest: dict[str, Any], replicas: int) -> None:
    """Write a number of replicas to the field from which :func:`item_of` reads it."""
    group = str(manifest.get("apiVersion")).rpartition("/")[0]
    custom = (group, manifest.get("kind")) not in _BY_NAME
    path = (_replicas_path(manifest.get("metadata") or {}) if custom else []) or ["spec", "replicas"]
    target = manifest
    for step in path[:-1]:
        target = target.setdefault(step, {})
    target[path[-1]] = replicas


def _pod(spec: Mapping[str, Any], field: str, every_node: bool = False) -> PodNeeds:
    template = _mapping(spec.get("template"), "spec.template")
    return _needs(_mapping(template.get("spec"), field), field, every_node)


def _needs(spec: Mapping[str, Any], field: str, every_node: bool = False) -> PodNeeds:
    requests: dict[str, int] = {}
    for number, container in enumerate(_sequence(spec.get("containers"), f"{field}.containers")):
        for resource, amount in _requests(container, f"{field}.containers[{number}]").items():
            requests[resource] = requests.get(resource, 0) + amount
    for number, container in enumerate(_sequence(spec.get("initContainers"), f"{field}.initContainers")):
        for resource, amount in _requests(container, f"{field}.initContainers[{number}]").items():
            requests[resource] = max(requests.get(resource, 0), amount)
    for resource, value in _mapping(spec.get("overhead"), f"{field}.overhead").items():
        requests[resource] = requests.get(resource, 0) + _amount(value, f"{field}.overhead.{resource}")
    requests["pods"] = 1000
    affinity = _mapping(_mapping(spec.get("affinity"), f"{field}.affinity").get("nodeAffinity"),
                        f"{field}.affinity.nodeAffinity")
    selector = _mapping(spec.get("nodeSelector"), f"{field}.nodeSelector")
    return PodNeeds(
        requests, tuple(_mapping(entry, f"{field}.tolerations") for entry in _sequence(
            spec.get("tolerations"), f"{field}.tolerations")),
        {str(key): str(value) for key, value in selector.items()},
        _affinity(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"),
                  f"{field}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"), every_node)


def _affinity(required: object, field: str) -> tuple[Mapping[str, Any], ...]:
    """Return the terms of a required node affinity, of which a node must satisfy one."""
    if required is None:
        return ()
    where = f"{field}.nodeSelectorTerms"
    terms = []
    for term in _sequence(_mapping(required, field).get("nodeSelectorTerms"), where):
        checked = {}
        for part in ("matchExpressions", "matchFields"):
            entries = [_mapping(entry, f"{where}.{part}") for entry in _sequence(
                _mapping(term, where).get(part), f"{where}.{part}")]
            for entry in entries:
                if not isinstance(entry.get("key"), str) or entry.get("operator") not in _OPERATORS:
                    raise Invalid(f"{where}.{part}: an entry has no key or an unknown operator.")
                values = _sequence(entry.get("values"), f"{where}.{part}.values")
                if not all(isinstance(value, str) for value in values):
                    raise Invalid(f"{where}.{part}.values: not a list of texts.")
            checked[part] = entries
        terms.append(checked)
    if not terms:
        raise Invalid(f"{where}: required.")
    return tuple(terms)


def _requests(container: object, field: str) -> dict[str, int]:
    """Return the requests of a container; a limit without a request is its request."""
    resources = _mapping(_mapping(container, field).get("resources"), f"{field}.resources")
    merged = {**_mapping(resources.get("limits"), f"{field}.resources.limits"),
              **_mapping(resources.get("requests"), f"{field}.resources.requests")}
    return {str(name): _amount(value, f"{field}.resources.{name}") for name, value in merged.items()}


def _amount(value: object, field: str) -> int:
    try:
        return quantity.parse(value)
    except Invalid as error:
        raise Invalid(f"{field}: {error.message}") from None


def _count(value: object, field: str) -> int:
    """Return a number of replicas; the default is 1."""
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _REPLICAS:
        raise Invalid(f"{field}: {excerpt(value)} is not an integer from 0 to {_REPLICAS}.")
    return value


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Invalid(f"{field}: not an object.")
    return value


def _sequence(value: object, field: str) -> Iterable[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Invalid(f"{field}: not a list.")
    return value
