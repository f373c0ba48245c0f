"""Base class of data structures that services exchange, and helpers for times and ids."""

import datetime
import re
import uuid

import msgspec

_DIGITS = 18  # every number with that many digits fits into 64 bits


class Object(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of the structs that services exchange. Unknown fields are ignored, and every field added after the first
    release has a default, so that services one release older or newer understand each other. Subclasses must repeat
    ``kw_only=True``: msgspec does not inherit it."""


def utcnow() -> datetime.datetime:
    """Return the current time, timezone-aware, in UTC."""
    return datetime.datetime.now(datetime.UTC)


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_canonical(uuid_: str) -> bool:
    """Return True if the text has the format of new_uuid(). Such a text is safe as a component of a path."""
    return _UUID.fullmatch(uuid_) is not None


def new_uuid() -> str:
    return str(uuid.uuid4())


def whole(text: str) -> int | None:
    """Return the number in the text, or None if it is not a number or has too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
