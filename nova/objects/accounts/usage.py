"""Quotas, and usage of servers for os-simple-tenant-usage."""

import datetime

from nova.objects.base import Object


class ServerUsage(Object, kw_only=True):
    """A server that existed during a period, with its size and running time."""

    uuid: str
    project_id: str
    display_name: str
    vm_state: str
    flavor: str
    vcpus: int
    memory_mb: int
    local_gb: int
    launched_at: datetime.datetime
    terminated_at: datetime.datetime | None = None

    def hours(self, begin: datetime.datetime, end: datetime.datetime) -> float:
        """Return the hours that the server ran within a period."""
        last = min(self.terminated_at or end, end)
        return max((last - max(self.launched_at, begin)).total_seconds(), 0.0) / 3600


def audit_period(unit: str, before: datetime.datetime) -> tuple[datetime.datetime, datetime.datetime]:
    """Return begin and end of the newest period that ended before ``before``. ``unit``: hour, day, month or year with
    an optional ``@offset`` of the begin (in minutes, hours, days or months). Raises ValueError, OverflowError."""
    unit, _at, offset = unit.partition("@")
    number = int(offset or 0)
    if unit in ("hour", "day"):
        length = datetime.timedelta(hours=1 if unit == "hour" else 24)
        end = before.replace(minute=number if unit == "hour" else 0, second=0, microsecond=0)
        end = end if unit == "hour" else end.replace(hour=number)
        end = end if end < before else end - length
        return end - length, end
    end = before.replace(hour=0, minute=0, second=0, microsecond=0)
    end = end.replace(day=number or 1) if unit == "month" else end.replace(month=number or 1, day=1)
    end = end if end < before else _before(unit, end)
    return _before(unit, end), end


def _before(unit: str, end: datetime.datetime) -> datetime.datetime:
    if unit == "year" or end.month == 1:
        return end.replace(year=end.year - 1, month=end.month if unit == "year" else 12)
    return end.replace(month=end.month - 1)


class Quotas(Object, kw_only=True):
    """The limits of a project (or of a user in it) by resource, and their current usage."""

    limits: dict[str, int]
    in_use: dict[str, int] = {}
