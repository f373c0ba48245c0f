"""The limits of a project."""

from nova.objects.base import Object


class Quotas(Object, kw_only=True):
    """The limits of a project (or of a user in it) by resource, and their current usage."""

    limits: dict[str, int]
    in_use: dict[str, int] = {}
