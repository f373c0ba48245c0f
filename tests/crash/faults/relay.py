"""A bad network between an exchange of RabbitMQ and the queues of services: messages are lost, doubled, reordered."""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
import time
import uuid as uuidlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import amqp
import sqlalchemy as sa

EXCHANGE = "openstack"
# Delays of the deliveries of a message in seconds: () is lost, (0,) unchanged, (0, 1) doubled.
Treat = Callable[[random.Random], Sequence[float]]


def connect(transport_url: str) -> amqp.Connection:
    url = sa.make_url(transport_url)
    return amqp.Connection(f"{url.host}:{url.port}", userid=url.username, password=url.password,
                           virtual_host=url.database, connect_timeout=5, read_timeout=30, write_timeout=30)


def purge(transport_url: str, *queues: str) -> int:
    """Purge the queues; return the number of purged messages."""
    with connect(transport_url) as connection:
        return sum(int(connection.channel().queue_purge(queue)) for queue in queues)


class Relay:
    """A relay of the messages to ``queues`` while its context is active.

    Messages still held are delivered at the end.
    """

    def __init__(self, transport_url: str, queues: Sequence[str], treat: Treat, seed: int = 1) -> None:
        self._url, self._queues, self._treat = transport_url, queues, treat
        self._chance = random.Random(seed)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._late: list[tuple[float, int, str, Any]] = []
        self._numbers = itertools.count()
        # Number of received messages, and of their deliveries.
        self.taken = self.delivered = 0

    def __enter__(self) -> Self:
        self._connection = connect(self._url)
        self._channel = self._connection.channel()
        self._own = {queue: self._channel.queue_declare("", exclusive=True).queue for queue in self._queues}
        for queue, own in self._own.items():
            self._channel.queue_bind(own, EXCHANGE, queue)
            self._channel.queue_unbind(queue, EXCHANGE, queue)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        for queue, own in self._own.items():
            self._channel.queue_bind(queue, EXCHANGE, queue)
            self._channel.queue_unbind(own, EXCHANGE, queue)
        self._take()
        self._deliver(upto=float("inf"))
        self._connection.close()

    def _run(self) -> None:
        while not self._done.wait(0.002):
            self._take()
            self._deliver(upto=time.monotonic())

    def _take(self) -> None:
        for queue, own in self._own.items():
            while (message := self._channel.basic_get(own, no_ack=True)) is not None:
                self.taken += 1
                for delay in self._treat(self._chance):
                    heapq.heappush(self._late, (time.monotonic() + delay, next(self._numbers), queue, message))

    def _deliver(self, upto: float) -> None:
        while self._late and self._late[0][0] <= upto:
            _when, _number, queue, message = heapq.heappop(self._late)
            deliver(self._channel, queue, message)
            self.delivered += 1


def deliver(channel: amqp.Channel, queue: str, message: Any, copy: bool = True) -> None:
    """Send an intercepted message to the queue; a ``copy`` gets another message id."""
    body = message.body if isinstance(message.body, str) else message.body.decode()
    channel.basic_publish(amqp.Message(_another(body) if copy else body, **dict(message.properties)),
                          routing_key=queue)


def _another(body: str) -> str:
    """Return the message with another id, so that oslo.messaging's duplicate check does not drop it."""
    outer = json.loads(body)
    inner = json.loads(outer["oslo.message"])
    inner["_unique_id"] = uuidlib.uuid4().hex
    return json.dumps({**outer, "oslo.message": json.dumps(inner)})
