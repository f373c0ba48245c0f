"""Times of the wall clock that are shown in objects. Decisions use monotonic clocks."""

import datetime

CLOCK_ERROR = datetime.timedelta(hours=1)  # validity of certificates before their issue, for slow clocks elsewhere


def now() -> str:
    """Return the present time in the format of metadata and conditions."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(stamp: str) -> float:
    """Return the seconds since a time that :func:`now` returned, at least 0; 0 if the time cannot be parsed."""
    try:
        then = datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())


def now_exactly() -> str:
    """Return the present time with microseconds, in the format of Leases."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
