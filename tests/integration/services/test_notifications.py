"""Notifications over a real RabbitMQ: delivery after conductors are killed between commit and send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import amqp
import pytest

from tests.integration.cluster import Cluster
from tests.integration.port_relay import start_relay
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit
from tests.notifications import wrong

_QUEUE = "versioned_notifications.info"
_LIFE = ["instance.create.start", "instance.create.end", "instance.delete.start", "instance.shutdown.start",
         "instance.shutdown.end", "instance.delete.end"]


class Broker:
    """The broker of the notifications, unreachable until it is opened."""

    def __init__(self, rabbitmq: Rabbit) -> None:
        self.port, self._real = free_port(), urlsplit(rabbitmq.new_vhost())
        self.url = self._real._replace(netloc=f"nova:nova@127.0.0.1:{self.port}").geturl()

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        start_relay(listener, lambda: socket.create_connection(("127.0.0.1", self._real.port or 0), timeout=5))

    def messages(self) -> list[dict[str, Any]]:
        """Take the messages from the queue and return them."""
        found = []
        with amqp.Connection(f"127.0.0.1:{self._real.port}", userid="nova", password="nova",
                             virtual_host=self._real.path[1:], connect_timeout=5) as connection:
            channel = connection.channel()
            try:
                while message := channel.basic_get(_QUEUE, no_ack=True):
                    found.append(json.loads(json.loads(message.body)["oslo.message"]))
            except amqp.NotFound:
                pass  # no notification has been sent yet
        return found


@pytest.fixture
def broker(rabbitmq: Rabbit) -> Broker:
    return Broker(rabbitmq)


@pytest.fixture
def nova(rabbitmq: Rabbit, broker: Broker) -> Iterator[Cluster]:
    options = {"oslo_messaging_notifications": {"driver": "messagingv2", "transport_url": broker.url},
               "notifications": {"notification_format": "versioned"}}
    with Cluster(rabbitmq.new_vhost(), conductors=2, schedulers=1, options=options) as made:
        yield made


def test_pending_notifications_are_sent_after_conductors_were_killed(nova: Cluster, broker: Broker) -> None:
    """Operations do not wait for the unavailable broker."""
    ids = nova.boot_many(6)
    nova.all_active(ids, 60)
    for uuid in ids[:3]:
        nova.api.delete(f"/servers/{uuid}")
    nova.api.wait_gone(ids[:3], 60)
    nova.kill("conductor-1", "conductor-2")

    broker.open()
    nova.start("conductor-1", "conductor-2")
    nova.wait_ready()
    for uuid in ids[3:]:
        nova.api.delete(f"/servers/{uuid}")
    nova.api.wait_gone(ids[3:], 60)

    told: list[dict[str, Any]] = []

    def all_told() -> bool:
        told.extend(broker.messages())
        return sum(message["event_type"] == _LIFE[-1] for message in told) >= len(ids)

    eventually(all_told, 90, "the deletion of each server is published", interval=0.5)
    assert [found for message in told if (found := wrong(message))] == []
    for uuid in ids:
        # A notification that was sent twice has the same id.
        own = {message["message_id"]: message["event_type"] for message in told
               if message["payload"]["nova_object.data"].get("uuid") == uuid}
        assert list(own.values()) == _LIFE
    nova.audit()
