"""The notification outbox, written in the transaction of the change."""

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from nova import bus, context
from nova.conf import CONF
from nova.db.maintenance import outbox
from nova.db.sql.engine import after_commit
from nova.notifications.messages import NotificationBuilder, NotificationSettings
from nova.objects.accounts.notification import Notification


class Outbox:
    """A transactional outbox. Disabled unless a notification driver is configured."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None  # called after each commit that wrote notifications
        self.configure()

    def configure(self) -> None:
        """Apply the current configuration."""
        self.on = bool(bus.notification_drivers(CONF))
        self.settings = NotificationSettings.of(CONF) if self.on else NotificationSettings()
        # The kind of state changes of servers that are notified: "" for none.
        self.updates: str = (self.on and CONF.notifications.notify_on_state_change) or ""

    def notify(self, connection: sa.Connection, ctx: context.RequestContext,
             make: Callable[[NotificationBuilder], Sequence[Notification]]) -> None:
        """Write the notifications that ``make`` returns, if notifications are enabled."""
        if self.on:
            self.write(connection, make(NotificationBuilder(self.settings, ctx)))

    def write(self, connection: sa.Connection, messages: Sequence[Notification]) -> None:
        """Write the notifications in this transaction; they are sent after its commit."""
        if messages:
            outbox.add(connection, messages)
            after_commit(connection, lambda: self.wake())
