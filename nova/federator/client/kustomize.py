"""The part of kustomize that the folder ``install`` uses: novactl applies the same objects as ``kubectl apply -k``."""

import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from nova.common.errors import Invalid
from nova.federator.kube.client import Object

_FIELDS = {"apiVersion", "kind", "namespace", "resources", "components", "patches"}
# Fields with lists of objects whose elements are merged by the value of a field; other lists are replaced.
_KEYS = {"containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "imagePullSecrets": "name",
         "volumeMounts": "mountPath", "ports": "containerPort"}


def read(path: pathlib.Path) -> list[Object]:
    """Return the objects in a YAML file. Raises Invalid."""
    try:
        return [obj for obj in yaml.safe_load_all(path.read_text()) if obj]
    except OSError as error:
        raise Invalid(f"Cannot read {path}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise Invalid(f"{path} is not YAML: {error}") from None


def build(folder: pathlib.Path) -> list[Object]:
    """Return the objects of a kustomization; the field ``namespace`` is ignored. Raises Invalid for fields of kustomize
    that are not supported."""
    objects: list[Object] = []
    try:
        _add(folder, objects)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Invalid(f"{folder}: the kustomization or one of its files is malformed: {error!r}.") from None
    return objects


def _add(folder: pathlib.Path, objects: list[Object]) -> None:
    path = folder / "kustomization.yaml"
    content = read(path)[0]
    if unknown := sorted(content.keys() - _FIELDS):
        raise Invalid(f"{path}: novactl does not support {', '.join(unknown)}. Install with 'kubectl apply -k'.")
    for name in content.get("resources") or ():
        if (folder / name).is_dir():
            _add(folder / name, objects)
        else:
            objects += read(folder / name)
    for name in content.get("components") or ():
        _add(folder / name, objects)
    for entry in content.get("patches") or ():
        patches = read(folder / entry["path"]) if "path" in entry else list(yaml.safe_load_all(entry["patch"]))
        if entry.keys() - {"path", "patch", "target"} or entry.get("target", {}).keys() - {"kind", "name"}:
            raise Invalid(f"{path}: novactl supports patches with path, patch, and a target of kind and name only.")
        for patch in patches:
            target = entry.get("target") or {"kind": patch["kind"], "name": patch["metadata"]["name"]}
            _patch(objects, patch, target, path)


def _patch(objects: list[Object], patch: Any, target: Mapping[str, str], path: pathlib.Path) -> None:
    matches = [number for number, obj in enumerate(objects) if target.get("kind", obj["kind"]) == obj["kind"]
               and target.get("name", obj["metadata"]["name"]) == obj["metadata"]["name"]]
    if not matches:
        raise Invalid(f"{path}: a patch is for {' '.join(target.values())}, but no object has this kind and name.")
    for number in matches:
        if isinstance(patch, list):
            for operation in patch:
                _change(objects[number], operation, path)
        else:
            objects[number] = _merge(objects[number], patch)


def _merge(old: Any, patch: Any, field: str = "") -> Any:
    """Return the result of a strategic merge patch. Elements of the patch precede other elements, as in kustomize."""
    if isinstance(old, dict) and isinstance(patch, dict):
        if any(name.startswith("$") for name in patch):
            raise Invalid(f"novactl does not support the directives {', '.join(patch)} of patches.")
        merged = {name: value if name not in patch else _merge(value, patch[name], name) for name, value in old.items()}
        merged |= {name: value for name, value in patch.items() if name not in old}
        return {name: value for name, value in merged.items() if value is not None}
    key = _KEYS.get(field, "")
    if key and isinstance(old, list) and isinstance(patch, list):
        present = {element[key]: element for element in old}
        merged_elements = [_merge(present.pop(element[key], element), element) for element in patch]
        return [*merged_elements, *present.values()]
    return patch


def _change(obj: Any, operation: Mapping[str, Any], path: pathlib.Path) -> None:
    """Carry out an operation of a JSON patch."""
    *parents, last = operation["path"].removeprefix("/").replace("~1", "/").replace("~0", "~").split("/")
    kind = operation["op"]
    value = operation["value"] if kind in ("add", "replace") else None
    try:
        for name in parents:
            obj = obj[int(name)] if isinstance(obj, list) else obj[name]
        position: Any = last if not isinstance(obj, list) else len(obj) if last == "-" else int(last)
        if kind == "add" and isinstance(obj, list):
            obj.insert(position, value)
        elif kind in ("add", "replace"):
            obj[position] = value
        elif kind == "remove":
            del obj[position]
        else:
            raise Invalid(f"{path}: novactl does not support the operation {kind} of patches.")
    except (KeyError, IndexError, ValueError, TypeError):
        raise Invalid(f"{path}: a patch has the path {operation['path']}, which does not exist.") from None
