"""The bus inside one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from kombu.transport import memory as kombus
from oslo_config import cfg

from nova import bus, context
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
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url="kombu+memory://waking")
    made = [Clerk(), Clerk()]
    servers = [bus.serve(transport, "memory", f"m{number}", [(Desk, clerk)]) for number, clerk in enumerate(made)]
    made[0].desk = bus.client(transport, Desk)  # type: ignore[attr-defined]
    yield made
    for server in servers:
        server.stop()
        server.wait()
    transport.cleanup()


def test_calls_are_answered_and_fanouts_reach_everybody(clerks: list[Clerk]) -> None:
    desk = clerks[0].desk  # type: ignore[attr-defined]
    assert [desk.ask(context.admin(), "yes") for _ in range(20)] == ["YES"] * 20
    desk.tell(context.admin(), "all")
    assert all(clerk.heard.acquire(timeout=10) for clerk in clerks)


def test_whoever_waits_for_messages_does_not_look_for_them_all_the_time(
        clerks: list[Clerk], monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = kombus.Channel._get

    def look(channel: Any, queue: str, **more: Any) -> Any:
        looks.append(queue)
        return real(channel, queue, **more)

    monkeypatch.setattr(kombus.Channel, "_get", look)
    threading.Event().wait(0.5)
    # Every 0.05 s; without a pause it was thousands.
    assert 0 < looks.count("memory.m0") < 100
