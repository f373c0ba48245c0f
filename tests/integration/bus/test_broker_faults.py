"""Brokers that send bytes which no broker should send: each message still ends at its deadline, with an error of the
bus, and connections are replaced."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging
import pytest
from amqp.serialization import dumps
from oslo_config import cfg

from nova.bus.driver import frames
from nova.bus.driver.broker import Exchange, NotPublished, Outgoing, Queue
from nova.bus.driver.options import Options
from nova.bus.driver.rabbit import RabbitBroker
from tests.integration.processes import eventually

CHANNEL_CLOSE, CONNECTION_CLOSE, PUBLISHED = (20, 40), (10, 50), (60, 40)
_SOON = {"kombu_reconnect_delay": 0.05, "rabbit_retry_interval": 1, "rabbit_interval_max": 1}


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, number: tuple[int, int], form: str = "", *values: Any) -> bytes:
    return frame(1, channel, struct.pack(">HH", *number) + (dumps(form, values) if form else b""))


def delivery(tag: int, body: bytes, size: int | None = None, flags: bytes = b"\0\0") -> bytes:
    header = struct.pack(">HHQ", 60, 0, len(body) if size is None else size) + flags
    return method(1, (60, 60), "sLbss", "1", tag, False, "", "q") + frame(2, 1, header) + frame(3, 1, body)


class Session(threading.Thread):
    """A client's connection. The broker answers as a broker should, or as ``answers`` of the broker define."""

    def __init__(self, broker: ScriptedBroker, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self._broker, self._sock, self._missing, self._tag = broker, sock, 0, 0
        self.consuming = False

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._sock.sendall(data)

    def run(self) -> None:
        buffer = frames.Buffer()
        with contextlib.suppress(OSError), self._sock:
            assert self._sock.recv(8, socket.MSG_WAITALL) == b"AMQP\0\0\x09\x01"
            self.send(method(0, (10, 10), "ooFSS", 0, 9, {}, "PLAIN AMQPLAIN", "en_US"))
            while data := self._sock.recv(65536):
                buffer.add(data)
                while (received := buffer.next()) is not None:
                    self._handle(*received)

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == frames.METHOD:
            number = struct.unpack_from(">HH", payload)
            answers = {
                (10, 11): method(0, (10, 30), "BlB", 100, self._broker.frame_max, self._broker.heartbeat),
                (10, 40): method(0, (10, 41), "s", ""), (20, 10): method(channel, (20, 11), "S", ""),
                (50, 10): method(channel, (50, 11), "sll", "q", 0, 1), (60, 20): method(channel, (60, 21), "s", "1"),
                **{(first, second): method(channel, (first, second + 1))
                   for first, second in ((10, 50), (20, 40), (40, 10), (50, 20), (60, 10), (85, 10))}}
            self.consuming |= number == (60, 20)
            if number != PUBLISHED:
                self.send(self._broker.answers.get(number, answers.get(number, b"")))
        elif kind != 8:
            self._missing = frames.number(payload) if kind == frames.HEADER else self._missing - len(payload)
            if not self._missing:
                self._tag += 1
                self.send(self._broker.answers.get(PUBLISHED, frames.ack(channel, self._tag)))


class ScriptedBroker:
    """A broker on loopback. ``answers``: frames that it sends after a method instead of the right ones."""

    def __init__(self, frame_max: int = 131_072, heartbeat: int = 0) -> None:
        self.frame_max, self.heartbeat = frame_max, heartbeat
        self.answers: dict[Any, bytes] = {}
        self.sessions: list[Session] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.sessions.append(Session(self, self._listening.accept()[0]))
                self.sessions[-1].start()

    def client(self, **options: Any) -> RabbitBroker:
        conf = cfg.ConfigOpts()
        conf([])
        url = messaging.TransportURL(conf, "nova-rabbit", hosts=[messaging.TransportHost(
            "127.0.0.1", self._listening.getsockname()[1], "nova", "nova")])
        Options.of(conf)  # registers the options
        for name, value in {**_SOON, **options}.items():
            conf.set_override(name, value, group="oslo_messaging_rabbit")
        return RabbitBroker(url, Options.of(conf))

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[ScriptedBroker, RabbitBroker]]]:
    """Return a function that starts a broker and its client."""
    made: list[Any] = []

    def both(frame_max: int = 131_072, heartbeat: int = 0, **options: Any) -> tuple[ScriptedBroker, RabbitBroker]:
        broker = ScriptedBroker(frame_max, heartbeat)
        made.extend((broker.client(heartbeat_timeout_threshold=heartbeat, **options), broker))
        return broker, made[-2]

    yield both
    for each in made:
        each.close()


