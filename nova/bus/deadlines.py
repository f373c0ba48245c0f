"""How long a message is wanted: what its sender says, and what its receiver makes of that."""

from __future__ import annotations

import collections
import functools
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

# What travels beside the context of a request: when it was sent (seconds since the epoch), when that was by the clock
# that nobody sets, whose clock that is, and for how many seconds the message is wanted.
FIELDS = SENT_AT, _STEADY, _CLOCK, _SECONDS = "sent_at", "steady", "clock", "seconds"
# Hosts whose clocks are remembered.
_REMEMBERED = 20_000
# How fast two clocks may drift apart, in seconds per second.
_DRIFT = 0.001
# When for so many seconds all that a host sends seems to come too late, its clock stood still (it was suspended).
_DOUBT = 10.0


@functools.cache
def _own_clock() -> str:
    """All processes of a machine share its steady clock, until it boots again."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return f"{socket.gethostname()}:{os.getpid()}"


def stamp(seconds: float | None) -> dict[str, Any]:
    """What travels of a message that is wanted for ``seconds`` (None: however late it comes)."""
    wire: dict[str, Any] = {SENT_AT: time.time()}
    if seconds is not None:
        wire.update({_CLOCK: _own_clock(), _STEADY: time.monotonic(), _SECONDS: seconds})
    return wire


class Clocks:
    """Tells how old messages are although the steady clocks of two hosts have nothing in common.

    Of each host its quickest message tells how far its clock is from ours; what took longer than that one was under
    way for the difference: in a queue, or in the socket of a process that was frozen. The first message of a host
    counts as new; those of our own host need no such guess. Nobody's wall clock matters. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, _Clock] = collections.OrderedDict()

    def left(self, wire: Mapping[str, Any]) -> float | None:
        """For how many seconds a message that came now is still wanted (negative: no more); None: for ever."""
        seconds, sent = wire.get(_SECONDS), wire.get(_STEADY)
        if not isinstance(seconds, int | float) or not isinstance(sent, int | float):
            return None
        name = str(wire.get(_CLOCK))
        if name == _own_clock():
            return seconds - (time.monotonic() - sent)
        with self._lock:
            clock = self._known.get(name)
            if clock is None:
                clock = self._known[name] = _Clock()
            self._known.move_to_end(name)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return seconds - clock.age(time.monotonic() - sent, seconds)


class _Clock:
    """What is known of the clock of a host."""

    def __init__(self) -> None:
        # Our time less its time, for a message that takes no time.
        self._offset = math.inf
        self._looked_at = time.monotonic()
        # Since when every message seemed too late, and the least that their times differed.
        self._late_since: float | None = None
        self._late_by = 0.0

    def age(self, difference: float, wanted: float) -> float:
        """Of a message that came ``difference`` after it was sent, by the two clocks."""
        now = time.monotonic()
        self._offset = min(self._offset + _DRIFT * (now - self._looked_at), difference)
        self._looked_at = now
        age = difference - self._offset
        if age <= wanted:
            self._late_since = None
        elif self._late_since is None:
            self._late_since, self._late_by = now, difference
        else:
            self._late_by = min(self._late_by, difference)
            if now - self._late_since > _DOUBT:
                self._offset, self._late_since = self._late_by, None
                return difference - self._offset
        return age
