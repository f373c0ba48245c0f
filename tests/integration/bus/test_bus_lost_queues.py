"""Queues that are lost, with or without the broker, while their consumers keep running."""

from __future__ import annotations

import concurrent.futures
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging
import pytest

from nova import bus, context, exception
from nova.bus.broker import listeners
from nova.bus.driver.broker import Exchange, Outgoing
from nova.bus.oslo import driver_of
from tests.integration.bus.bus_desk import Clerk, Desk
from tests.integration.bus.test_bus_overload import World
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.wire import Wire

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)
# Clients reconnect soon after the broker is available again.
_SOON = {"rabbit_interval_max": 1, "kombu_reconnect_delay": 0.2}


class Wired(World):
    """A server, and a client with a blockable connection to the broker. Replies wait ``timeout`` seconds for the
    client's queue."""

    def __init__(self, rabbit: Rabbit, directory: pathlib.Path, timeout: int) -> None:
        self.wire = Wire(rabbit.port)
        super().__init__(rabbit, directory, self.wire.port, seconds=60, kombu_missing_consumer_retry_timeout=timeout,
                         **_SOON)
        self.start("one")

    def end(self) -> None:
        super().end()
        self.wire.close()


@pytest.fixture
def new_world(rabbitmq: Rabbit, tmp_path: pathlib.Path) -> Iterator[Callable[..., Wired]]:
    made: list[Wired] = []

    def make(timeout: int = 10) -> Wired:
        made.append(Wired(rabbitmq, tmp_path, timeout))
        return made[-1]

    yield make
    for world in made:
        world.end()


def answered(desk: Any, name: str) -> bool:
    try:
        return bool(bus.within(desk, 2).ask(CTX, name) == "one")
    except exception.ServiceUnavailable:
        return False


def test_caller_receives_replies_again_after_its_reply_queue_was_missing(new_world: Callable[..., Wired]) -> None:
    world = new_world(timeout=1)
    assert world.desk.ask(CTX, "before") == "one"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(bus.within(world.desk, 30).ask, CTX, "meanwhile", 1)
        eventually(lambda: "meanwhile" in world.begun("one"), 30, "the server executes the call")
        world.wire.block()
        world.delete(driver_of(world.transport).calls.queue.name)
        eventually(lambda: "reply_" in world.processes["one"].tail(), 60, "the server has given up replying")
        world.wire.unblock()
        eventually(lambda: answered(world.desk, "after"), 40, "the caller has received the reply")


def test_reply_is_delivered_to_a_caller_that_reconnects_after_the_server(new_world: Callable[..., Wired],
                                                                         rabbitmq: Rabbit) -> None:
    world = new_world(timeout=10)
    assert world.desk.ask(CTX, "before") == "one"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(bus.within(world.desk, 300).ask, CTX, "meanwhile", 1)
        eventually(lambda: "meanwhile" in world.begun("one"), 30, "the server executes the call")
        time.sleep(0.3)  # until the broker has confirmed the request to the caller
        world.wire.block()
        rabbitmq.kill()
        time.sleep(11)  # longer than a reply waits for a missing queue
        rabbitmq.start()
        eventually(lambda: world.queues("desk"), 60, "the server is back")
        time.sleep(1.5)  # until all connections of the server are open
        world.wire.unblock()
        assert asked.result(300) == "one"


def test_deleted_reply_queue_is_redeclared_by_the_caller(new_world: Callable[..., Wired]) -> None:
    world = new_world()
    assert world.desk.ask(CTX, "before") == "one"
    for number in range(5):
        world.delete(driver_of(world.transport).calls.queue.name)
        eventually(lambda: answered(world.desk, f"after {number}"), 40, "the caller has received the reply")  # noqa: B023


@pytest.mark.parametrize("queue", ["desk", "desk.one"])
def test_deleted_server_queue_is_redeclared_by_the_server(new_world: Callable[..., Wired], queue: str) -> None:
    world = new_world()
    desk = world.desk if queue == "desk" else bus.at(world.desk, "one")
    for number in range(5):
        world.delete(queue)
        eventually(lambda: listeners(world.transport, queue), 40, "the server listens")
        eventually(lambda: answered(desk, f"after {number}"), 40, "the server answers")  # noqa: B023


class Listener(Clerk):
    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.heard: set[str] = set()

    def shout(self, ctx: context.RequestContext, name: str) -> None:
        self.heard.add(name)


def test_deleted_fanout_queue_is_redeclared_by_the_server(new_world: Callable[..., Wired]) -> None:
    world, two = new_world(), Listener("two")
    server = bus.serve(world.transport, Desk.topic, two.host, [(Desk, two)])
    news = server.listener.queues[-1].name

    def hears(name: str) -> bool:
        world.desk.shout(CTX, name)
        return name in two.heard

    try:
        for number in range(5):
            world.delete(news)
            eventually(lambda: hears(f"after {number}"), 40, "the server receives fanout messages", interval=0.2)  # noqa: B023
    finally:
        bus.stop_taking(server)
        server.wait()


def test_notification_is_kept_after_its_queue_was_deleted(new_world: Callable[..., Wired]) -> None:
    world = new_world()
    target = messaging.Target(exchange="nova", topic="notifications.info")
    for number in range(3):
        driver_of(world.transport).send_notification(target, {}, {"number": number}, 2.0)
        assert world.queues("notifications.info") == {"notifications.info": 1}
        world.delete("notifications.info")


@pytest.mark.parametrize("durable", [False, True])
def test_messages_are_confirmed_by_an_exchange_that_exists_with_other_properties(new_world: Callable[..., Wired],
                                                                                 durable: bool) -> None:
    world = new_world()
    with world._connect() as connection:
        connection.channel().exchange_declare("shared", "topic", durable=not durable, auto_delete=False)
    driver = driver_of(world.transport)
    for number in range(3):
        driver.send_notification(messaging.Target(exchange="shared", topic="info"), {}, {"number": number}, 2.0)
        driver.broker.publish(Outgoing(Exchange("shared", durable=durable), "info", b"{}", time.monotonic() + 10))
    assert world.queues("info") == {"info": 6}