def publish(client: RabbitBroker, seconds: float = 2.0, body: bytes = b"{}") -> None:
    client.publish(Outgoing(Exchange("nova"), "key", body, time.monotonic() + seconds, retries=0))


@pytest.mark.parametrize("frame_max", [1, 8, 4095])
def test_broker_with_too_small_frames_is_refused(start: Callable[..., Any], frame_max: int) -> None:
    with pytest.raises(NotPublished, match=f"frames of {frame_max} bytes"):
        publish(start(frame_max)[1])


@pytest.mark.parametrize("frame_max", [0, 4096, 2**30, 2**32 - 1])
def test_messages_are_sent_whatever_large_frames_the_broker_proposes(start: Callable[..., Any], frame_max: int) -> None:
    _broker, client = start(frame_max)
    publish(client, body=b"x" * 200_000)
    assert client._idle[0].connection.amqp.frame_max <= 131_072  # py-amqp reserves that much memory


RETURN = struct.pack(">HH", 60, 50) + dumps("Bsss", (312, "NO_ROUTE", "nova", "key"))
UNREADABLE = {
    "method without a number": frame(1, 1, b""), "unknown method": method(1, (99, 99)),
    "unknown kind": frame(77, 1, b""),
    "unknown channel": method(9, (85, 11)), "short confirmation": frame(1, 1, frames.ACK + b"\0\0"),
    "header without a method": frame(2, 1, bytes(14)), "short arguments": frame(1, 0, b"\0\x0a\0\x32\1"),
    "text that is not UTF-8": frame(1, 1, b"\0\x3c\0\x32\1\x38\2\xff\xff\1a\1b") + frame(2, 1, bytes(14)),
    "short header": frame(1, 1, RETURN) + frame(2, 1, bytes(12)),
    "unknown type of a field": frame(1, 1, RETURN) + frame(2, 1, bytes(12) + b"\x20\0\0\0\0\x09\1kZabcdef"),
    "no AMQP": b"HTTP/1.1 400 Bad Request\r\n\r\n", "endless frame": b"\1\0\1\x7f\xff\xff\xff\0", "zeros": bytes(64)}


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
def test_publishing_fails_at_once_after_an_unreadable_frame(start: Callable[..., Any], sent: bytes) -> None:
    broker, client = start()
    broker.answers[PUBLISHED] = sent
    with pytest.raises(NotPublished) as raised:
        publish(client, seconds=60)
    assert "before the deadline" not in str(raised.value)
    del broker.answers[PUBLISHED]
    publish(client)


@pytest.mark.parametrize("sent", [UNREADABLE[name] for name in ("short confirmation", "unknown channel", "no AMQP")])
def test_idle_connections_are_replaced_after_an_unreadable_frame(start: Callable[..., Any], sent: bytes) -> None:
    broker, client = start(heartbeat=4, rpc_conn_pool_size=2)
    publish(client)
    for _round in range(3):  # more than the client may have connections
        broker.sessions[-1].send(sent)
        eventually(lambda: client._count == 0, 20, "the connection is dropped")
        publish(client)


