"""Connections to RabbitMQ: several brokers, TLS, heartbeats, blocked publishers, and deadlines.

py-amqp runs on non-blocking sockets, so that connecting, sending and receiving end at a deadline."""

import contextlib
import logging
import os
import random
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import amqp
from amqp import transport

from nova.bus.driver import frames
from nova.bus.driver.broker import Exchange, NotPublished, Outgoing, Queue
from nova.bus.driver.options import Options

LOG = logging.getLogger(__name__)

# Exceptions of py-amqp for a lost connection or a failed connection attempt.
ERRORS = (amqp.AMQPError, OSError, EOFError)
_CONNECT = 5.0  # maximum number of seconds for TCP, TLS and the log-in to one broker
_READ = 16_384  # maximum number of bytes that a system call reads
_FRAME = 15.0  # seconds that a connection without a deadline waits for data, or until it can send data
_TCP_USER_TIMEOUT = 18  # socket option of Linux: milliseconds that sent data may stay unacknowledged


class _Channel(amqp.Channel):  # type: ignore[misc]
    """A channel that counts how often it was opened: py-amqp reopens it after an error, without publisher confirms."""

    openings = 0

    def open(self) -> Any:
        self.openings += 1
        return super().open()


class BoundedConnection(amqp.Connection):  # type: ignore[misc]
    """A connection of py-amqp. Operations raise TimeoutError at ``until`` (monotonic time), or after 15 seconds without
    progress if it is None."""

    Channel = _Channel
    until: float | None = None
    # Called with the tag of each confirmation, and with the tag and the body of each delivered message.
    on_confirmed: Callable[[int], None] | None = None
    on_delivered: Callable[[int, bytes], None] | None = None
    _delivery: frames.Delivery | None = None

    def seconds_left(self) -> float:
        """Return the seconds for which an operation may wait. Raises TimeoutError after the deadline."""
        left = _FRAME if self.until is None else min(_FRAME, self.until - time.monotonic())
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def Transport(self, host: str, connect_timeout: float | None, ssl: Any = False,
                  read_timeout: None = None, write_timeout: None = None, socket_settings: Any = None) -> Any:
        made: Any = (_Tls if ssl else _Tcp)(host, connect_timeout, socket_settings=socket_settings, ssl=ssl)
        made.seconds_left = self.seconds_left
        return made

    def connect(self, callback: None = None) -> None:
        """Connect. Raises RecoverableConnectionError for a closed connection, which py-amqp would open again."""
        if self.channels is None:
            raise amqp.RecoverableConnectionError("the connection is closed")
        super().connect(callback)

    def _on_tune(self, channel_max: int, frame_max: int, *heartbeat: int) -> None:
        """Limit the frame size that the broker proposes: py-amqp reserves a buffer of this size."""
        if 0 < frame_max < frames.SMALLEST:
            raise amqp.UnexpectedFrame(f"the broker accepts frames of {frame_max} bytes only")
        super()._on_tune(channel_max, min(frame_max or frames.LARGEST, frames.LARGEST), *heartbeat)

    def blocking_read(self, timeout: float | None = None) -> bool:
        """Read and handle at least one frame, and all that have arrived with it. Return True if one of them was a
        complete method. The deadline of the connection replaces the timeout. Raises UnexpectedFrame for a frame that
        cannot be decoded, for which py-amqp raises errors of many types."""
        transport, handled = self.transport, False
        try:
            frame = transport.read_frame()
            while frame is not None:
                handled |= bool(self._handle(*frame))
                frame = transport.buffer.next()
        except ERRORS:
            raise
        except Exception as error:
            raise amqp.UnexpectedFrame(f"a frame cannot be decoded: {error!r}") from error
        return handled

    def _handle(self, kind: int, channel: int, payload: bytes) -> Any:
        delivery = self._delivery
        if delivery is not None and channel:
            body = delivery.add(kind, payload)
            if body is not None:
                self._delivery = None
                self.on_delivered(delivery.tag, body)  # type: ignore[misc]
        elif kind == frames.METHOD and payload.startswith(frames.DELIVER) and self.on_delivered is not None:
            self._delivery = frames.Delivery(frames.delivery_tag(payload))
        elif kind == frames.METHOD and payload.startswith(frames.ACK) and self.on_confirmed is not None:
            self.on_confirmed(frames.number(payload))
        else:
            return self.on_inbound_frame((kind, channel, payload))
        self.bytes_recv += 1  # heartbeat_tick() checks that the broker has sent something
        return True

    def send(self, data: bytes) -> None:
        """Send frames."""
        self.transport.write(data)
        self.bytes_sent += 1  # heartbeat_tick() sends a heartbeat if nothing was sent


