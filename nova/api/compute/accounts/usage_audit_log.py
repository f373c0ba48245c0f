"""os-instance_usage_audit_log: usage audits of hosts for the last complete period.

Hosts of this release make no audits, so none is missing: the response is that of a cloud with audits switched off.
"""

from __future__ import annotations

import datetime
from typing import Any

from nova import exception
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Object
from nova.api.validation.types import INTEGER, OPEN, STRING
from nova.conf import CONF
from nova.objects.accounts.usage import audit_period
from nova.objects.base import utcnow

_LOG = Object({
    "hosts_not_run": Array(STRING), "log": OPEN, "num_hosts": INTEGER, "num_hosts_done": INTEGER,
    "num_hosts_not_run": INTEGER, "num_hosts_running": INTEGER, "overall_status": STRING, "period_beginning": STRING,
    "period_ending": STRING, "total_errors": INTEGER, "total_instances": INTEGER})


@accepts(answer=Object({"instance_usage_audit_logs": _LOG}))
def index(req: Request) -> dict[str, Any]:
    """Show the audits of the last whole period."""
    return {"instance_usage_audit_logs": _log(utcnow())}


@accepts(answer=Object({"instance_usage_audit_log": _LOG}))
def show(req: Request) -> dict[str, Any]:
    """Show the audits of the last whole period before a time."""
    text = req.params["id"]
    try:
        before = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f" if "." in text else "%Y-%m-%d %H:%M:%S")
        return {"instance_usage_audit_log": _log(before.replace(tzinfo=datetime.UTC))}
    except (ValueError, OverflowError) as error:
        raise exception.InvalidInput(f"Invalid timestamp for date {text}") from error


def _log(before: datetime.datetime) -> dict[str, Any]:
    begin, end = audit_period(CONF.instance_usage_audit_period, before)
    return {
        "period_beginning": f"{begin:%Y-%m-%d %H:%M:%S}", "period_ending": f"{end:%Y-%m-%d %H:%M:%S}",
        "num_hosts": 0, "num_hosts_done": 0, "num_hosts_running": 0, "num_hosts_not_run": 0, "hosts_not_run": [],
        "total_instances": 0, "total_errors": 0, "overall_status": "ALL hosts done. 0 errors.", "log": {}}
