"""A guest as its host and as the rows see it."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object

# The password that a guest posts: chunks of system_metadata.
PASSWORD_KEYS = tuple(f"password_{number}" for number in range(4))


class GuestStatus(Object, kw_only=True):
    """One guest as the hypervisor of a host sees it (power sync, audit).

    ``late``: an order that nobody waited for any more may have made it so.
    """

    uuid: str
    power_state: int
    late: bool = False


class ExpectedGuest(Object, kw_only=True):
    """What the rows say of a guest; ``settled``: it was started once, and no operation is under way.

    ``moving``: a migration of it is open, so that it may be somewhere else, or set aside.
    """

    uuid: str
    power_state: int
    settled: bool
    moving: bool = False


class Eviction(Object, kw_only=True):
    """The guest of an instance that a host was given up with: the host removes it (``keep_disks``: not its disks).

    ``since``: when that was said; a later word replaces it.
    """

    uuid: str
    keep_disks: bool = False
    since: datetime.datetime | None = None


class Whereabouts(Object, kw_only=True):
    """Where the rows say that a guest may be: the hosts of its server, and of its open migrations.

    ``gone``: it may not stay on the host that asked (its server is deleted, or it was evicted from there).
    """

    uuid: str
    places: list[str] = []
    gone: bool = False
    keep_disks: bool = False
    # That of its eviction, if there is one.
    since: datetime.datetime | None = None


class Diagnostics(Object, kw_only=True):
    """Standardised diagnostics of a guest, 2.48; unknown values are null."""

    values: dict[str, Any] = {}
