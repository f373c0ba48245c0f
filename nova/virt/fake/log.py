"""A dictionary in an append-only file: a change writes one line, a restart reads the file once."""

import contextlib
import os
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from nova.common.structs import compile_once

V = TypeVar("V")

# The file is rewritten when it has more than _FEW lines, and more than _SLACK lines per key.
_SLACK = 4
_FEW = 1000


class AppendOnlyFile(Generic[V]):
    """Keys without blanks, and values of the type ``kind`` as JSON. The newest value of a key is valid; None deletes
    the key. Without ``path`` nothing is stored. Not thread-safe; the owner holds a lock."""

    def __init__(self, path: str | None, kind: type[V]) -> None:
        self._path, self._kind = path or "", kind
        self._file = -1
        self._lines = 0

    def load_into(self, into: dict[str, V]) -> None:
        """Load the entries of a previous process into ``into``. A repeated call does nothing."""
        if self._file >= 0 or not self._path:
            return
        compile_once(self._kind)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            for line in file:
                key, _, value = line.partition(b" ")
                if value == b"null\n":
                    into.pop(key.decode(), None)
                elif line.endswith(b"\n"):  # the last line of a killed process may be incomplete
                    into[key.decode()] = msgspec.json.decode(value, type=self._kind)
        self._rewrite(into)

    def note(self, key: str, value: V | None, everything: Mapping[str, V]) -> None:
        """Write a value (None: the key is deleted). ``everything``: all current entries, to rewrite the file."""
        if self._file < 0:
            return
        # One write per line: after a crash the line is complete or missing.
        os.write(self._file, _line(key, value))
        self._lines += 1
        if self._lines > max(_FEW, _SLACK * len(everything)):
            self._rewrite(everything)

    def _rewrite(self, everything: Mapping[str, V]) -> None:
        new = self._path + ".new"
        with open(new, "wb") as file:
            file.writelines(_line(key, value) for key, value in everything.items())
        os.replace(new, self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(everything)


def _line(key: str, value: object) -> bytes:
    return key.encode() + b" " + msgspec.json.encode(value) + b"\n"
