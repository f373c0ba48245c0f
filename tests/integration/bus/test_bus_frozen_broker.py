"""Messages through a broker that accepts connections but does not answer: each call ends at its own deadline."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova import bus, context, exception
from nova.bus.driver import connections
from nova.bus.oslo import driver_of
from tests.integration.bus import bus_desk
from tests.integration.bus.bus_desk import Desk
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit, start_rabbitmq

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)
_TOLERANCE = 1.0  # seconds by which a call may exceed its deadline, on a busy machine
_TIMEOUT = 3  # [DEFAULT]rpc_response_timeout
# Each kind of message, and the seconds in which the method must return or raise an error.
KINDS: dict[str, tuple[Callable[[Desk], Any], float]] = {
    "call": (lambda desk: desk.ask(CTX, "call"), _TIMEOUT),
    "short call": (lambda desk: bus.within(desk, 1).ask(CTX, "short"), 1),
    "call to a host": (lambda desk: bus.within(bus.at(desk, "one"), 1).ask(CTX, "host"), 1),
    "cast": (lambda desk: desk.note(CTX, "cast"), _TIMEOUT / 4),
    "fanout": (lambda desk: desk.shout(CTX, "fanout"), 2.5)}


@pytest.fixture(scope="module")
def broker() -> Iterator[Rabbit]:
    """Start a separate broker, since freezing it affects all clients."""
    with start_rabbitmq() as started:
        yield started


@pytest.fixture(scope="module")
def url(broker: Rabbit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a virtual host with a server."""
    url = broker.new_vhost()
    server = bus_desk.start(bus_desk.configure(tmp_path_factory.mktemp("server"), url), "one")
    yield url
    server.kill()


@pytest.fixture
def connect(url: str, tmp_path: pathlib.Path) -> Iterator[Callable[..., Any]]:
    """Return a function that makes a client of the broker, after the brokers at other ports."""
    made: list[Any] = []

    def new(*ports: int) -> Any:
        directory = tmp_path / f"client{len(made)}"
        directory.mkdir()
        others = "".join(f"nova:nova@127.0.0.1:{port}," for port in ports)
        made.append(bus_desk.transport(bus_desk.configure(directory, url.replace("//", f"//{others}"), _TIMEOUT)))
        return made[-1]

    yield new
    for transport in made:
        transport.cleanup()


def refused(send: Callable[[], Any], limit: float) -> float:
    """Return the seconds after which the message failed, which must be at most ``limit``."""
    started = time.monotonic()
    with pytest.raises(exception.ServiceUnavailable):
        send()
    seconds = time.monotonic() - started
    print(f"failed after {seconds:.2f} s, limit {limit:.2f} s")
    assert seconds < limit + _TOLERANCE
    return seconds


def works(desk: Desk) -> bool:
    with contextlib.suppress(exception.ServiceUnavailable):
        return desk.ask(CTX, "works") == "one"
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_first_message_to_a_frozen_broker_fails_at_its_deadline(broker: Rabbit, connect: Callable[..., Any],
                                                                kind: str) -> None:
    send, seconds = KINDS[kind]
    desk = bus.client(connect(), Desk)
    with broker.frozen():
        refused(lambda: send(desk), seconds)
        refused(lambda: send(desk), seconds)
    eventually(lambda: works(desk), 30, "calls succeed after the broker continues")


def test_concurrent_first_calls_fail_at_their_own_deadlines(broker: Rabbit, connect: Callable[..., Any]) -> None:
    desk = bus.client(connect(), Desk)
    with broker.frozen(), concurrent.futures.ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(refused, lambda limit=limit: bus.within(desk, limit).ask(CTX, "short"), limit)
                 for limit in (20, 1, 4) * 4]
        for call in calls:
            call.result()


@pytest.mark.parametrize("kind", KINDS)
def test_message_by_a_kept_connection_to_a_frozen_broker_fails_at_its_deadline(
        broker: Rabbit, connect: Callable[..., Any], kind: str) -> None:
    send, seconds = KINDS[kind]
    desk = bus.client(connect(), Desk)
    eventually(lambda: works(desk), 30, "calls succeed")
    with broker.frozen():
        for _number in range(3):  # by the kept connections, then by new ones
            refused(lambda: send(desk), seconds)
    eventually(lambda: works(desk), 30, "calls succeed after the broker continues")


def test_message_fails_at_its_deadline_when_the_buffer_of_the_socket_is_full(broker: Rabbit,
                                                                            connect: Callable[..., Any]) -> None:
    transport = connect()
    desk = bus.client(transport, Desk)
    eventually(lambda: works(desk), 30, "calls succeed")
    (publisher,) = driver_of(transport).broker._idle
    with broker.frozen():
        with contextlib.suppress(BlockingIOError):
            while True:
                publisher.connection.amqp.sock.send(bytes(2 ** 16), socket.MSG_DONTWAIT)
        refused(lambda: desk.note(CTX, "a small message"), _TIMEOUT / 4)
    eventually(lambda: works(desk), 30, "calls succeed after the broker continues")


@pytest.mark.parametrize("kind", KINDS)
def test_second_broker_is_used_in_time_when_the_first_one_accepts_and_never_answers(
        connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    send, seconds = KINDS[kind]
    monkeypatch.setattr(connections.random, "shuffle", lambda hosts: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        desk = bus.client(connect(silent.getsockname()[1]), Desk)
        for _number in range(3):
            started = time.monotonic()
            send(desk)
            took = time.monotonic() - started
            print(f"succeeded after {took:.2f} s, limit {seconds:.2f} s")
            assert took < seconds + _TOLERANCE
        silent.setblocking(False)
        silent.accept()[0].close()  # raises BlockingIOError if the first broker was not tried


def test_messages_fail_at_their_deadlines_when_two_brokers_accept_and_never_answer(
        broker: Rabbit, connect: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, broker.frozen():
        desk = bus.client(connect(silent.getsockname()[1]), Desk)
        for send, seconds in KINDS.values():
            refused(lambda send=send: send(desk), seconds)
