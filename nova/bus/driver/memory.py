"""A broker inside one process. All drivers with the same URL share its queues."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence

import oslo_messaging as messaging

from nova.bus.driver.broker import Deliver, Outgoing, Queue


class _Queue:
    def __init__(self) -> None:
        self.messages: collections.deque[tuple[bytes, float | None]] = collections.deque()
        self.consumers: list[MemoryConsumer] = []


class MemoryBroker:
    """Queues in memory. Thread-safe."""

    prefetch = 1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        # Names of the queues that are bound to an exchange and a routing key ("" for every key of a fanout exchange).
        self._bindings: dict[tuple[str, str], list[str]] = {}

    def publish(self, message: Outgoing) -> None:
        exchange = message.exchange
        with self._lock:
            if message.queue is not None:
                self._declare(message.queue)
            if exchange.type == "fanout":
                names = self._bindings.get((exchange.name, ""), [])
            elif exchange.name:
                names = self._bindings.get((exchange.name, message.routing_key), [])
            else:
                names = [message.routing_key] if message.routing_key in self._queues else []
            for name in names:
                queue = self._queues[name]
                queue.messages.append((message.body, message.expires_at))
                for consumer in queue.consumers:
                    consumer.wake.set()
        if message.mandatory and not names:
            raise messaging.MessageUndeliverable(None, exchange.name, message.routing_key, None)

    def _declare(self, queue: Queue) -> _Queue:
        key = "" if queue.exchange.type == "fanout" else queue.routing_key
        bound = self._bindings.setdefault((queue.exchange.name, key), []) if queue.exchange.name else []
        if queue.name not in bound:
            bound.append(queue.name)
        return self._queues.setdefault(queue.name, _Queue())

    def consume(self, queues: Sequence[Queue], deliver: Deliver, until: float | None = None,
                repeatable: bool = False) -> MemoryConsumer:
        consumer = MemoryConsumer(self, queues, deliver)
        with self._lock:
            for queue in queues:
                self._declare(queue).consumers.append(consumer)
        consumer.start()
        return consumer

    def take(self, names: Sequence[str]) -> bytes | None:
        """Remove and return the next message of one of the queues that has not expired."""
        with self._lock:
            for name in names:
                messages = self._queues[name].messages if name in self._queues else ()
                while messages:
                    body, expires_at = messages.popleft()
                    if expires_at is None or time.monotonic() < expires_at:
                        return body
        return None

    def leave(self, consumer: MemoryConsumer, queues: Sequence[Queue]) -> None:
        """Remove a consumer, and those of its queues that are temporary."""
        with self._lock:
            for queue in queues:
                if queue.name in self._queues and consumer in self._queues[queue.name].consumers:
                    self._queues[queue.name].consumers.remove(consumer)
                if queue.temporary:
                    self._delete(queue.name)

    def _delete(self, name: str) -> None:
        self._queues.pop(name, None)
        for address, names in list(self._bindings.items()):
            if name in names:
                names.remove(name)
            if not names:
                del self._bindings[address]

    def listeners(self, queue: str, seconds: float = 0.0) -> int:
        with self._lock:
            return len(self._queues[queue].consumers) if queue in self._queues else 0

    def delete_queue(self, queue: str) -> bool:
        with self._lock:
            if queue in self._queues and self._queues[queue].consumers:
                return False
            self._delete(queue)
            return True

    def check(self) -> None:
        """Do nothing: this broker never blocks its publishers."""

    def close(self) -> None:
        """Do nothing: there are no connections."""


class MemoryConsumer:
    """A thread that delivers the messages of some queues."""

    def __init__(self, broker: MemoryBroker, queues: Sequence[Queue], deliver: Deliver) -> None:
        self.wake = threading.Event()
        self._broker, self._queues, self._deliver = broker, queues, deliver
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="memory consumer", daemon=True)
        self.start = self._thread.start

    def _run(self) -> None:
        names = [queue.name for queue in self._queues]
        while not self._stopping:
            self.wake.clear()  # cleared before the read: a later message sets the event
            body = self._broker.take(names)
            if body is None:
                self.wake.wait()
            else:
                self._deliver(body)

    def keep_alive(self) -> None:
        """Do nothing: there is no connection."""

    def stop(self) -> None:
        self._stopping = True
        self.wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._broker.leave(self, self._queues)


_LOCK = threading.Lock()
_BROKERS: dict[str, MemoryBroker] = {}


def broker(url: str) -> MemoryBroker:
    """Return the broker of this process for a URL."""
    with _LOCK:
        return _BROKERS.setdefault(url, MemoryBroker())
