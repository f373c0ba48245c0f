"""How often one client may ask: who counts as one, and a count of each.

A limit is "so many in so many seconds", as many at once if nothing came before. What is kept of each is one time:
when all that it has used will have come back. It is in memory that all workers of a service share (made before they
are forked), so that a limit is that of the host, whichever worker is asked.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import mmap
import os
import re
import time
from collections.abc import Callable

from nova import exception
from nova.conf import CONF
from nova.objects import plain_ip

# Two that meet in one place share a limit: there are many, and nobody can know who meets whom.
_PLACES = 1 << 17
_RATE = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,5})")


class Limiter:
    """``most`` requests in ``seconds``, of each of those who are told apart by a text."""

    def __init__(self, most: int, seconds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = seconds / most
        self._ahead = seconds - self._each
        self._clock = clock
        self._salt = os.urandom(16)
        self._times = memoryview(mmap.mmap(-1, _PLACES * 8)).cast("d")

    def take(self, who: str) -> float:
        """0: the request may be done. Else it may not, and the next may in so many seconds."""
        digest = hashlib.blake2b(who.encode(), digest_size=8, key=self._salt).digest()
        place = int.from_bytes(digest, "big") % _PLACES
        now = self._clock()
        # Two workers may do this at the same moment: then one request more is done, which hurts nobody.
        until = max(self._times[place], now)
        if until - now > self._ahead:
            return until - now - self._ahead
        self._times[place] = until + self._each
        return 0.0


def limiter(group: str, option: str) -> Limiter | None:
    """What an option says ("600/60": requests in seconds); None: no limit. Raises InvalidInput."""
    text: str | None = CONF[group][option]
    if not text:
        return None
    match = _RATE.fullmatch(text)
    if match is None:
        raise exception.InvalidInput(
            reason=f"[{group}]{option} = {text}: it must be like 600/60, requests in seconds")
    return Limiter(int(match[1]), int(match[2]))


@functools.lru_cache(4096)
def client_of(address: str) -> str:
    """What counts as one client: an IPv4 address; of IPv6 the /64, whose addresses one client takes as it likes."""
    try:
        found = plain_ip.address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
    return str(found)
