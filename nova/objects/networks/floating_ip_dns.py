"""DNS names of floating IP addresses."""

import msgspec

from nova.objects.base import Object


class ServedDomain(Object, kw_only=True):
    """DNS records that hosts serve for a domain: name (relative) -> address. ``removed``: this host does not serve the
    domain."""

    domain: str
    version: int
    names: dict[str, str] = {}
    removed: bool = msgspec.field(default=False, name="gone")


class Domain(Object, kw_only=True):
    """A domain. ``scope`` public: names belong to ``project_id`` (None: any project); private: managed by
    administrators."""

    domain: str
    scope: str
    project_id: str | None = None
    availability_zone: str | None = None


class Entry(Object, kw_only=True):
    """A DNS record. ``project_id``: its owner; None: an administrator."""

    domain: str
    name: str
    address: str
    type: str = "A"
    project_id: str | None = None
