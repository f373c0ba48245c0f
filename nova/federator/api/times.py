"""Times of the wall clock that are shown in objects. Decisions use monotonic clocks."""

import datetime

CLOCK_ERROR = datetime.timedelta(hours=1)  # by which certificates are valid earlier: clocks elsewhere may be behind


def now() -> str:
    """Return the present time as in metadata and conditions."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(stamp: str) -> float:
    """Return the seconds since a time that :func:`now` returned, at least 0; 0 if it is unreadable."""
    try:
        then = datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())


def now_exactly() -> str:
    """Return the present time with microseconds, as in Leases."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
