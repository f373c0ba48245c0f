"""Images that the hosts of an aggregate fetch before a server wants them."""

from __future__ import annotations

import datetime

from nova.objects.base import Object

# state: the last three are ends
WAITING = "waiting"
CACHING = "caching"
CACHED = "cached"
FAILED = "failed"
UNSUPPORTED = "unsupported"
ENDS = frozenset({CACHED, FAILED, UNSUPPORTED})


class PrecachedImage(Object, kw_only=True):
    """An image of an aggregate's request on one of its hosts. ``message``: why it is not there."""

    aggregate_id: int
    host: str
    image_id: str
    state: str = WAITING
    message: str = ""
    tries: int = 0
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None


class CacheResult(Object, kw_only=True):
    """What a host says of an image that it was to fetch; ``state`` is an end."""

    image_id: str
    state: str = FAILED
    message: str = ""
