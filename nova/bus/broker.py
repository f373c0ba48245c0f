"""Requests to the broker about queues. Drivers other than Nova's answer none."""

from __future__ import annotations

import logging

import oslo_messaging as messaging

from nova.bus import oslo
from nova.bus.driver.broker import Broker

LOG = logging.getLogger(__name__)


def broker_of(bus: messaging.Transport) -> Broker | None:
    """Return the broker of a transport, None if another driver than Nova's serves it."""
    broker: Broker | None = getattr(oslo.driver_of(bus), "broker", None)
    return broker


def check(bus: messaging.Transport) -> None:
    """Raise BrokerBlocked while the broker blocks its publishers."""
    broker = broker_of(bus)
    if broker is not None:
        broker.check()


def listeners(bus: messaging.Transport, queue: str) -> int | None:
    """Return the number of consumers of a queue (0 if there is no such queue); None if that is unknown."""
    broker = broker_of(bus)
    try:
        return None if broker is None else broker.listeners(queue)
    except messaging.MessagingException as error:
        LOG.debug("The broker does not report the consumers of %s: %s", queue, error)
        return None


def forget(bus: messaging.Transport, topic: str, host: str) -> bool:
    """Delete the queue of a server that has gone for good, and the messages in it; return True if there is none now.

    The queue of a server that consumes from it stays.
    """
    broker = broker_of(bus)
    try:
        return broker is None or broker.delete_queue(f"{topic}.{host}")
    except messaging.MessagingException as error:
        LOG.info("The queue of %s on %s was not deleted: %s", topic, host, error)
        return False
