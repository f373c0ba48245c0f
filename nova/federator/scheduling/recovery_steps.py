"""Steps of recovery plans: parsing, templates, fields, and the objects that no step may touch. Pure functions."""

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec

from nova.common.errors import Invalid
from nova.federator.api.names import CLUSTER_GROUP, NAMESPACE, RECOVERY_GROUP, SCHEDULE_GROUP
from nova.federator.api.quantity import excerpt
from nova.federator.scheduling.overrides import parse_path, set_field

_TEMPLATE = re.compile(r"\{\{\s*\.Values\.([A-Za-z_][A-Za-z0-9_]{0,62})\s*\}\}", re.ASCII)
_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_API_VERSION = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?v[a-z0-9]{1,62}", re.ASCII)
# A name or namespace is a segment of a request's path: with a slash it could name another object or a subresource.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_VALUE = 64 << 10  # maximum length of a value that a step reads, in characters
_VALUES = 256 << 10  # maximum length of all values of a run, which are stored in one object
# Groups whose objects grant rights, control the API server, or belong to Nova.
_PROTECTED_GROUPS = frozenset({
    SCHEDULE_GROUP, RECOVERY_GROUP, "rbac.authorization.k8s.io", "certificates.k8s.io", "apiextensions.k8s.io",
    "admissionregistration.k8s.io", "apiregistration.k8s.io", "coordination.k8s.io"})

_Seconds = Annotated[int, msgspec.Meta(ge=1, le=86400)]
_Key = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object of a step. ``resource``: the plural name of its kind."""

    apiVersion: str
    resource: str
    name: str
    namespace: str = ""


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    raw: Any


class _Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fieldPath: str
    value: _Value


class Patch(Target, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of one field of an object."""

    override: _Override
    patchType: Literal["application/merge-patch+json"] = "application/merge-patch+json"


