"""The periods of usage audits."""

import datetime

import pytest

from nova.objects.accounts.usage import audit_period as period


def at(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(("unit", "before", "begin", "end"), [
    ("hour", "2012-07-05T10:30:00", "2012-07-05T09:00", "2012-07-05T10:00"),
    ("hour", "2012-07-05T00:00:00", "2012-07-04T22:00", "2012-07-04T23:00"),
    ("hour@45", "2012-07-05T10:30:00", "2012-07-05T08:45", "2012-07-05T09:45"),
    ("day", "2012-07-05T10:30:00", "2012-07-04T00:00", "2012-07-05T00:00"),
    ("day@12", "2012-07-01T10:30:00", "2012-06-29T12:00", "2012-06-30T12:00"),
    ("month", "2012-07-05T10:30:00", "2012-06-01T00:00", "2012-07-01T00:00"),
    ("month", "2012-01-01T00:00:00", "2011-11-01T00:00", "2011-12-01T00:00"),
    ("month@20", "2012-02-05T10:30:00", "2011-12-20T00:00", "2012-01-20T00:00"),
    ("year", "2012-07-05T10:30:00", "2011-01-01T00:00", "2012-01-01T00:00"),
    ("year@8", "2012-07-05T10:30:00", "2010-08-01T00:00", "2011-08-01T00:00"),
])
def test_usage_audit_period_is_the_last_completed_period(unit, before, begin, end):
    assert period(unit, at(before)) == (at(begin), at(end))
