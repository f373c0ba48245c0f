"""What a conductor has to tell on the bus, written in the transaction that made it true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from nova import bus, context
from nova.conf import CONF
from nova.db import outbox
from nova.db.sql.engine import after_commit
from nova.notifications.messages import NotificationBuilder, NotificationSettings
from nova.objects.notification import Notification


class Outbox:
    """Off, unless a driver for notifications is configured: then nobody need make any."""

    def __init__(self) -> None:
        # Told after each commit that wrote something.
        self.wake: Callable[[], None] = lambda: None
        self.configure()

    def configure(self) -> None:
        """Go by the configuration as it is now."""
        self.on = bool(bus.notification_drivers(CONF))
        self.settings = NotificationSettings.of(CONF) if self.on else NotificationSettings()
        # Which changes of servers are told one by one; "": none.
        self.updates: str = (self.on and CONF.notifications.notify_on_state_change) or ""

    def tell(self, connection: sa.Connection, ctx: context.RequestContext,
             make: Callable[[NotificationBuilder], Sequence[Notification]]) -> None:
        """The same of what ``make`` makes, if anything is told at all."""
        if self.on:
            self.write(connection, make(NotificationBuilder(self.settings, ctx)))

    def write(self, connection: sa.Connection, told: Sequence[Notification]) -> None:
        """Have this told when the transaction is committed, and not otherwise."""
        if told:
            outbox.add(connection, told)
            after_commit(connection, lambda: self.wake())
