"""Times of the wall clock that are shown in objects. Decisions use monotonic clocks."""

import datetime

CLOCK_ERROR = datetime.timedelta(hours=1)  # by which certificates are valid earlier: clocks elsewhere may be behind


def now() -> str:
    """Return the present time as in metadata and conditions."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_exactly() -> str:
    """Return the present time with microseconds, as in Leases."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
