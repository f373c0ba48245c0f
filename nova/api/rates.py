"""How many requests a project, a user and an address may send: [api]rate_limit_*.

Each limit is "so many in so many seconds", as many at once if nothing came before. What is kept of each is one time:
when all that it has used will have come back. It is in memory that all workers of a service share (made before they
are forked), so that a limit is that of the host, whichever worker is asked.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nova.api import errors, forwarded
from nova.conf import CONF
from nova.context import RequestContext

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

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


def limiter(option: str) -> Limiter | None:
    """What [api]rate_limit_``option`` says; None: no limit. Raises ValueError."""
    text: str | None = getattr(CONF.api, f"rate_limit_{option}")
    if not text:
        return None
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"[api]rate_limit_{option} = {text}: it must be like 600/60, requests in seconds")
    return Limiter(int(match[1]), int(match[2]))


class Rates:
    """The limits of one API; make it before forking. Raises ValueError for options that say nothing."""

    def __init__(self) -> None:
        self._project, self._user, self._address = (limiter(name) for name in ("project", "user", "address"))
        self._free = frozenset(CONF.api.rate_limit_free_roles)

    def count(self, ctx: RequestContext) -> None:
        """Count a request. Raises OverLimit (429)."""
        if self._project is None and self._user is None:
            return
        if not self._free.isdisjoint(ctx.roles):
            return
        for kept, who in ((self._user, ctx.user_id), (self._project, ctx.project_id)):
            if kept is not None and who and (wait := kept.take(who)):
                raise errors.OverLimit(retry_after=math.ceil(wait))

    def by_address(self, application: Wsgi) -> Wsgi:
        """``application`` for clients that have not asked too often, whoever they say they are."""
        kept = self._address
        if kept is None:
            return application

        def counted(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            who = forwarded.client(environ)
            wait = kept.take(who) if who is not None else 0.0
            if not wait:
                return application(environ, start_response)
            error = errors.OverLimit(retry_after=math.ceil(wait))
            status, body = errors.describe(error)
            text = msgspec.json.encode(body)
            start_response(f"{status} Too Many Requests", [
                ("Content-Type", "application/json"), ("Content-Length", str(len(text))),
                *errors.headers(error).items()])
            return [text]

        return counted
