"""The base of everything that travels: msgspec structs, UTC times, ids."""

from __future__ import annotations

import datetime
import uuid

import msgspec


class Object(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A value that services exchange.

    Unknown fields are ignored and every field added after the first release has a default, so
    that neighbours of one release older or newer understand each other. Subclasses repeat
    ``kw_only=True``: msgspec does not inherit it.
    """


def utcnow() -> datetime.datetime:
    """Now, aware, in UTC."""
    return datetime.datetime.now(datetime.UTC)


def new_uuid() -> str:
    return str(uuid.uuid4())
