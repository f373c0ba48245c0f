"""Graceful shutdown of an RPC server: running calls finish, and new messages go to other servers."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import amqp
import oslo_messaging as messaging
import pytest
from oslo_config import cfg

from nova import bus, context, exception
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)


class Desk(bus.Interface):
    topic = "desk"
    namespace = "desk"

    @bus.call
    def ask(self, ctx: context.RequestContext, slow: bool = False) -> str: ...

    @bus.cast
    def note(self, ctx: context.RequestContext, text: str) -> None: ...


class Clerk:
    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = threading.Event()
        self.let_go = threading.Event()
        self.notes: list[str] = []

    def ask(self, ctx: context.RequestContext, slow: bool) -> str:
        if slow:
            self.busy.set()
            self.let_go.wait(30)
        return self.name

    def note(self, ctx: context.RequestContext, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def transport(rabbitmq: Rabbit) -> Iterator[messaging.RPCTransport]:
    made = bus.connect(cfg.CONF, url=rabbitmq.new_vhost())
    yield made
    made.cleanup()


@pytest.fixture
def desks(transport: messaging.RPCTransport) -> Iterator[tuple[dict[str, Clerk], dict[str, Any]]]:
    clerks = {name: Clerk(name) for name in ("first", "second")}
    servers = {name: bus.serve(transport, "desk", name, [(Desk, clerk)]) for name, clerk in clerks.items()}
    yield clerks, servers
    for name, server in servers.items():
        clerks[name].let_go.set()
        server.stop()
        server.wait()


def test_stopping_server_finishes_its_calls_and_new_ones_go_to_others(
        transport: messaging.RPCTransport, desks: tuple[dict[str, Clerk], dict[str, Any]]) -> None:
    clerks, servers = desks
    client = bus.client(transport, Desk)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        slow = pool.submit(lambda: bus.at(client, "first").ask(CTX, slow=True))
        assert clerks["first"].busy.wait(10), slow.exception(1)
        bus.stop_taking(servers["first"])
        started = time.monotonic()
        for number in range(20):
            assert client.ask(CTX) == "second"
            client.note(CTX, str(number))
        assert time.monotonic() - started < 5, "calls waited for the stopping server"
        assert not slow.done()
        clerks["first"].let_go.set()
        assert slow.result(10) == "first"
    servers["first"].wait()
    eventually(lambda: len(clerks["second"].notes) == 20, 20, "all notes have arrived")
    assert clerks["first"].notes == []


def test_stopping_server_drops_a_connection_that_does_not_close_cleanly(
        transport: messaging.RPCTransport, desks: tuple[dict[str, Clerk], dict[str, Any]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may report the end of a deleted queue's consumer before it confirms the deletion."""
    clerks, servers = desks
    client = bus.client(transport, Desk)

    def cancel(*_arguments: Any, **_more: Any) -> None:
        raise amqp.exceptions.ConsumerCancelled("1", (60, 30))

    monkeypatch.setattr(amqp.Channel, "queue_delete", cancel)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: bus.at(client, "first").ask(CTX, slow=True))
        assert clerks["first"].busy.wait(10), slow.exception(1)
        bus.stop_taking(servers["first"])
        assert {client.ask(CTX) for _number in range(20)} == {"second"}
        clerks["first"].let_go.set()
        assert slow.result(10) == "first"
    servers["first"].wait()


def test_server_finishes_its_calls_when_stopped_without_a_broker(rabbitmq: Rabbit,
                                                                 transport: messaging.RPCTransport) -> None:
    clerk, client = Clerk("only"), bus.client(transport, Desk)
    server = bus.serve(transport, "desk", "only", [(Desk, clerk)])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = pool.submit(lambda: client.ask(CTX, slow=True))
        assert clerk.busy.wait(10)
        rabbitmq.kill()
        try:
            started = time.monotonic()
            bus.stop_taking(server)
            assert time.monotonic() - started < 20
            ended = pool.submit(server.wait)
            assert not ended.done(), "the server stopped before its call finished"
        finally:
            clerk.let_go.set()
            rabbitmq.start()
        ended.result(60)
        assert asked.exception(60) is None or isinstance(asked.exception(), exception.ServiceUnavailable)


def test_no_message_is_lost_when_servers_start_and_stop(transport: messaging.RPCTransport) -> None:
    client = bus.client(transport, Desk)
    steady = Clerk("steady")
    server = bus.serve(transport, "desk", "steady", [(Desk, steady)])
    done = threading.Event()
    passing: list[Clerk] = []

    def come_and_go() -> None:
        for number in range(6):
            passing.append(Clerk(f"passing-{number}"))
            other = bus.serve(transport, "desk", passing[-1].name, [(Desk, passing[-1])])
            time.sleep(0.3)
            bus.stop_taking(other)
            other.wait()
        done.set()

    def send(sender: int) -> int:
        for number in itertools.count():
            if done.is_set():
                return number
            client.note(CTX, f"{sender}-{number}")
        return 0

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        coming = pool.submit(come_and_go)
        sent = sum(pool.map(send, range(4)))
        coming.result(60)
    eventually(lambda: sum(len(clerk.notes) for clerk in [steady, *passing]) >= sent, 10,
               f"all {sent} notes have arrived")
    assert sum(len(clerk.notes) for clerk in passing) > 20
    bus.stop_taking(server)
    server.wait()
