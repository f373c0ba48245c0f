"""Preparation of msgspec types for use by several threads."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

C = TypeVar("C")
# Held while msgspec builds the type information of a type. msgspec 0.22 publishes it before it is complete, and a
# second thread that reads it then crashes the process with a null pointer.
COMPILING = threading.RLock()
_COMPILED: weakref.WeakSet[Any] = weakref.WeakSet()


def compile_once(kind: Any) -> None:
    """Make msgspec build the type information of a type before several threads use it. Raises TypeError, NameError for
    an unsupported type."""
    if kind not in _COMPILED:
        with COMPILING:
            msgspec.json.Decoder(kind)
            _COMPILED.add(kind)


def compile_imported() -> None:
    """Make msgspec build the type information of all imported structs. Every process that decodes in threads calls this
    before they start, and again after further imports."""
    with COMPILING:
        for kind in subclasses(msgspec.Struct):
            with contextlib.suppress(TypeError, NameError):  # raised again when the struct is used
                compile_once(kind)


def subclasses(kind: type[C]) -> Iterator[type[C]]:
    """Yield the direct and indirect subclasses of a class."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)
