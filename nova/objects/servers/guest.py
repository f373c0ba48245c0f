"""Guests as reported by their host and as expected from the database."""

import datetime
from typing import Any

import msgspec

from nova.objects.base import Object

# Keys in system_metadata of the chunks of a guest's encrypted password, and characters per chunk.
PASSWORD_KEYS = tuple(f"password_{number}" for number in range(4))
_CHUNK = 255
PASSWORD_MAX = _CHUNK * len(PASSWORD_KEYS)


def password_items(value: str) -> dict[str, str]:
    """Return the system_metadata items for a password of at most PASSWORD_MAX characters."""
    return {key: value[number * _CHUNK:(number + 1) * _CHUNK] for number, key in enumerate(PASSWORD_KEYS)}


def password_of(system_metadata: dict[str, str]) -> str:
    """Return the password stored in these items, or ""."""
    return "".join(system_metadata.get(key, "") for key in PASSWORD_KEYS)


class GuestStatus(Object, kw_only=True):
    """A guest as reported by its host (power sync, audit). ``late``: the state may result from an order that had
    already timed out at the conductor."""

    uuid: str
    power_state: int
    late: bool = False


class ExpectedGuest(Object, kw_only=True):
    """The state of a guest expected from the database. ``settled``: it was started once and no operation is running.
    ``moving``: a migration is open, so the guest may be on another host, or its disks may be renamed."""

    uuid: str
    power_state: int
    settled: bool
    moving: bool = False


class Resumed(Object, kw_only=True):
    """Guests that ran before their host was booted. ``waiting``: still to be started; ``begun``: being started."""

    waiting: list[str] = []
    begun: list[str] = []


class Eviction(Object, kw_only=True):
    """The removal of an instance's guest from a host that the instance has left. ``keep_disks``: the disks stay.
    ``since``: time of the eviction; a later eviction from the same host replaces it."""

    uuid: str
    keep_disks: bool = False
    since: datetime.datetime | None = None


class Whereabouts(Object, kw_only=True):
    """The possible hosts of a guest: those of its server and of its open migrations. ``must_leave``: the guest may not
    stay on the requesting host (server deleted, or guest evicted from the host)."""

    uuid: str
    possible_hosts: list[str] = msgspec.field(default_factory=list, name="places")
    must_leave: bool = msgspec.field(default=False, name="gone")
    keep_disks: bool = False
    since: datetime.datetime | None = None  # time of the eviction, if there is one


class DiskImage(Object, kw_only=True):
    """A file on a host with the image of a guest's disk. ``format``: name of the format in the image service."""

    path: str
    format: str


class Diagnostics(Object, kw_only=True):
    """Diagnostics of a guest. ``values``: as in API 2.48 (null: unknown); ``flat``: by names of the driver."""

    values: dict[str, Any] = {}
    flat: dict[str, int] = {}
