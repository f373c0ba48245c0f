"""Deadlines of messages: the fields that the sender adds, and their evaluation by the receiver."""

import collections
import dataclasses
import functools
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

# Fields of a message next to its request context: the time of sending by the wall clock (seconds since the epoch) and
# by the monotonic clock, the id of the monotonic clock, and the seconds after which the message expires.
FIELDS = SENT_AT, _STEADY, _CLOCK, _SECONDS = "sent_at", "steady", "clock", "seconds"
_MAX_CLOCKS = 20_000  # maximum number of hosts whose clocks are stored
_DRIFT = 0.001  # maximum drift between two clocks, in seconds per second
# If all messages of a host seem expired for this many seconds, its clock was stopped (the host was suspended).
_SUSPENDED_AFTER = 10.0


@functools.cache
def _own_clock() -> str:
    """Return the id of the monotonic clock, which all processes of a machine share until it reboots."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return f"{socket.gethostname()}:{os.getpid()}"


def stamp(seconds: float | None) -> dict[str, Any]:
    """Return the fields of a message that expires after ``seconds`` (None: never)."""
    wire: dict[str, Any] = {SENT_AT: time.time()}
    if seconds is not None:
        wire.update({_CLOCK: _own_clock(), _STEADY: time.monotonic(), _SECONDS: seconds})
    return wire


@dataclasses.dataclass(frozen=True)
class Arrival:
    """The arrival of a message. ``until``: monotonic time until which its sender waits (None: no limit). ``learn``
    corrects the estimated clock of the sender; to be called after the signature was verified."""

    until: float | None = None
    learn: Callable[[], None] = lambda: None


class Clocks:
    """Estimates of the age of messages from hosts with different monotonic clocks. The fastest message of a host gives
    the offset of that host's clock. A slower message was delayed by the difference, in a queue or in the socket of a
    frozen process. The first message of a host counts as new. For messages of this host the age is exact. Wall
    clocks are not used. Each sender has clocks of its own, and only verified messages change them: otherwise a hostile
    host could let all messages of another machine expire. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: collections.OrderedDict[tuple[str, str], _Clock] = collections.OrderedDict()

    def arrival(self, wire: Mapping[str, Any], sender: str = "") -> Arrival:
        """Return the arrival of a message received now. ``sender``: the host that the message names as its sender."""
        seconds, sent, now = wire.get(_SECONDS), wire.get(_STEADY), time.monotonic()
        if not isinstance(seconds, int | float) or not isinstance(sent, int | float):
            return Arrival()
        key, difference = (sender, str(wire.get(_CLOCK))), now - sent
        if key[1] == _own_clock():
            return Arrival(sent + seconds)
        with self._lock:
            clock = self._clocks.get(key)
            age = clock.age(difference, now) if clock is not None else 0.0
        return Arrival(now + seconds - age, lambda: self._learn(key, difference, seconds, now))

    def _learn(self, key: tuple[str, str], difference: float, lifetime: float, now: float) -> None:
        with self._lock:
            self._clocks.setdefault(key, _Clock(now)).learn(difference, lifetime, now)
            self._clocks.move_to_end(key)
            while len(self._clocks) > _MAX_CLOCKS:
                self._clocks.popitem(last=False)


class _Clock:
    """The offset of the clock of a host."""

    def __init__(self, now: float) -> None:
        self._offset = math.inf  # our time minus the time of the host, for a message without delay
        self._updated_at = now
        # The time since which all messages seem expired, and the smallest difference between their arrival and sending.
        self._late_since: float | None = None
        self._late_by = 0.0

    def age(self, difference: float, now: float) -> float:
        """Return the age of a message. ``difference``: its arrival by the clock here minus sending by the sender's."""
        return max(0.0, difference - self._offset - _DRIFT * (now - self._updated_at))

    def learn(self, difference: float, lifetime: float, now: float) -> None:
        """Correct the offset by a message that arrived at ``now``."""
        age = self.age(difference, now)
        self._offset = difference - age
        self._updated_at = now
        if age <= lifetime:
            self._late_since = None
        elif self._late_since is None:
            self._late_since, self._late_by = now, difference
        else:
            self._late_by = min(self._late_by, difference)
            if now - self._late_since > _SUSPENDED_AFTER:
                self._offset, self._late_since = self._late_by, None
