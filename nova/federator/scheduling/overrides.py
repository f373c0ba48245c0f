"""Overrides: changes of single fields of the copies in the clusters of a topology value."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api.types import Ref, Spread

_STEP = re.compile(r"\.?([A-Za-z0-9_-]+)|\[(\d{1,4})\]|\['([^'\]]{1,317})'\]|\[\"([^\"\]]{1,317})\"\]")
_LIMIT = 1024  # maximum length of a path, in characters
# Fields that must not be overridden: the identity of an object, and fields that API servers and agents write.
_FORBIDDEN = {"apiVersion", "kind", "status"}
_METADATA = {"labels", "annotations"}  # fields of metadata that may be overridden


def parse_path(value: object, field: str, writable: bool = True) -> tuple[str | int, ...]:
    """Return the steps of a path: ``spec.containers[0].image``, ``metadata.labels['a.b/c']``. ``writable``: refuse
    fields that must not be changed. Raises Invalid."""
    if not isinstance(value, str) or not value or len(value) > _LIMIT:
        raise Invalid(f"{field}: not a text of 1 to {_LIMIT} characters.")
    steps: list[str | int] = []
    position = 0
    while position < len(value):
        match = _STEP.match(value, position)
        if match is None or (position == 0) == value.startswith(("[", "."), position):
            raise Invalid(f"{field}: {value!r:.200} is not a path at character {position + 1}.")
        steps.append(int(match[2]) if match[2] else match[1] or match[3] or match[4])
        position = match.end()
    if writable and (steps[0] in _FORBIDDEN or (
            steps[0] == "metadata" and (len(steps) == 1 or steps[1] not in _METADATA))):
        raise Invalid(f"{field}: {value!r:.200} must not be overridden.")
    return tuple(steps)


def apply(manifest: dict[str, Any], ref: Ref, spread: Spread, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the manifest with the overrides for a cluster with these labels; ``manifest`` itself is not changed.
    Raises Invalid if a path does not fit the object."""
    chosen = [override for override in spread.overrides
              if override.topology_value == labels.get(spread.topology_key)
              and (override.kind, override.api_version, override.name) == (ref.kind, ref.api_version, ref.name)
              and override.namespace in ("", ref.namespace)]
    if not chosen:
        return manifest
    changed = copy.deepcopy(manifest)
    for override in chosen:
        try:
            set_field(changed, override.path, override.value)
        except Invalid as error:
            raise Invalid(f"overrides: {override.kind} {override.name} {error.message}") from None
    return changed


def set_field(manifest: dict[str, Any], path: Sequence[str | int], value: Any) -> None:
    """Set a field of a manifest. Missing objects on the path are created; missing entries of lists are not. Raises
    Invalid, whose message continues a sentence with the manifest as its subject."""
    target: Any = manifest
    for number, step in enumerate(path):
        _check_step(target, step, path)
        if number == len(path) - 1:
            target[step] = copy.deepcopy(value)
        elif isinstance(step, str) and target.get(step) is None:
            target[step] = [] if isinstance(path[number + 1], int) else {}
        target = target[step]


def _check_step(target: Any, step: str | int, path: Sequence[str | int]) -> None:
    fits = isinstance(target, list) and step < len(target) if isinstance(step, int) else isinstance(target, dict)
    if not fits:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        raise Invalid(f"has no field {text!r:.200}.")
