"""A dictionary in one append-only file: remembering something is one write of one line, starting again is one read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

V = TypeVar("V")

# The file is written anew when it has this many times more lines than there are keys.
_SLACK = 4
_FEW = 1000


class KeptLines:
    """Keys without blanks and JSON values; the newest value of a key counts, None says that it is gone.

    Not thread-safe: the owner has a lock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._lines = 0

    @property
    def is_open(self) -> bool:
        return self._file >= 0

    def take_up(self, into: dict[str, V], restored: Callable[[Any], V], kept: Callable[[V], Any]) -> None:
        """Put into ``into`` what an earlier process left. Does nothing the second time."""
        if self.is_open:
            return
        for key, value in self.read():
            if value is None:
                into.pop(key, None)
            else:
                into[key] = restored(value)
        self.rewrite((key, kept(value)) for key, value in into.items())

    def read(self) -> Iterator[tuple[str, Any]]:
        """What an earlier process left, in the order in which it was noted."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        if not os.path.exists(self._path):
            return
        with open(self._path) as file:
            for line in file:
                # The last line of a process that was killed may be half there.
                if line.endswith("\n"):
                    key, _, value = line.partition(" ")
                    yield key, json.loads(value)

    def note(self, key: str, value: Any, everything: Iterable[tuple[str, Any]], count: int) -> None:
        """Remember a value. ``everything`` is what the owner has now, ``count`` its number."""
        if self._file < 0:
            return
        # One write of one line: whole, or (when the machine dies) not there.
        os.write(self._file, _line(key, value).encode())
        self._lines += 1
        if self._lines > max(_FEW, _SLACK * count):
            self.rewrite(everything)

    def rewrite(self, everything: Iterable[tuple[str, Any]]) -> None:
        """The file with one line for each key; it is open from now on."""
        new = self._path + ".new"
        lines = 0
        with open(new, "w") as file:
            for key, value in everything:
                file.write(_line(key, value))
                lines += 1
        os.replace(new, self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = lines


def _line(key: str, value: Any) -> str:
    return f"{key} {json.dumps(value, separators=(',', ':'))}\n"
