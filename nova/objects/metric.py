"""What is measured of a host."""

from __future__ import annotations

import datetime
import re

from nova.objects.base import Object

# Of these a value is a part of a hundred.
PERCENT = ".percent"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_SOURCE = 255
_LARGEST = 1 << 63


class Metric(Object, kw_only=True):
    """A value by its name (cpu.user.time, cpu.idle.percent): times in ns, frequencies in MHz, percents from 0 to 100.

    ``source``: who measured it; ``timestamp``: when, by the clock of the host.
    """

    name: str
    value: int
    source: str = ""
    timestamp: datetime.datetime


def possible(metric: Metric) -> bool:
    """Whether schedulers and consumers of notifications can take it as it is."""
    return (_NAME.fullmatch(metric.name) is not None and len(metric.source) <= _SOURCE
            and -_LARGEST <= metric.value < _LARGEST
            and (not metric.name.endswith(PERCENT) or 0 <= metric.value <= 100)
            # (No zone takes it out of the years that there are.)
            and metric.timestamp.tzinfo is not None and 1970 <= metric.timestamp.year < 9999)
