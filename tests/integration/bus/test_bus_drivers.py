"""Interoperability of Nova's driver and the oslo.messaging driver on the same broker."""

from __future__ import annotations

import pathlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging
import psutil
import pytest
from oslo_config import cfg
from oslo_messaging._metrics.client import oslo_messaging_metrics
from oslo_messaging._tracing.client import oslo_messaging_tracing

from nova import bus, context, exception
from nova.bus.driver.driver import Driver
from nova.bus.oslo import driver_of
from nova.conf import base
from tests.integration.bus.bus_desk import configure
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)


class Echo(bus.Interface):
    topic = "echo"
    namespace = "echo"

    @bus.call
    def repeat(self, ctx: context.RequestContext, text: str) -> str: ...

    @bus.cast
    def note(self, ctx: context.RequestContext, text: str) -> None: ...

    @bus.fanout
    def announce(self, ctx: context.RequestContext, text: str) -> None: ...


class Server:
    def __init__(self) -> None:
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()

    def repeat(self, ctx: context.RequestContext, text: str) -> str:
        if text == "missing":
            raise exception.FlavorNotFound(flavor_id=text)
        return f"{ctx.user_id}: {text}"

    def note(self, ctx: context.RequestContext, text: str) -> None:
        self.notes.put(text)

    announce = note


Connect = Callable[..., Any]


@pytest.fixture
def connect(rabbitmq: Rabbit, tmp_path: pathlib.Path) -> Iterator[Connect]:
    vhost, made = rabbitmq.new_vhost(), []

    def new(driver: str, **rabbit: int) -> Any:
        options = cfg.ConfigOpts()
        options(["--config-file", str(configure(tmp_path, vhost, **rabbit))])
        options.register_opts(base.OPTIONS["rpc"], group="rpc")
        options.register_opts(oslo_messaging_metrics, "oslo_messaging_metrics")
        options.register_opts(oslo_messaging_tracing, "oslo_messaging_tracing")
        options.set_override("rabbit_driver", driver, group="rpc")
        made.append(bus.connect(options))
        assert isinstance(driver_of(made[-1]), Driver) is (driver == "nova")
        return made[-1]

    yield new
    for transport in made:
        transport.cleanup()


@pytest.mark.parametrize(("servers", "clients"), [("nova", "oslo"), ("oslo", "nova"), ("oslo", "oslo"),
                                                  ("nova", "nova")])
def test_nova_and_oslo_drivers_interoperate(connect: Connect, servers: str, clients: str) -> None:
    implementation = Server()
    server = bus.serve(connect(servers), Echo.topic, "h1", [(Echo, implementation)], threads=4)
    try:
        client = bus.client(connect(clients), Echo)
        assert client.repeat(CTX, "small") == "u: small"
        assert bus.at(client, "h1").repeat(CTX, "here") == "u: here"
        long = "long " * 100_000
        assert client.repeat(CTX, long) == f"u: {long}"
        with pytest.raises(exception.FlavorNotFound):
            client.repeat(CTX, "missing")
        client.note(CTX, "one")
        client.announce(CTX, "all")
        assert {implementation.notes.get(timeout=20), implementation.notes.get(timeout=20)} == {"one", "all"}
        with pytest.raises(exception.ServiceUnavailable):
            bus.within(bus.at(client, "h2"), 2).repeat(CTX, "to a host without a server")
    finally:
        bus.stop_taking(server)
        server.wait()


def test_notification_is_stored_until_its_first_consumer_connects(connect: Connect, rabbitmq: Rabbit) -> None:
    transport = connect("nova")
    driver_of(transport).send_notification(
        messaging.Target(topic="notifications.info"), {"user_id": "u"},
        {"event_type": "instance.create.end", "priority": "INFO", "payload": {}, "publisher_id": "p",
         "message_id": "1", "timestamp": "2026-01-01 00:00:00"}, 2.0)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()

    class Endpoint:
        def info(self, ctxt: Any, publisher: str, event: str, payload: Any, metadata: Any) -> None:
            received.put((event, ctxt["user_id"]))

    listener = messaging.get_notification_listener(
        connect("oslo"), [messaging.Target(topic="notifications")], [Endpoint()], executor="threading")
    listener.start()
    try:
        assert received.get(timeout=20) == ("instance.create.end", "u")
    finally:
        listener.stop()
        listener.wait()


def test_idle_connections_are_reopened_after_the_broker_closes_them(connect: Connect, rabbitmq: Rabbit) -> None:
    server = bus.serve(connect("nova"), Echo.topic, "h1", [(Echo, Server())], threads=2)
    client = bus.client(connect("nova"), Echo)
    try:
        assert client.repeat(CTX, "before") == "u: before"
        for _close in range(2):
            rabbitmq.control("close_all_connections", "test")
            eventually(lambda: _repeats(client), 30, "calls are answered again", interval=0.2)
    finally:
        bus.stop_taking(server)
        server.wait()


def test_idle_connections_stay_open_with_heartbeats(connect: Connect, rabbitmq: Rabbit) -> None:
    """RabbitMQ sends heartbeats; the driver processes them without waiting for another frame, and sends its own."""
    heartbeat = 2
    server = bus.serve(connect("nova", heartbeat_timeout_threshold=heartbeat), Echo.topic, "h1", [(Echo, Server())],
                       threads=2)
    client = bus.client(connect("nova", heartbeat_timeout_threshold=heartbeat), Echo)
    try:
        assert client.repeat(CTX, "before") == "u: before"
        before = _local_ports(rabbitmq)
        assert len(before) >= 4  # two publishers, the server's consumer, the client's replies
        time.sleep(5 * heartbeat)
        assert before <= _local_ports(rabbitmq)
        assert client.repeat(CTX, "after") == "u: after"
    finally:
        bus.stop_taking(server)
        server.wait()


def _local_ports(rabbitmq: Rabbit) -> set[int]:
    """Return the ports of this process's connections to the broker."""
    return {connection.laddr.port for connection in psutil.Process().net_connections("tcp")
            if connection.raddr and connection.raddr.port == rabbitmq.port
            and connection.status == psutil.CONN_ESTABLISHED}


def _repeats(client: Echo) -> bool:
    started = time.monotonic()
    try:
        return client.repeat(CTX, "after") == "u: after"
    except exception.ServiceUnavailable:
        assert time.monotonic() - started < 22
        return False
