"""The base of everything that travels: msgspec structs, UTC times, ids."""

from __future__ import annotations

import datetime
import re
import threading
import uuid
import weakref
from typing import Any

import msgspec

# Held by whoever has msgspec look at a type for the first time: it (0.22) publishes what it has found so far before it
# is complete, and a second thread that comes meanwhile reads a null pointer, of which the process dies.
COMPILING = threading.RLock()
_COMPILED: weakref.WeakSet[Any] = weakref.WeakSet()

# Any number of so many fits into 64 bits.
_DIGITS = 18


class Object(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A value that services exchange.

    Unknown fields are ignored and every field added after the first release has a default, so
    that neighbours of one release older or newer understand each other. Subclasses repeat
    ``kw_only=True``: msgspec does not inherit it.
    """


def compile_once(kind: Any) -> None:
    """Have msgspec look at a type (a struct, a typed dictionary, a list of such) before threads use it together.

    Raises TypeError, NameError when it cannot.
    """
    if kind not in _COMPILED:
        with COMPILING:
            msgspec.json.Decoder(kind)
            _COMPILED.add(kind)


def utcnow() -> datetime.datetime:
    """Now, aware, in UTC."""
    return datetime.datetime.now(datetime.UTC)


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_canonical(uuid_: str) -> bool:
    """Whether it is written as new_uuid() writes them: part of a path, it leads nowhere else."""
    return _UUID.fullmatch(uuid_) is not None


def new_uuid() -> str:
    return str(uuid.uuid4())


def whole(text: str) -> int | None:
    """The number that a text is; None if it is none, or longer than any that is meant."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
