"""Images that the hosts of an aggregate cache in advance."""

import datetime

from nova.objects.base import Object

# State of the caching. The last three states are final.
WAITING, CACHING = "waiting", "caching"
CACHED, FAILED, UNSUPPORTED = "cached", "failed", "unsupported"
ENDS = frozenset({CACHED, FAILED, UNSUPPORTED})


class PrecachedImage(Object, kw_only=True):
    """An image that one host of an aggregate caches in advance. ``message``: cause of a failure."""

    aggregate_id: int
    host: str
    image_id: str
    state: str = WAITING
    message: str = ""
    tries: int = 0
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None


class CacheResult(Object, kw_only=True):
    """Result of caching an image, as reported by a host; ``state`` is final."""

    image_id: str
    state: str = FAILED
    message: str = ""
