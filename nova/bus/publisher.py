"""A publisher of notifications through oslo.messaging's drivers ([oslo_messaging_notifications]driver).

oslo.messaging's own Notifier assigns a new message id on each attempt and only logs failures. This publisher keeps the
id of the message, so that receivers can recognize duplicates, and raises an error on failure."""

from collections.abc import Iterable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from stevedore import named

from nova import exception
from nova.bus.driver import options
from nova.bus.transport import transport_url
from nova.objects.accounts.notification import Notification

_GROUP = "oslo_messaging_notifications"
# Number of repeated attempts to send a message. Unsent messages stay in the database and are sent later.
_RETRIES = 1


def drivers(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the configured drivers for notifications; empty if notifications are disabled."""
    return [name for name in options.register(conf, _GROUP).driver if name != "noop"]


class _RecordingTransport:
    """A transport that stores the error of a failed publication, since the drivers of notifications only log it."""

    def __init__(self, transport: Any) -> None:
        self.conf = transport.conf
        self.error: Exception | None = None
        self._transport = transport

    def _send_notification(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._transport._send_notification(*args, **kwargs)
        except Exception as error:
            self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Publisher:
    """A publisher for one thread. It connects to the broker when it sends the first notification."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Load the configured drivers. Raises InvalidInput if a driver does not exist."""
        self._names = drivers(conf)
        url = transport_url(conf, conf[_GROUP].transport_url or None)  # None: the URL of RPC
        self._transport = _RecordingTransport(messaging.get_notification_transport(conf, url=url))
        self._versioned = self._load(conf, conf.notifications.versioned_notifications_topics)
        self._unversioned = self._load(conf, conf[_GROUP].topics)

    def _load(self, conf: cfg.ConfigOpts, topics: list[str]) -> list[Any]:
        def missing(names: Iterable[str]) -> None:
            raise exception.InvalidInput(reason=f"[{_GROUP}] driver: no such driver: {', '.join(sorted(names))}")

        manager: named.NamedExtensionManager[Any] = named.NamedExtensionManager(
            "oslo.messaging.notify.drivers", names=self._names, invoke_on_load=True, invoke_args=(conf,),
            invoke_kwds={"topics": topics, "transport": self._transport}, on_missing_entrypoints_callback=missing)
        return [extension.obj for extension in manager]

    def send(self, notification: Notification) -> None:
        """Send the notification and return when the broker has accepted it. Raises ServiceUnavailable."""
        message = {"message_id": notification.message_id, "publisher_id": notification.publisher_id,
                   "event_type": notification.event_type, "priority": notification.priority,
                   "payload": notification.payload, "timestamp": str(notification.created_at.replace(tzinfo=None))}
        self._transport.error = None
        for driver in self._versioned if notification.versioned else self._unversioned:
            driver.notify(notification.context, message, notification.priority, _RETRIES)
        if self._transport.error is not None:
            raise exception.ServiceUnavailable(f"The broker did not accept the notification: {self._transport.error}")