def test_idle_connections_serve_while_another_one_receives_part_of_a_frame(start: Callable[..., Any]) -> None:
    broker, client = start(heartbeat=4, rpc_conn_pool_size=3)
    broker.answers[PUBLISHED] = b""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        sent = [pool.submit(publish, client, 30) for _number in range(3)]
        eventually(lambda: len(broker.sessions) == 3, 20, "each message has a connection")
        del broker.answers[PUBLISHED]
        time.sleep(0.5)
        for session in broker.sessions:
            session.send(frames.ack(1, 1))
        for each in sent:
            each.result()
    for session in broker.sessions[:2]:
        session.send(b"\1\0\1\0\0\0\4")
    until = time.monotonic() + 5
    while time.monotonic() < until:
        publish(client, 0.5)
    eventually(lambda: client._count == 1, 20, "the other connections are dropped")


def test_confirmation_of_an_earlier_message_does_not_confirm_the_next_one(start: Callable[..., Any]) -> None:
    broker, client = start()
    publish(client)
    broker.answers[PUBLISHED] = frames.ack(1, 1)
    with pytest.raises(NotPublished, match="before the deadline"):
        publish(client, 0.5)


def test_refused_message_leaves_its_connection_usable(start: Callable[..., Any]) -> None:
    broker, client = start()
    broker.answers[PUBLISHED] = method(1, CHANNEL_CLOSE, "BsBB", 406, "the message is too large", *PUBLISHED)
    with pytest.raises(NotPublished, match="too large"):
        client.publish(Outgoing(Exchange("nova"), "key", b"{}", time.monotonic() + 60, retries=None))
    with pytest.raises(NotPublished, match="255"):
        client.publish(Outgoing(Exchange("nova"), "k" * 256, b"{}", time.monotonic() + 60, retries=None))
    del broker.answers[PUBLISHED]
    broker.sessions[0]._tag = 0  # the channel was opened again
    publish(client)
    assert len(broker.sessions) == 1


IN_A_BODY = {"channel closed": method(1, CHANNEL_CLOSE, "BsBB", 541, "internal error", 0, 0),
             "connection closed": method(0, CONNECTION_CLOSE, "BsBB", 320, "forced", 0, 0),
             "consumer cancelled": method(1, (60, 30), "sb", "1", True), "another delivery": delivery(2, b"{}"),
             "too much": frame(3, 1, b"defghi"), "heartbeat of a channel": frame(8, 1, b"")}


@pytest.mark.parametrize("sent", [delivery(1, b"abc", 6) + each for each in IN_A_BODY.values()] + list(
    UNREADABLE.values()) + [method(0, (10, 51))], ids=[*IN_A_BODY, *UNREADABLE, "close-ok"])
def test_consumer_connects_again(start: Callable[..., Any], sent: bytes) -> None:
    broker, client = start()
    received: list[bytes] = []
    consumer = client.consume([Queue("q")], received.append, repeatable=True)
    broker.sessions[0].send(sent)
    eventually(lambda: [session.consuming for session in broker.sessions] == [True] * 2, 20, "the consumer reconnects")
    data = delivery(1, b"{}", flags=b"\xff\xff\xff\xff\0\2ab")  # a second word of flags
    for number in range(len(data)):  # in pieces of a byte
        broker.sessions[1].send(data[number:number + 1])
    eventually(lambda: received == [b"{}"], 20, "the message is delivered")
    consumer.stop()
    assert len(broker.sessions) == 2


def test_stopped_consumer_does_not_connect_again(start: Callable[..., Any]) -> None:
    broker, client = start()
    go, entered = threading.Event(), threading.Event()

    def wait(_body: bytes) -> None:
        entered.set()
        go.wait(60)

    consumer = client.consume([Queue("q")], wait)
    broker.sessions[0].send(delivery(1, b"{}"))
    assert entered.wait(20)
    consumer.stop()
    go.set()
    consumer._thread.join(20)
    assert (len(broker.sessions), consumer._thread.is_alive()) == (1, False)
