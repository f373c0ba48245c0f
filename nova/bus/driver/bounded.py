"""py-amqp on non-blocking sockets: connecting, sending and receiving end at a deadline."""

import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import amqp
from amqp import transport

_FRAME = 15.0  # seconds that a connection without a deadline waits for data, or for room to send


class BoundedConnection(amqp.Connection):  # type: ignore[misc]
    """A connection of py-amqp. Operations raise TimeoutError at ``until`` (monotonic time), or after 15 seconds without
    progress if it is None."""

    until: float | None = None

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

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read and handle one frame. The deadline of the connection replaces the timeout."""
        return self.on_inbound_frame(self.transport.read_frame())


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
        self.connect_timeout = self.seconds_left()  # of the TLS handshake
        super()._setup_transport()  # type: ignore[misc]
        self.sock.settimeout(0)
        self._quick_recv, self._write = self._receive, self._send

    def _receive(self, size: int) -> bytes:
        received: bytes = self._when_ready(self.sock.recv, size, select.POLLIN)
        return received

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
