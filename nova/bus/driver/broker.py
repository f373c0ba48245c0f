"""The interface between a driver and a broker, and the errors that a broker raises."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import oslo_messaging as messaging


class NotPublished(messaging.MessageDeliveryFailure):  # type: ignore[misc]
    """The broker cannot be reached, or did not confirm the message before its deadline."""


class MessageRefused(NotPublished):
    """The broker will never accept the message: its body or a name is too long, or the queue has other properties."""


class BrokerBlocked(NotPublished):
    """The broker has blocked its publishers (RabbitMQ's memory or disk alarm)."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An exchange. ``declare``: False if this account may not declare it, and for the default exchange ("")."""

    name: str
    type: str = "topic"
    durable: bool = False
    auto_delete: bool = False
    declare: bool = True


DEFAULT_EXCHANGE = Exchange("", "direct", declare=False)


@dataclasses.dataclass(frozen=True)
class Queue:
    """A queue with its binding. ``temporary``: the queue is deleted when its consumer stops."""

    name: str
    exchange: Exchange = DEFAULT_EXCHANGE
    routing_key: str = ""
    durable: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    temporary: bool = False


@dataclasses.dataclass
class Outgoing:
    """A message to publish. All times are of the monotonic clock. ``until``: deadline for the broker's confirmation.
    ``expires_at``: time at which the broker drops the message if no consumer has taken it (None: never). ``mandatory``:
    a message without a queue is an error. ``retries``: number of further connections to try (None: until ``until``)."""

    exchange: Exchange
    routing_key: str
    body: bytes
    until: float
    expires_at: float | None = None
    mandatory: bool = False
    retries: int | None = 2
    # A queue to declare first, so that a message without a consumer is kept (notifications).
    queue: Queue | None = None


class Consumer(Protocol):
    """A subscription with a thread of its own."""

    def keep_alive(self) -> None:
        """Send a heartbeat while the consumer's thread is busy. To be called from that thread only."""

    def stop(self) -> None:
        """Return delivered but unacknowledged messages to their queues, and end the thread."""


Deliver = Callable[[Any], None]


class Broker(Protocol):
    """A message broker. Thread-safe."""

    prefetch: int  # messages that a consumer may hold unacknowledged

    def publish(self, message: Outgoing) -> None:
        """Return when the broker has confirmed the message. Raises NotPublished, BrokerBlocked, MessageUndeliverable
        (mandatory, and no queue takes the message)."""

    def consume(self, queues: Sequence[Queue], deliver: Deliver, until: float | None = None,
                repeatable: bool = False) -> Consumer:
        """Declare the queues and pass the body of each message to ``deliver``. Retries to connect without end, or
        raises NotPublished after ``until``. A message is acknowledged before it is passed to ``deliver``. If messages
        are ``repeatable``, they are acknowledged after ``deliver`` returns: a lost connection may repeat them."""

    def listeners(self, queue: str, seconds: float = 5.0) -> int:
        """Return the number of consumers of the queue, 0 if there is no such queue. Raises NotPublished, at the latest
        after ``seconds``."""

    def delete_queue(self, queue: str) -> bool:
        """Delete the queue unless it has a consumer. Return True if it is deleted. Raises NotPublished."""

    def check(self) -> None:
        """Raise BrokerBlocked while the broker blocks its publishers."""

    def close(self) -> None:
        """Close all connections that publish."""
