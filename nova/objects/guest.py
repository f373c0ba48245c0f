"""A guest as its host and as the rows see it."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object

# The encrypted password of a guest: chunks of system_metadata, of so many characters each.
PASSWORD_KEYS = tuple(f"password_{number}" for number in range(4))
_CHUNK = 255
PASSWORD_MAX = _CHUNK * len(PASSWORD_KEYS)


def password_items(value: str) -> dict[str, str]:
    """A password as items of system_metadata, at most PASSWORD_MAX characters."""
    return {key: value[number * _CHUNK:(number + 1) * _CHUNK] for number, key in enumerate(PASSWORD_KEYS)}


def password_of(system_metadata: dict[str, str]) -> str:
    """The password that these items are; "" if none."""
    return "".join(system_metadata.get(key, "") for key in PASSWORD_KEYS)


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


class Resumed(Object, kw_only=True):
    """Guests that ran before their host was booted: those that wait for their turn, and those that are started now."""

    waiting: list[str] = []
    begun: list[str] = []


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


class DiskImage(Object, kw_only=True):
    """A file of a host that is an image of a guest's disk. ``format``: as the image service names it."""

    path: str
    format: str


class Diagnostics(Object, kw_only=True):
    """What a hypervisor tells of a guest: ``values`` as standardised (2.48; unknown ones are null), ``flat`` by names
    of its own, as older clients know them."""

    values: dict[str, Any] = {}
    flat: dict[str, int] = {}