class _Bounded:
    """Mix-in of a transport. An operation is tried first and polls the socket only if it would block, so the deadline
    costs no system calls while the broker responds."""

    sock: Any
    seconds_left: Callable[[], float]

    def _connect(self, host: str, port: int, _timeout: float | None) -> None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        while True:
            share = self.seconds_left() / len(addresses)
            (*_kind, address) = addresses.pop(0)
            try:
                super()._connect(address[0], port, share)  # type: ignore[misc]
                return
            except OSError:
                if not addresses:
                    raise

    def _setup_transport(self) -> None:
        self.connect_timeout = self.seconds_left()  # for the TLS handshake
        super()._setup_transport()  # type: ignore[misc]
        self.sock.settimeout(0)
        self.buffer = frames.Buffer()
        self._write = self._send

    def read_frame(self, *_unpack: Any) -> tuple[int, int, bytes]:
        """Return the kind, channel and payload of the next frame. Raises TimeoutError, after which the call can be
        repeated, and ConnectionError if the broker closed the connection."""
        while (frame := self.buffer.next()) is None:
            received: bytes = self._when_ready(self.sock.recv, _READ, select.POLLIN)
            if not received:
                self.connected = False
                raise ConnectionResetError("The broker has closed the connection.")
            self.buffer.add(received)
        return frame

    def _send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._when_ready(self.sock.send, rest, select.POLLOUT):]

    def _when_ready(self, operation: Callable[[Any], Any], argument: Any, event: int) -> Any:
        while True:
            try:
                return operation(argument)
            except BlockingIOError:
                awaited = event
            except ssl.SSLWantReadError:
                awaited = select.POLLIN
            except ssl.SSLWantWriteError:
                awaited = select.POLLOUT
            poll = select.poll()
            poll.register(self.sock, awaited)
            if not poll.poll(1 + int(1000 * self.seconds_left())):
                raise TimeoutError("timed out")


class _Tcp(_Bounded, transport.TCPTransport):  # type: ignore[misc]
    pass


class _Tls(_Bounded, transport.SSLTransport):  # type: ignore[misc]
    pass


class Connection:
    """A connection with one channel. Not thread-safe. Methods raise :data:`ERRORS` when the connection is lost, and
    TimeoutError at the deadline ``amqp.until``."""

    def __init__(self, made: BoundedConnection) -> None:
        self.amqp = made
        self.blocked = False  # True while the broker reads nothing more from this connection
        self.used_at = time.monotonic()
        made.on_blocked, made.on_unblocked = self._blocked, self._unblocked
        try:
            made.connect()
            self.channel: _Channel = made.channel()
        except BaseException:
            self.drop()
            raise
        self._poll = select.poll()
        self._poll.register(made.sock, select.POLLIN)
        self._number, self._buffer = made.sock.fileno(), made.transport.buffer
        self._pending: Callable[[], int] | None = getattr(made.sock, "pending", None)  # TLS only

    def _blocked(self, _reason: str) -> None:
        self.blocked = True

    def _unblocked(self) -> None:
        self.blocked = False

    def wake_by(self, file: int) -> None:
        """Let :meth:`handle` return when this file becomes readable."""
        self._poll.register(file, select.POLLIN)

    def handle(self, seconds: float) -> bool:
        """Handle the frames that have arrived. Return False if none came within ``seconds``, or if a file woke it."""
        if not self.buffered():
            ready = self._poll.poll(max(0, int(seconds * 1000)))
            if not any(number == self._number for number, _event in ready):
                return False
        # Not drain_events(), which would wait for another frame after each heartbeat of the broker.
        self.amqp.blocking_read()
        return True

    def buffered(self) -> bool:
        """Return True if received data has not been handled yet."""
        return bool(self._buffer) or (self._pending is not None and self._pending() > 0)

    def publish(self, message: Outgoing, expiration: int | None) -> None:
        """Send a message without waiting for its confirmation. ``expiration``: milliseconds; None for none."""
        self.amqp.send(frames.publish(self.channel.channel_id, message.exchange.name, message.routing_key,
                                      message.mandatory or message.queue is not None, expiration, message.body,
                                      self.amqp.frame_max))

    def acknowledge(self, tag: int, multiple: bool = False) -> None:
        """Acknowledge a message. ``multiple``: also all messages that were delivered before it."""
        self.amqp.send(frames.ack(self.channel.channel_id, tag, multiple))

    def declare(self, exchange: Exchange) -> None:
        """Declare an exchange. An exchange that exists with other properties is used as it is."""
        if not exchange.declare:
            return
        with contextlib.suppress(amqp.PreconditionFailed):  # py-amqp opens the channel again
            self.channel.exchange_declare(exchange.name, exchange.type, durable=exchange.durable,
                                          auto_delete=exchange.auto_delete)

    def declare_queue(self, queue: Queue) -> None:
        """Declare a queue and its binding. A queue that exists with another durability is used as it is."""
        if queue.exchange.name:
            self.declare(queue.exchange)
        for durable in (queue.durable, not queue.durable):
            try:
                self.channel.queue_declare(queue.name, durable=durable, auto_delete=queue.auto_delete,
                                           arguments=queue.arguments)
                break
            except amqp.PreconditionFailed as error:
                if "durable" not in str(error) or durable != queue.durable:
                    raise
        if queue.exchange.name:
            self.channel.queue_bind(queue.name, queue.exchange.name, queue.routing_key)

    def close(self) -> None:
        """Close the connection with AMQP's handshake; without an answer within _CONNECT seconds, only the socket."""
        self.amqp.until = time.monotonic() + _CONNECT
        with contextlib.suppress(*ERRORS):
            self.amqp.close()
        self.drop()

    def drop(self) -> None:
        """Close the socket."""
        with contextlib.suppress(*ERRORS):
            self.amqp.collect()


