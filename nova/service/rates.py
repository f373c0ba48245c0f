"""Rate limits for the requests of clients.

A limit is a number of requests in a number of seconds; a client that was idle may send all of them at once. For each
client one time is stored, at which its whole allowance is available again. The table is in memory that all workers of a
service share (it is made before they fork), so that a limit applies to the host and not to each worker."""

import functools
import hashlib
import ipaddress
import mmap
import os
import re
import time
from collections.abc import Callable

from nova import exception
from nova.common import plain_ip
from nova.conf import CONF

# Entries of the table. Clients with the same hash share an entry and its limit; the salt makes this unpredictable.
_ENTRIES = 1 << 17
_RATE = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,5})")


class Limiter:
    """A limit of ``most`` requests in ``seconds`` for each client, identified by a text."""

    def __init__(self, most: int, seconds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = seconds / most
        self._burst = seconds - self._interval
        self._clock = clock
        self._salt = os.urandom(16)
        self._times = memoryview(mmap.mmap(-1, _ENTRIES * 8)).cast("d")

    def take(self, client: str) -> float:
        """Count a request and return 0, or return the seconds after which the client may send the next request."""
        digest = hashlib.blake2b(client.encode(), digest_size=8, key=self._salt).digest()
        index = int.from_bytes(digest, "big") % _ENTRIES
        now = self._clock()
        # Without a lock: if two workers do this at the same time, the client gets one additional request.
        until = max(self._times[index], now)
        if until - now > self._burst:
            return until - now - self._burst
        self._times[index] = until + self._interval
        return 0.0


def limiter(group: str, option: str) -> Limiter | None:
    """Return the limiter for an option ("600/60": requests in seconds), or None if it is unset. Raises InvalidInput."""
    text: str | None = CONF[group][option]
    if not text:
        return None
    match = _RATE.fullmatch(text)
    if match is None:
        raise exception.InvalidInput(reason=f"[{group}]{option} = {text} is not REQUESTS/SECONDS, such as 600/60")
    return Limiter(int(match[1]), int(match[2]))


@functools.lru_cache(4096)
def client_of(address: str) -> str:
    """Return the identity of a client for limits: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = plain_ip.address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
