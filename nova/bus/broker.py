"""Requests to the broker about queues. Drivers other than Nova's do not support them."""

import logging

import oslo_messaging as messaging

from nova.bus import oslo
from nova.bus.driver.broker import Broker

LOG = logging.getLogger(__name__)

_MAX_QUERY = 5.0  # maximum number of seconds that a query about a queue takes


def broker_of(bus: messaging.Transport) -> Broker | None:
    """Return the broker of a transport, or None if the transport has another driver than Nova's."""
    broker: Broker | None = getattr(oslo.driver_of(bus), "broker", None)
    return broker


def check(bus: messaging.Transport) -> None:
    """Raise BrokerBlocked while the broker blocks its publishers."""
    broker = broker_of(bus)
    if broker is not None:
        broker.check()


def listeners(bus: messaging.Transport, queue: str, seconds: float = 20.0) -> int | None:
    """Return the number of consumers of a queue (0 if there is no such queue), or None if it is unknown. ``seconds``:
    timeout of the call that follows; the query takes at most a quarter of it."""
    broker = broker_of(bus)
    try:
        return None if broker is None else broker.listeners(queue, min(_MAX_QUERY, seconds / 4))
    except messaging.MessagingException as error:
        LOG.debug("The broker does not report the consumers of %s: %s", queue, error)
        return None


def forget(bus: messaging.Transport, topic: str, host: str) -> bool:
    """Delete the queue of a removed host unless it has a consumer; return True if the queue no longer exists."""
    broker = broker_of(bus)
    try:
        return broker is None or broker.delete_queue(f"{topic}.{host}")
    except messaging.MessagingException as error:
        LOG.info("Could not delete the queue of %s on %s: %s", topic, host, error)
        return False
