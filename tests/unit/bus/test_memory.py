"""The in-memory bus of a single process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from nova import bus, context
from nova.bus.driver import memory
from nova.bus.driver.broker import DEFAULT_EXCHANGE, Exchange, Outgoing, Queue
from nova.bus.interface import Interface, call, fanout


class Desk(Interface):
    topic = "memory"
    namespace = "desk"

    @call
    def ask(self, ctx: Any, what: str) -> str: ...

    @fanout
    def tell(self, ctx: Any, what: str) -> None: ...


class Clerk:
    def __init__(self) -> None:
        self.heard = threading.Semaphore(0)

    def ask(self, ctx: Any, what: str) -> str:
        return what.upper()

    def tell(self, ctx: Any, what: str) -> None:
        self.heard.release()


@pytest.fixture
def clerks() -> Iterator[list[Clerk]]:
    transport = bus.connect(cfg.CONF, url="kombu+memory://waking")
    made = [Clerk(), Clerk()]
    servers = [bus.serve(transport, "memory", f"m{number}", [(Desk, clerk)]) for number, clerk in enumerate(made)]
    made[0].desk = bus.client(transport, Desk)  # type: ignore[attr-defined]
    yield made
    for server in servers:
        server.stop()
        server.wait()
    transport.cleanup()


def test_in_memory_calls_return_and_fanouts_reach_all_servers(clerks: list[Clerk]) -> None:
    desk = clerks[0].desk  # type: ignore[attr-defined]
    assert [desk.ask(context.admin(), "yes") for _ in range(20)] == ["YES"] * 20
    desk.tell(context.admin(), "all")
    assert all(clerk.heard.acquire(timeout=10) for clerk in clerks)


def test_idle_consumer_does_not_poll_its_queues(clerks: list[Clerk], monkeypatch: pytest.MonkeyPatch) -> None:
    polls = []
    take = memory.MemoryBroker.take

    def counted(broker: memory.MemoryBroker, names: Any) -> Any:
        polls.append(names)
        return take(broker, names)

    monkeypatch.setattr(memory.MemoryBroker, "take", counted)
    threading.Event().wait(0.5)
    assert polls == []
    assert clerks[0].desk.ask(context.admin(), "yes") == "YES"  # type: ignore[attr-defined]
    assert polls


@pytest.fixture
def broker() -> memory.MemoryBroker:
    return memory.MemoryBroker()


def outgoing(exchange: Exchange, key: str, **values: Any) -> Outgoing:
    return Outgoing(exchange, key, b"body", time.monotonic() + 5, **values)


def test_mandatory_message_without_a_queue_is_undeliverable(broker: memory.MemoryBroker) -> None:
    broker.publish(outgoing(Exchange("x"), "nobody"))
    with pytest.raises(oslo_messaging.MessageUndeliverable):
        broker.publish(outgoing(Exchange("x"), "nobody", mandatory=True))
    with pytest.raises(oslo_messaging.MessageUndeliverable):
        broker.publish(outgoing(DEFAULT_EXCHANGE, "reply_gone", mandatory=True))


def test_expired_message_is_not_delivered(broker: memory.MemoryBroker) -> None:
    queue = Queue("q", Exchange("x"), "q")
    broker.consume([queue], lambda body: None).stop()
    broker.publish(outgoing(Exchange("x"), "q", expires_at=time.monotonic() - 1))
    broker.publish(outgoing(Exchange("x"), "q", expires_at=time.monotonic() + 60))
    assert [broker.take(["q"]), broker.take(["q"])] == [b"body", None]


def test_queue_with_a_consumer_is_not_deleted(broker: memory.MemoryBroker) -> None:
    consumer = broker.consume([Queue("q", Exchange("x"), "q")], lambda body: None)
    assert (broker.listeners("q"), broker.delete_queue("q")) == (1, False)
    consumer.stop()
    assert (broker.listeners("q"), broker.delete_queue("q"), broker.delete_queue("q")) == (0, True, True)


def test_temporary_queue_is_deleted_with_its_consumer(broker: memory.MemoryBroker) -> None:
    fanout_exchange = Exchange("x_fanout", "fanout")
    consumer = broker.consume([Queue("q", fanout_exchange, temporary=True)], lambda body: None)
    broker.publish(outgoing(fanout_exchange, "", mandatory=True))
    consumer.stop()
    with pytest.raises(oslo_messaging.MessageUndeliverable):
        broker.publish(outgoing(fanout_exchange, "", mandatory=True))
