"""Names of floating addresses."""

from __future__ import annotations

from nova.objects.base import Object


class ServedDomain(Object, kw_only=True):
    """What hosts answer for a domain: name (below it) -> address. ``gone``: it is not, or no more, for this host."""

    domain: str
    version: int
    names: dict[str, str] = {}
    gone: bool = False


class Domain(Object, kw_only=True):
    """``scope`` public: the names are ``project_id``'s, or everybody's (None); private: an administrator's."""

    domain: str
    scope: str
    project_id: str | None = None
    availability_zone: str | None = None


class Entry(Object, kw_only=True):
    """``project_id``: whose it is; None: an administrator's."""

    domain: str
    name: str
    address: str
    type: str = "A"
    project_id: str | None = None