class ReadField(Target, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A read of a field, whose value later steps can use under ``outputKey``."""

    fieldPath: str
    outputKey: _Key


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Job that must complete before the deadline. ``spec``: of a batch/v1 Job."""

    namespace: str
    spec: dict[str, Any]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deadlineSeconds: _Seconds = 600


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step. ``type`` names the field that contains its parameters: ``patch``, ``readField`` or ``job``."""

    type: Literal["patch", "readField", "job", "Job"]
    title: str = ""
    patch: Patch | None = None
    readField: ReadField | None = None
    job: Job | None = None


Action = Patch | ReadField | Job


def matches(plan: Mapping[str, Any], alert: Mapping[str, Any]) -> bool:
    """Return True if all labels of a plan are labels of an alert. A plan without labels matches no alert."""
    wanted = (plan.get("spec") or {}).get("alertLabels") or {}
    labels = (alert.get("spec") or {}).get("labels") or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def check(steps: Sequence[Mapping[str, Any]]) -> None:
    """Check the steps of a plan as far as possible before values exist. Raises Invalid, which names step and field."""
    outputs: dict[str, Any] = {}
    for number, step in enumerate(steps):
        action = parse(step, outputs, f"steps[{number}]")
        if isinstance(action, ReadField):
            outputs[action.outputKey] = "value"


def parse(step: Mapping[str, Any], values: Mapping[str, Any], field: str) -> Action:
    """Return the action of a step, with values in place of its templates. Raises Invalid, which names the field, also
    for objects that no step may touch."""
    try:
        parsed = msgspec.convert(_render(step, values), Step)
        part = {"patch": "patch", "readField": "readField"}.get(parsed.type, "job")
        action: Action | None = getattr(parsed, part)
        if action is None:
            raise Invalid(f"{part}: required for a step of type {parsed.type}.")
        if isinstance(action, Job):
            if not action.namespace:
                raise Invalid("job.namespace: required.")
            _check_namespace(action.namespace, "job.namespace")
        else:
            _check_target(action, part)
    except msgspec.ValidationError as error:
        raise Invalid(f"{field}: {error}") from None
    except Invalid as error:
        raise Invalid(f"{field}: {error.message}") from None
    return action


def _render(value: Any, values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Any:
    """Return a part of a step with its templates replaced. In free content, a text that consists of one template
    becomes the value itself, for example a number."""
    if isinstance(value, Mapping):
        return {key: _render(entry, values, (*path, str(key))) for key, entry in value.items()}
    if isinstance(value, list):
        return [_render(entry, values, path) for entry in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    if (whole := _TEMPLATE.fullmatch(value)) and ("raw" in path or "spec" in path):
        return copy.deepcopy(_value(whole, values))
    text = _TEMPLATE.sub(lambda match: _text(_value(match, values), match[1]), value)
    rest = _TEMPLATE.sub("", value)
    if "{{" in rest:
        raise Invalid(f"{'.'.join(path)}: {excerpt(rest[rest.index('{{'):])} is not of the form "
                      "{{ .Values.KEY }}.")
    return text


def _value(match: re.Match[str], values: Mapping[str, Any]) -> Any:
    if match[1] not in values:
        raise Invalid(f"no earlier step has the outputKey {match[1]}.")
    return values[match[1]]


def _text(value: Any, key: str) -> str:
    if isinstance(value, Mapping | list):
        raise Invalid(f"the value {key} is an object or a list and cannot be a part of a text.")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _check_target(action: Patch | ReadField, part: str) -> None:
    group = action.apiVersion.rpartition("/")[0]
    if not _API_VERSION.fullmatch(action.apiVersion) or not _RESOURCE.fullmatch(action.resource):
        raise Invalid(f"{part}: {excerpt(action.apiVersion)} {excerpt(action.resource)} is no apiVersion with a plural "
                      "name of a kind.")
    if not _NAME.fullmatch(action.name):
        raise Invalid(f"{part}.name: {excerpt(action.name)} is not the name of an object.")
    if group in _PROTECTED_GROUPS:
        raise Invalid(f"{part}.apiVersion: objects of the group {group} are protected.")
    _check_namespace(action.name if (group, action.resource) == ("", "namespaces") else action.namespace, part)
    if isinstance(action, ReadField):
        parse_path(action.fieldPath, "readField.fieldPath", writable=False)
        if (group, action.resource) == ("", "secrets"):
            raise Invalid("readField.resource: Secrets cannot be read, because the run shows the values.")
    elif parse_path(action.override.fieldPath, "patch.override.fieldPath")[0] != "metadata" and group == CLUSTER_GROUP:
        raise Invalid("patch.override.fieldPath: only metadata of a Cluster may be changed.")


def _check_namespace(namespace: str, field: str) -> None:
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise Invalid(f"{field}: {excerpt(namespace)} is not the name of a namespace.")
    if namespace == NAMESPACE or namespace.startswith(("kube-", "nova-cluster-")):
        raise Invalid(f"{field}: objects of the namespace {excerpt(namespace)} are protected.")


def read_field(obj: Mapping[str, Any], path: str) -> Any:
    """Return the value of a field. Raises Invalid if the object lacks the field or the value is too large."""
    value: Any = obj
    for step in parse_path(path, "readField.fieldPath", writable=False):
        present = isinstance(value, list) and step < len(value) if isinstance(step, int) else isinstance(
            value, Mapping) and step in value
        if not present:
            raise Invalid(f"readField.fieldPath: the object has no field {excerpt(path)}.")
        value = value[step]
    if len(msgspec.json.encode(value)) > _VALUE:
        raise Invalid(f"readField.fieldPath: {excerpt(path)} has more than {_VALUE} characters.")
    return value


def add_value(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the values of a run with a further value. Raises Invalid if they exceed _VALUES."""
    result = {**values, key: value}
    if len(msgspec.json.encode(result)) > _VALUES:
        raise Invalid(f"readField.outputKey: the values of the run have more than {_VALUES} characters.")
    return result


def merge_patch(obj: Mapping[str, Any], action: Patch) -> dict[str, Any]:
    """Return the merge patch of a step for an object. A merge patch replaces lists: a path into a list makes a patch
    with the whole list. Raises Invalid if the path does not fit the object."""
    path, value = parse_path(action.override.fieldPath, "patch.override.fieldPath"), action.override.value.raw
    length = next((number for number, step in enumerate(path) if isinstance(step, int)), len(path))
    if length < len(path):
        changed = copy.deepcopy(dict(obj))
        try:
            set_field(changed, path, value)
        except Invalid as error:
            raise Invalid(f"patch.override.fieldPath: the object {error.message}") from None
        value = functools.reduce(lambda part, step: part[step], path[:length], cast(Any, changed))
    for step in reversed(path[:length]):
        value = {step: value}
    result: dict[str, Any] = value
    if not isinstance(result.get("metadata", {}).get("annotations", {}), Mapping):
        raise Invalid("patch.override.value.raw: annotations can only be replaced by an object.")
    return result

