"""Publishing notifications through oslo.messaging's drivers ([oslo_messaging_notifications] driver).

oslo.messaging's own Notifier gives a message a new id each time, and only logs that it could not be sent. Here the id
comes with the message, so that one that is sent twice can be recognized, and a failure is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_messaging import opts
from stevedore import named

from nova import exception
from nova.bus.transport import transport_url
from nova.objects.notification import Notification

_GROUP = "oslo_messaging_notifications"
# Attempts of one message beside the first: what waits is in the database, and nobody waits for it.
_RETRIES = 1


def drivers(conf: cfg.ConfigOpts) -> list[str]:
    """The drivers that are to send notifications; none: nobody wants any."""
    for group, options in opts.list_opts():
        if group == _GROUP:
            conf.register_opts(options, group=group)
    return [name for name in conf[_GROUP].driver if name != "noop"]


def _url(conf: cfg.ConfigOpts) -> messaging.TransportURL:
    """Return the transport URL of notifications, by default that of RPC."""
    return transport_url(conf, conf[_GROUP].transport_url or None)


class _Noting:
    """A transport whose failures can be asked for: the drivers that send messages only log them."""

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
    """Sends from one thread. Nothing is connected to before the first message."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raises InvalidInput when a driver that was asked for is not there."""
        self._names = drivers(conf)
        self._transport = _Noting(messaging.get_notification_transport(conf, url=_url(conf)))
        self._versioned = self._load(conf, conf.notifications.versioned_notifications_topics)
        self._unversioned = self._load(conf, conf[_GROUP].topics)

    def _load(self, conf: cfg.ConfigOpts, topics: list[str]) -> list[Any]:
        def missing(names: Iterable[str]) -> None:
            raise exception.InvalidInput(reason=f"[{_GROUP}] driver: there is no {', '.join(sorted(names))}")

        manager: named.NamedExtensionManager[Any] = named.NamedExtensionManager(
            "oslo.messaging.notify.drivers", names=self._names, invoke_on_load=True, invoke_args=(conf,),
            invoke_kwds={"topics": topics, "transport": self._transport}, on_missing_entrypoints_callback=missing)
        return [extension.obj for extension in manager]

    def send(self, told: Notification) -> None:
        """Returns when the broker has it. Raises ServiceUnavailable."""
        message = {"message_id": told.message_id, "publisher_id": told.publisher_id, "event_type": told.event_type,
                   "priority": told.priority, "payload": told.payload,
                   "timestamp": str(told.created_at.replace(tzinfo=None))}
        self._transport.error = None
        for driver in self._versioned if told.versioned else self._unversioned:
            driver.notify(told.context, message, told.priority, _RETRIES)
        if self._transport.error is not None:
            raise exception.ServiceUnavailable(f"The broker did not take it: {self._transport.error}")
