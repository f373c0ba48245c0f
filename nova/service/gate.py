"""A gate that lets some threads through at a time, by turns of their projects."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from nova.service.turns import Line

# Seconds after which somebody inside is taken to wait for somebody else.
_PATIENCE = 0.05


class Gate:
    """Lets ``places`` threads through at the same time; the projects that wait take turns, as in ``Turns``.

    Whoever is inside for longer than ``patience`` seconds waits for something, such as a lock: the place is given to
    another one meanwhile, so that those who stand still do not hold up the others. Thread-safe.
    """

    def __init__(self, places: int, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._free = places
        self._line: Line[_Entry] = Line()
        self._inside: set[_Entry] = set()

    @contextlib.contextmanager
    def turn(self, project_id: str | None) -> Iterator[None]:
        """The block runs when it is this project's turn."""
        entry = _Entry()
        with self._lock:
            if self._free and not self._line.waiting:
                self._let_in(entry)
            else:
                self._line.put(project_id or "", entry)
                entry.admitted = threading.Event()
        while entry.admitted is not None and not entry.admitted.wait(self._patience):
            with self._lock:
                self._pass_by()
        try:
            yield
        finally:
            with self._lock:
                self._leave(entry)

    def waiting(self) -> int:
        """How many wait outside."""
        with self._lock:
            return self._line.waiting

    def free(self) -> int:
        """How many would not have to wait."""
        with self._lock:
            return self._free

    def _let_in(self, entry: _Entry) -> None:
        self._free -= 1
        entry.since = time.monotonic()
        self._inside.add(entry)
        if entry.admitted is not None:
            entry.admitted.set()

    def _leave(self, entry: _Entry) -> None:
        if entry not in self._inside:
            return  # its place was given away
        self._inside.remove(entry)
        self._free += 1
        if self._line.waiting:
            self._let_in(self._line.take())

    def _pass_by(self) -> None:
        """Give away the places of those who stand still."""
        before = time.monotonic() - self._patience
        for entry in [entry for entry in self._inside if entry.since <= before]:
            self._leave(entry)


class _Entry:
    """A thread at the gate; one that has to wait has an event for that."""

    __slots__ = ("admitted", "since")

    def __init__(self) -> None:
        self.admitted: threading.Event | None = None
        self.since = 0.0
