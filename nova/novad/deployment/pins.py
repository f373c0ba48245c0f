"""Digests of tags. The first deployment of a tag records its digest; later ones refuse another image behind the tag.

A tag is resolved once per deployment. A new digest is accepted if the deployment names it (``COMPONENT=TAG@sha256:…``)
or the platform file does (``digest``). A channel may move by itself if the registry is authenticated by TLS.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nova.common.errors import Refused
from nova.novad.deployment.journal import Change, Journal
from nova.novad.platform import Component
from nova.novad.runtime import images

_DIGEST = "digest "  # Prefix of facts in the journal.


def recorded(journal: Journal, component: Component) -> str:
    """Return the digest that the component's tag was deployed with, or "" if it never was."""
    tagged = _tagged(component)
    if digest := journal.fact(f"{_DIGEST}{tagged}"):
        return digest
    # Earlier releases recorded the digests of deployed images only with the components.
    components = journal.components().values()
    return next((deployed.digest for deployed in components if _tagged(deployed.component) == tagged), "")


def check(journal: Journal, name: str, component: Component, digest: str) -> None:
    """Raise Refused if the registry has another image behind the tag of component ``name`` than was recorded."""
    if differs(journal, component, digest):
        raise Refused(
            f"{_tagged(component)} is not the image that was deployed: the registry has {digest}, "
            f"the recorded digest is {recorded(journal, component)}. If that is intended: "
            f"nova deploy {name}={component.tag}@{digest}. Nothing was changed.")


def differs(journal: Journal, component: Component, digest: str) -> bool:
    """Return True if the component's tag has another digest than the recorded one, which must be confirmed."""
    if component.digest or moves(component):
        return False
    before = recorded(journal, component)
    return bool(before and digest and before != digest)


def moves(component: Component) -> bool:
    """Return True if another image behind the tag is an update: the tag is a channel, and TLS authenticates the
    registry."""
    return not component.version and not images.is_on_loopback(component.image)


def record(journal: Journal, changes: Iterable[Change]) -> None:
    for change in changes:
        if change.after is not None and change.after.digest and change.after != change.before:
            journal.set_fact(f"{_DIGEST}{_tagged(change.after.component)}", change.after.digest)


def without_digest(component: Component) -> Component:
    """Return the component without the requested digest, for a comparison of the image itself."""
    return msgspec.structs.replace(component, digest="")


def _tagged(component: Component) -> str:
    return f"{component.image}:{component.tag}"
