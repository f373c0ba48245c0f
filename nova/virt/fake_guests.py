"""The guests of one virtual host: a few bytes each in memory, and in one append-only file if they are to survive.

Made for 100,000 of them: remembering a guest is one write of one line, starting again is reading one file.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator

from nova import exception
from nova.objects import states

# The file is written anew when it has this many times more lines than there are guests.
_SLACK = 4
_FEW = 1000
_GONE = "-"


@dataclasses.dataclass(slots=True)
class Guest:
    """What the hypervisor knows of a guest; ``booted`` holds the times (seconds) of its boots."""

    power_state: int
    name: str = ""
    booted: tuple[int, ...] = ()


class GuestStore:
    """Guests by uuid; thread-safe. ``path``: the file that they are kept in (None: nowhere)."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._guests: dict[str, Guest] = {}
        self._lock = threading.Lock()
        self._file = -1
        self._lines = 0

    def open(self) -> None:
        """Take up what an earlier process left. Does nothing the second time."""
        with self._lock:
            if self._path is None or self._file >= 0:
                return
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            for uuid, state in self._kept(self._path):
                if state == _GONE:
                    self._guests.pop(uuid, None)
                else:
                    self._guests[uuid] = Guest(int(state))
            self._rewrite()

    @staticmethod
    def _kept(path: str) -> Iterator[list[str]]:
        if not os.path.exists(path):
            return
        with open(path) as file:
            for line in file:
                fields = line.split()
                # The last line of a process that was killed may be half there.
                if len(fields) == 2 and line.endswith("\n"):
                    yield fields

    def get(self, uuid: str) -> Guest:
        """Raises GuestNotFound."""
        guest = self._guests.get(uuid)
        if guest is None:
            raise exception.GuestNotFound(instance_uuid=uuid)
        return guest

    def boot(self, uuid: str, name: str) -> None:
        """There is such a guest, and it runs."""
        with self._lock:
            guest = self._guests.get(uuid)
            if guest is None:
                guest = self._guests[uuid] = Guest(states.RUNNING, name)
            guest.power_state = states.RUNNING
            guest.booted = (*guest.booted[-9:], int(time.time()))
            self._note(uuid, str(states.RUNNING))

    def set(self, uuid: str, power_state: int) -> None:
        """Raises GuestNotFound."""
        with self._lock:
            self.get(uuid).power_state = power_state
            self._note(uuid, str(power_state))

    def add(self, uuid: str, power_state: int) -> None:
        with self._lock:
            self._guests[uuid] = Guest(power_state)

    def remove(self, uuid: str) -> None:
        """No such guest: fine."""
        with self._lock:
            if self._guests.pop(uuid, None) is not None:
                self._note(uuid, _GONE)

    def power_states(self) -> list[tuple[str, int]]:
        with self._lock:
            return [(uuid, guest.power_state) for uuid, guest in self._guests.items()]

    def _note(self, uuid: str, state: str) -> None:
        if self._file < 0:
            return
        # One write of one line: whole, or (when the machine dies) not there.
        os.write(self._file, f"{uuid} {state}\n".encode())
        self._lines += 1
        if self._lines > max(_FEW, _SLACK * len(self._guests)):
            self._rewrite()

    def _rewrite(self) -> None:
        """The file with one line for each guest."""
        assert self._path is not None
        new = self._path + ".new"
        with open(new, "w") as file:
            file.writelines(f"{uuid} {guest.power_state}\n" for uuid, guest in self._guests.items())
        os.replace(new, self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._guests)
