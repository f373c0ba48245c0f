"""The limits of a project."""

from __future__ import annotations

from nova.objects.base import Object


class Quotas(Object, kw_only=True):
    """The limits of a project (or of one user in it) by resource, and what is in use of them."""

    limits: dict[str, int]
    in_use: dict[str, int] = {}
