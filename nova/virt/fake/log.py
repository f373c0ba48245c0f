"""A dictionary in an append-only file: a change writes one line, a restart reads the file once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

V = TypeVar("V")

# The file is rewritten when it has this many times more lines than keys.
_SLACK = 4
_FEW = 1000


class AppendOnlyFile:
    """Keys without blanks, and JSON values. The newest value of a key is valid; None deletes the key. Not thread-safe;
    the owner holds a lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._lines = 0

    @property
    def is_open(self) -> bool:
        return self._file >= 0

    def load_into(self, into: dict[str, V], restored: Callable[[Any], V], encode: Callable[[V], Any]) -> None:
        """Load the entries of a previous process into ``into``. A repeated call does nothing."""
        if self.is_open:
            return
        for key, value in self.read():
            if value is None:
                into.pop(key, None)
            else:
                into[key] = restored(value)
        self.rewrite((key, encode(value)) for key, value in into.items())

    def read(self) -> Iterator[tuple[str, Any]]:
        """Yield the entries of a previous process in the order of writing."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        if not os.path.exists(self._path):
            return
        with open(self._path) as file:
            for line in file:
                # The last line of a killed process may be incomplete.
                if line.endswith("\n"):
                    key, _, value = line.partition(" ")
                    yield key, json.loads(value)

    def note(self, key: str, value: Any, everything: Iterable[tuple[str, Any]], count: int) -> None:
        """Write a value. ``everything``: all entries of the owner; ``count``: their number."""
        if self._file < 0:
            return
        # One write per line: after a crash the line is complete or missing.
        os.write(self._file, _line(key, value).encode())
        self._lines += 1
        if self._lines > max(_FEW, _SLACK * count):
            self.rewrite(everything)

    def rewrite(self, everything: Iterable[tuple[str, Any]]) -> None:
        """Rewrite the file with one line per key and keep it open."""
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
