"""Consequences of the changes of a deployment by the dependencies of their components."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence, Set

from nova.common.errors import Refused
from nova.novad.deployment.journal import Change, Deployed
from nova.novad.platform import Volume

_SHOWN = 10  # Maximum number of paths of an image in an error.


def volumes_of(change: Change) -> list[Volume]:
    """Return the volumes that the component has before or after the change."""
    volumes = {volume.name: volume for deployed in (change.after, change.before) if deployed is not None
               for volume in deployed.component.volumes}
    return list(volumes.values())


def stopping(former: Mapping[str, Deployed], dumped: Set[str]) -> dict[str, Deployed]:
    """Return the components of ``former`` (in the order of dependencies) that stop while data are copied.

    These are the components that write the data, and those that depend on a stopped one and would wait for it.
    """
    stopped: dict[str, Deployed] = {}
    for name, deployed in former.items():
        component = deployed.component
        if name not in dumped and (component.volumes or component.data_of or stopped.keys() & set(component.depends)):
            stopped[name] = deployed
    return stopped


def check_data_paths(deployed: Deployed, paths: Iterable[str]) -> None:
    """Raise Refused if the image declares a volume outside of all mounts: its data would be lost with the container."""
    component = deployed.component
    mounts = [_path(destination) for destination in (
        *(volume.destination for volume in component.volumes), *component.files,
        *(bind.destination for bind in component.binds))]
    open_paths = [path for path in sorted({_path(destination) for destination in paths})
                  if not any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts)]
    if open_paths:
        more = f" and {len(open_paths) - _SHOWN} more paths" if len(open_paths) > _SHOWN else ""
        raise Refused(
            f"Component {deployed.name}: the image {component.reference()} stores data at "
            f"{', '.join(path if path.isprintable() else ascii(path) for path in open_paths[:_SHOWN])}{more}, "
            "which the component does not name. The data would be lost whenever the container is created again. Add a "
            "volume with this destination to the component, with backup = false if the data are disposable, or a "
            "bind. Nothing was changed.")


def _path(path: str) -> str:
    """Return a path of a container without repeated or trailing slashes."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def check_depends(changes: Sequence[Change], current: Iterable[str]) -> None:
    """Raise Refused if a component depends on, or writes the data of, a component that is not deployed."""
    there = {*current, *(change.name for change in changes)} - {change.name for change in changes if not change.after}
    for change in changes:
        if change.after is not None:
            component = change.after.component
            lacking = [name for name in dict.fromkeys([*component.depends, *component.data_of]) if name not in there]
            if lacking:
                raise Refused(f"{change.name} depends on components that are not deployed: {', '.join(lacking)}. "
                              "Deploy these, too (without names: all components). Nothing was changed.")
