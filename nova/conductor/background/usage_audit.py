"""Notifications instance.exists for billing: one for each server of the previous audit period. Any conductor may
continue, since one transaction writes the notifications of a page of servers and moves the marker behind this page."""

import datetime
import logging

import sqlalchemy as sa

from nova import context
from nova.conductor.core import Core
from nova.conf import CONF
from nova.db.accounts import usages
from nova.db.sql import clock
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.accounts.usage import audit_period

LOG = logging.getLogger(__name__)

INTERVAL = 30.0  # seconds between two checks for the end of a period
_PAGE = 50  # number of servers reported in one transaction


def audit(core: Core) -> None:
    """Send the notifications of the newest complete audit period, unless they were already sent."""
    begin, ending = audit_period(CONF.instance_usage_audit_period, clock.now())
    total, more = 0, not core.db.read(lambda connection: usages.is_audit_finished(connection, ending))
    while more:
        reported, more = _page(core, begin, ending)
        total += reported
    if total:
        LOG.info("Sent usage notifications for %d servers, audit period until %s", total, ending)


def _page(core: Core, begin: datetime.datetime, ending: datetime.datetime) -> tuple[int, bool]:
    """Send the notifications of a page of servers; return their number, and True if this conductor must continue."""
    def notify_page(connection: sa.Connection) -> tuple[int, bool]:
        marker = usages.begin_audit(connection, ending)
        if marker is None:
            return 0, False
        servers = usages.audit_page(connection, begin, ending, marker, _PAGE)
        last = servers[-1].id if servers else marker
        if not usages.advance_audit(connection, ending, marker, last, len(servers) < _PAGE):
            return 0, False
        builder = NotificationBuilder(core.outbox.settings, context.admin())
        core.outbox.write(connection, [notification for server in servers for notification in builder.exists(
            server, publisher("nova-compute", server.host), begin, ending)])
        return len(servers), len(servers) == _PAGE

    return core.db.write(notify_page)
