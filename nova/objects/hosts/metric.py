"""Metrics of a host."""

import datetime
import re

from nova.objects.base import Object

# Suffix of metrics in percent.
PERCENT = ".percent"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_SOURCE = 255
_LARGEST = 1 << 63


class Metric(Object, kw_only=True):
    """A metric, for example cpu.user.time or cpu.idle.percent. Times in ns, frequencies in MHz, percents from 0 to 100.
    ``source``: name of the monitor; ``timestamp``: by the clock of the host."""

    name: str
    value: int
    source: str = ""
    timestamp: datetime.datetime


def possible(metric: Metric) -> bool:
    """Return True if the metric is valid for schedulers and consumers of notifications."""
    return (_NAME.fullmatch(metric.name) is not None and len(metric.source) <= _SOURCE
            and -_LARGEST <= metric.value < _LARGEST
            and (not metric.name.endswith(PERCENT) or 0 <= metric.value <= 100)
            # in UTC the year must stay in the range of datetime
            and metric.timestamp.tzinfo is not None and 1970 <= metric.timestamp.year < 9999)
