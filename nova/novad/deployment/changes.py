"""Consequences of the changes of a deployment, by the dependencies of their components."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from nova.common.errors import Invalid, Refused
from nova.novad.deployment.journal import Change, Deployed
from nova.novad.platform import Component, Volume, in_order


def ordered(components: Mapping[str, Component], sure: Collection[str] = ()) -> list[str]:
    """Names behind those that they depend on.

    What components of several platform files say of one another may be a circle; then only what those of ``sure`` say
    counts, which are of one file.
    """
    dependencies = {name: [dependency for dependency in component.depends if dependency in components]
                    for name, component in components.items()}
    try:
        return in_order(dependencies)
    except Invalid:
        return in_order({name: depends if name in sure else [] for name, depends in dependencies.items()})


def volumes_of(change: Change) -> list[Volume]:
    """Return the volumes that the component had, and those that it gets."""
    volumes = {volume.name: volume for deployed in (change.after, change.before) if deployed is not None
               for volume in deployed.component.volumes}
    return list(volumes.values())


def stopping(former: Mapping[str, Deployed], dumped: Set[str]) -> dict[str, Deployed]:
    """Return the components of ``former`` (those to change, in order) that stop while data are copied.

    These are the ones that write the data, and those that depend on one that stops: they would wait for it, and some
    do not end before it is back."""
    stopped: dict[str, Deployed] = {}
    for name, deployed in former.items():
        component = deployed.component
        if name not in dumped and (component.volumes or component.data_of or stopped.keys() & set(component.depends)):
            stopped[name] = deployed
    return stopped


def check_data_paths(deployed: Deployed, paths: Iterable[str]) -> None:
    """Raise Refused if the image declares a volume at a path that no mount of the component covers.

    A mount covers its destination and everything below. Data elsewhere end with their container, without a backup.
    ``paths``: as the image declares them.
    """
    component = deployed.component
    mounts = [_path(destination) for destination in (
        *(volume.destination for volume in component.volumes), *component.files,
        *(bind.destination for bind in component.binds))]
    open_paths = [path for path in sorted({_path(destination) for destination in paths})
                  if not any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts)]
    if open_paths:
        raise Refused(
            f"Component {deployed.name}: the image {component.reference()} stores data at {', '.join(open_paths)}, "
            "which the component does not name. The data would be lost whenever the container is created again. Add a "
            "volume with this destination to the component, with backup = false if the data are disposable, or a "
            "bind. Nothing was changed.")


def _path(path: str) -> str:
    """Return a path of a container without repeated or trailing slashes."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def check_depends(changes: Sequence[Change], current: Iterable[str]) -> None:
    """Raises Refused: something would be deployed whose dependency is not, or whose data it changes.

    It would wait for that in vain; and data of an earlier life of it, which are kept, would not be put back.
    """
    there = {*current, *(change.name for change in changes)} - {change.name for change in changes if not change.after}
    for change in changes:
        if change.after is not None:
            component = change.after.component
            lacking = [name for name in dict.fromkeys([*component.depends, *component.data_of]) if name not in there]
            if lacking:
                raise Refused(f"{change.name} depends on components that are not deployed: {', '.join(lacking)}. "
                              "Deploy these, too (without names: all components). Nothing was changed.")