class Opener:
    """Opens connections to the brokers of a transport URL, first to the broker of the previous one. Thread-safe."""

    def __init__(self, url: Any, options: Options) -> None:
        self.options = options
        self._virtual_host = url.virtual_host or "/"
        self._hosts = [(host.hostname or "localhost", host.port or 5672, host.username or "guest",
                        host.password or "guest") for host in url.hosts] or [("localhost", 5672, "guest", "guest")]
        random.shuffle(self._hosts)
        self._lock = threading.Lock()
        self._first = 0

    def open(self, until: float | None) -> Connection:
        """Return a connection to the first broker that answers, with the deadline ``until``. Each broker gets an equal
        share of the remaining time. Raises NotPublished."""
        problems = []
        count, first = len(self._hosts), self._first
        for offset in range(count):
            number = (first + offset) % count
            hostname, port, *_account = self._hosts[number]
            prepared, now = self._prepared(*self._hosts[number]), time.monotonic()
            prepared.until = now + (_CONNECT if until is None else min(_CONNECT, (until - now) / (count - offset)))
            try:
                connection = Connection(prepared)
            except ERRORS as error:
                problems.append(f"{hostname}:{port}: {str(error) or type(error).__name__}")
            else:
                prepared.until = until
                self._first = number
                return connection
        self.lost()
        message = f"No connection to RabbitMQ ({'; '.join(problems)})."
        LOG.error(message)
        raise NotPublished(message)

    def lost(self) -> None:
        """Let the next open() begin with another broker."""
        with self._lock:
            self._first = (random.randrange(len(self._hosts)) if self.options.shuffle_hosts else  # noqa: S311
                           (self._first + 1) % len(self._hosts))

    def _prepared(self, hostname: str, port: int, username: str, password: str) -> BoundedConnection:
        options, tls = self.options, self.options.tls
        if tls is not None and "ca_certs" in tls:
            tls = {**tls, "server_hostname": hostname}  # the certificate must contain the name of this broker
        address = f"[{hostname}]:{port}" if ":" in hostname else f"{hostname}:{port}"
        return BoundedConnection(
            address, userid=username, password=password, login_method=options.login_method,
            virtual_host=self._virtual_host, ssl=tls if tls else options.tls is not None, heartbeat=options.heartbeat,
            confirm_publish=False,
            socket_settings={_TCP_USER_TIMEOUT: options.heartbeat * 1000} if options.heartbeat else None,
            client_properties={
                "connection_name": f"{os.path.basename(sys.argv[0])}:{os.getpid()}",
                "capabilities": {"authentication_failure_close": True, "connection.blocked": True,
                                 "consumer_cancel_notify": True}})
