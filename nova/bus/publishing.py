"""Publishing with a deadline, and brokers that have blocked their publishers (RabbitMQ's memory and disk alarms).

A broker in alarm takes one message from a connection, and reads nothing more from it. py-amqp would wait for the
confirmation of the message as long as the socket lives, and oslo.messaging would connect anew and publish again. Here
the wait ends with the message's deadline, or as soon as the broker reports that it has blocked the connection. From
then on :func:`check` refuses every message of this process, until a probe of its own is confirmed.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu.exceptions
import oslo_messaging as messaging
from kombu.connection import Connection as Broker
from kombu.transport import pyamqp

from nova import exception

LOG = logging.getLogger(__name__)

# The most seconds that one message may take until the broker has it, of the time that its answer is waited for.
_LONGEST, _SHARE = 5.0, 0.25
# Seconds between two probes of a broker that blocks, and for the confirmation of one.
_PAUSE, _PROBE = 0.5, 10.0
_REFUSAL = "The broker takes no messages at present (memory or disk alarm)."


class NotPublishedError(Exception):
    """The broker did not confirm a message in time, or has blocked the connection. Not tried again."""


@dataclasses.dataclass
class _Attempt:
    """The message that a thread publishes. ``until``: by the monotonic clock."""

    until: float
    # After which the message is of no use to its receiver, by the same clock; None: the broker keeps it as it was told.
    expires: float | None = None
    # The broker that has blocked the connection.
    blocked_by: Broker | None = None


_ATTEMPT: contextvars.ContextVar[_Attempt | None] = contextvars.ContextVar("publishing", default=None)
_BLOCKED: weakref.WeakSet[messaging.RPCTransport] = weakref.WeakSet()
_LOCK = threading.Lock()


class Channel(pyamqp.Channel):
    """A channel whose messages are confirmed before the deadline of their attempt."""

    def basic_publish_confirm(self, *args: Any, **kwargs: Any) -> Any:
        attempt = _ATTEMPT.get()
        if attempt is None:
            return super().basic_publish_confirm(*args, **kwargs)
        left = attempt.until - time.monotonic()
        connection = self.connection
        try:
            if left <= 0:
                raise TimeoutError
            message = args[0] if args else kwargs["msg"]
            if attempt.expires is not None and "expiration" in message.properties:
                # oslo.messaging has the broker keep a message for as long as its answer is waited for.
                message.properties["expiration"] = str(max(0, int(1000 * (attempt.expires - time.monotonic()))))
            return super().basic_publish_confirm(*args, **{**kwargs, "timeout": left, "confirm_timeout": left})
        except (TimeoutError, NotPublishedError) as error:
            # What the broker does not read it does not answer, either: an orderly end would wait for that.
            if connection is not None:
                connection.collect()
            raise NotPublishedError("The broker did not confirm the message") from error


class Connection(pyamqp.Connection):
    Channel = Channel


def watch(connection: Connection) -> None:
    """Have the attempt of the thread that publishes fail when the broker blocks the connection."""
    connection.on_blocked = functools.partial(_on_blocked, connection.on_blocked, weakref.ref(connection))


def _on_blocked(others: Callable[[str], None] | None, connection: weakref.ref[Any], reason: str) -> None:
    if others is not None:
        others(reason)
    attempt, of = _ATTEMPT.get(), connection()
    if attempt is not None and of is not None:
        attempt.blocked_by = of.client
        raise NotPublishedError(reason)


@contextlib.contextmanager
def within(bus: Any, seconds: float, wanted: float | None = None) -> Iterator[None]:
    """Publish messages in the block: each is confirmed within a share of ``seconds``, or fails.

    ``wanted``: seconds from now after which the broker drops a message that nobody has taken.

    Raises ServiceUnavailable when the broker has blocked its publishers.
    """
    now = time.monotonic()
    attempt = _Attempt(now + min(_LONGEST, seconds * _SHARE), None if wanted is None else now + wanted)
    token = _ATTEMPT.set(attempt)
    try:
        yield
    except Exception as error:
        if attempt.blocked_by is None:
            raise
        _block(bus, attempt.blocked_by)
        raise exception.ServiceUnavailable(_REFUSAL) from error
    finally:
        _ATTEMPT.reset(token)


def check(bus: Any) -> None:
    """Raise ServiceUnavailable while the broker blocks its publishers."""
    if bus in _BLOCKED:
        raise exception.ServiceUnavailable(_REFUSAL)


def _block(bus: Any, broker: Broker) -> None:
    with _LOCK:
        if bus in _BLOCKED:
            return
        _BLOCKED.add(bus)
    LOG.error("The broker takes no messages (memory or disk alarm). Requests that need one fail until it does.")
    threading.Thread(target=_wait_until_unblocked, args=(bus, broker), name="blocked broker", daemon=True).start()


def _wait_until_unblocked(bus: Any, broker: Broker) -> None:
    """Publish a message that nobody receives until the broker confirms it, or cannot be reached."""
    try:
        while not _probe(broker):
            time.sleep(_PAUSE)
    finally:
        with _LOCK:
            _BLOCKED.discard(bus)
        LOG.info("The broker takes messages again")


def _probe(broker: Broker) -> bool:
    """Return True if publishing is worth a try again.

    RabbitMQ blocks a connection when it has taken a message from it, and confirms that one: the second one tells.
    """
    probe: Any = broker.clone()  # type: ignore[no-untyped-call]
    try:
        probe.connect()
        producer = probe.Producer()
        for _ in range(2):
            producer.publish("", exchange="", routing_key="nobody", timeout=_PROBE, confirm_timeout=_PROBE)
    except TimeoutError:
        return False
    except (kombu.exceptions.KombuError, amqp.AMQPError, OSError) as error:
        LOG.info("The broker that had blocked its publishers cannot be reached: %s", error)
    finally:
        probe.collect()
    return True
