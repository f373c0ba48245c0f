"""Overrides: changes of single fields of the copies in the clusters of a topology value."""

import copy
import re
from collections.abc import Mapping
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api.types import Override, Ref, Spread

_STEP = re.compile(r"\.?([A-Za-z0-9_-]+)|\[(\d{1,4})\]|\['([^'\]]{1,317})'\]|\[\"([^\"\]]{1,317})\"\]")
_LIMIT = 1024  # characters of a path
# Fields that a copy keeps: the identity of an object, and what API servers and agents write.
_FORBIDDEN = {"apiVersion", "kind", "status"}
_METADATA = {"labels", "annotations"}  # fields of metadata that may be overridden


def parse_path(value: object, field: str) -> tuple[str | int, ...]:
    """Return the steps of a path: ``spec.containers[0].image``, ``metadata.labels['a.b/c']``. Raises Invalid."""
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
    if steps[0] in _FORBIDDEN or (steps[0] == "metadata" and (len(steps) == 1 or steps[1] not in _METADATA)):
        raise Invalid(f"{field}: {value!r:.200} must not be overridden.")
    return tuple(steps)


def apply(manifest: dict[str, Any], ref: Ref, spread: Spread, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the manifest with the overrides for a cluster with these labels; the argument stays as it is. Raises
    Invalid if a path does not fit the object."""
    chosen = [override for override in spread.overrides
              if override.topology_value == labels.get(spread.topology_key)
              and (override.kind, override.api_version, override.name) == (ref.kind, ref.api_version, ref.name)
              and override.namespace in ("", ref.namespace)]
    if not chosen:
        return manifest
    changed = copy.deepcopy(manifest)
    for override in chosen:
        _set(changed, override)
    return changed


def _set(manifest: dict[str, Any], override: Override) -> None:
    target: Any = manifest
    for number, step in enumerate(override.path[:-1]):
        following: Any = [] if isinstance(override.path[number + 1], int) else {}
        target = _child(target, step, override, following)
    last = override.path[-1]
    if isinstance(last, int):
        _child(target, last, override, None)
    elif not isinstance(target, dict):
        raise _mismatch(override)
    target[last] = copy.deepcopy(override.value)


def _child(target: Any, step: str | int, override: Override, default: Any) -> Any:
    """Return a field or entry; a missing field of an object is created, a missing entry of a list is not."""
    if isinstance(step, int):
        if not isinstance(target, list) or step >= len(target):
            raise _mismatch(override)
        return target[step]
    if not isinstance(target, dict):
        raise _mismatch(override)
    if target.get(step) is None:
        target[step] = default
    return target[step]


def _mismatch(override: Override) -> Invalid:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in override.path).lstrip(".")
    return Invalid(f"overrides: {override.kind} {override.name} has no field {path!r:.200}.")
