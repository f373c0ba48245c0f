"""What only the broker knows: who listens at a queue. Of brokers that do not say, nothing is assumed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import amqp
import oslo_messaging as messaging
from oslo_messaging._drivers.common import PURPOSE_SEND

LOG = logging.getLogger(__name__)


def listeners(bus: messaging.RPCTransport, queue: str) -> int | None:
    """How many take messages from a queue (0 where there is no such queue); None if the broker does not say."""
    try:
        with _channel(bus) as channel:
            return None if channel is None else int(channel.queue_declare(queue, passive=True).consumer_count)
    except amqp.NotFound:
        return 0
    except Exception as error:
        LOG.debug("The broker does not say who listens at %s: %s", queue, error)
        return None


def forget(bus: messaging.RPCTransport, topic: str, host: str) -> bool:
    """Delete the queue of a server that is gone for good, with what is in it; returns whether there is none now.

    Nothing happens to the queue of one that listens.
    """
    try:
        with _channel(bus) as channel:
            if channel is not None:
                channel.queue_delete(f"{topic}.{host}", if_unused=True)
            return True
    except amqp.PreconditionFailed:
        return False
    except Exception as error:
        LOG.info("The queue of %s on %s was not deleted: %s", topic, host, error)
        return False


@contextlib.contextmanager
def _channel(bus: messaging.RPCTransport) -> Iterator[amqp.Channel | None]:
    """A channel of its own, since the broker closes it to refuse something; None where it is no AMQP broker."""
    with bus._driver._get_connection(PURPOSE_SEND, retry=0) as pooled:
        connection = pooled.connection
        if connection.connection.transport.driver_type != "amqp":
            yield None
            return
        with connection._connection_lock:
            channel = connection.channel.connection.channel()
            try:
                yield channel
            finally:
                channel.close()
