"""Conditions and consequences of the changes of a deployment: dependencies, data paths and digests.

The first deployment of a tag records its digest; later ones refuse another image behind the tag. A tag is resolved once
per deployment. A new digest is accepted if the deployment names it (``COMPONENT=TAG@sha256:…``) or the platform file
does (``digest``). A channel may move by itself if the registry is authenticated by TLS.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from nova.common.errors import Refused
from nova.novad.deployment.journal import Change, Deployed, Journal
from nova.novad.platform import Component, Volume, normalized
from nova.novad.runtime import images

_DIGEST = "digest "  # Prefix of facts in the journal.
_SHOWN = 10  # Maximum number of paths of an image in an error.


def volumes_of(change: Change) -> list[Volume]:
    """Return the volumes that the component has before or after the change."""
    volumes = {volume.name: volume for deployed in (change.after, change.before) if deployed is not None
               for volume in deployed.component.volumes}
    return list(volumes.values())


def stopping(former: Mapping[str, Deployed], dumped: Set[str]) -> dict[str, Deployed]:
    """Return the components of ``former`` (in the order of dependencies) that stop while data are copied. These are the
    components that write the data, and those that depend on a stopped one and would wait for it."""
    stopped: dict[str, Deployed] = {}
    for name, deployed in former.items():
        component = deployed.component
        if name not in dumped and (component.volumes or component.data_of or stopped.keys() & set(component.depends)):
            stopped[name] = deployed
    return stopped


def open_paths(component: Component, paths: Iterable[str]) -> list[str]:
    """Return the volume paths of an image that no mount of the component covers."""
    mounts = [normalized(path) for path in component.mount_points()]
    return [path for path in sorted({normalized(destination) for destination in paths})
            if not any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts)]


def check_data_paths(deployed: Deployed, paths: Iterable[str], removal: bool = False) -> None:
    """Raise Refused if the image declares a volume outside of all mounts: its data would be lost with the container."""
    if lacking := open_paths(deployed.component, paths):
        more = f" and {len(lacking) - _SHOWN} more paths" if len(lacking) > _SHOWN else ""
        shown = ", ".join(path if path.isprintable() else ascii(path) for path in lacking[:_SHOWN])
        way_out = ("Remove the data with the components (nova remove --remove-volumes), or first deploy the component "
                   "with a volume") if removal else "Add a volume with this destination to the component"
        raise Refused(f"Component {deployed.name}: the image {deployed.component.reference()} stores data at {shown}"
                      f"{more}, which the component does not name. The data would be lost whenever the container is "
                      f"removed or created again. {way_out}, with backup = false if the data are disposable, or a "
                      "bind. Copy existing data from the container before (podman cp). Nothing was changed.")


def check_depends(changes: Sequence[Change], current: Iterable[str]) -> None:
    """Raise Refused if a component depends on, or writes the data of, a component that is not deployed."""
    there = {*current, *(change.name for change in changes)} - {change.name for change in changes if not change.after}
    for name, component in [(change.name, change.after.component) for change in changes if change.after is not None]:
        required = dict.fromkeys([*component.depends, *component.data_of])
        if lacking := [other for other in required if other not in there]:
            raise Refused(f"{name} depends on components that are not deployed: {', '.join(lacking)}. "
                          "Deploy these, too (without names: all components). Nothing was changed.")


def check_digest(journal: Journal, name: str, component: Component, digest: str) -> None:
    """Raise Refused if the registry has another image behind the tag of component ``name`` than was recorded."""
    if recorded := former_digest(journal, component, digest):
        raise Refused(f"{_tagged(component)} is not the image that was deployed: the registry has {digest}, the "
                      f"recorded digest is {recorded}. If that is intended: nova deploy "
                      f"{name}={component.tag}@{digest}. Nothing was changed.")


def former_digest(journal: Journal, component: Component, digest: str) -> str:
    """Return the recorded digest of the tag if it is another one, so that the change must be confirmed, or ""."""
    if component.digest or tag_moves(component) or not digest:
        return ""
    tagged = _tagged(component)
    # Earlier releases recorded the digests of deployed images only with the components.
    recorded = journal.fact(f"{_DIGEST}{tagged}") or next(
        (deployed.digest for deployed in journal.components().values() if _tagged(deployed.component) == tagged), "")
    return recorded if recorded != digest else ""


def tag_moves(component: Component) -> bool:
    """Return True if another image behind the tag is an update: it is a channel, and TLS authenticates the registry."""
    return not component.version and not images.is_on_loopback(component.image)


def record_digests(journal: Journal, changes: Iterable[Change]) -> None:
    for change in changes:
        if change.after is not None and change.after.digest and change.after != change.before:
            journal.set_fact(f"{_DIGEST}{_tagged(change.after.component)}", change.after.digest)


def _tagged(component: Component) -> str:
    return f"{component.image}:{component.tag}"
