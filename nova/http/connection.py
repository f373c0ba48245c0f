"""A connection: its request is collected, a thread processes it, and the response is sent."""

from __future__ import annotations

import contextlib
import enum
import io
import select
import socket
import ssl
import sys
import time
from typing import Any, Protocol

import msgspec

from nova.http import messages
from nova.http.exchange import Exchange
from nova.http.limits import Limits
from nova.http.messages import Environ
from nova.http.tls import Secured
from nova.service.rates import client_of

_PIECE = 64 * 1024
# Seconds that a connection may be idle between requests, or before the first one.
IDLE = 60.0
# A client must read a response within these seconds plus the response's size divided by these bytes per second.
_FETCH = 30.0
_SLOWEST = 16 * 1024
# Limits in seconds and bytes for reading and discarding what a client sends after its request was refused; without
# reading it, the client would not receive the response.
_LINGER = 5.0
_DISCARD = 16 * 1024 * 1024


class State(enum.Enum):
    """States of a connection. In WORKING a processing thread owns the connection, otherwise the event loop's thread."""

    GREETING = "TLS handshake"
    READING = "waiting for a request or receiving one"
    WORKING = "processing the request"
    SENDING = "sending the response"
    ENDING = "waiting until the client closes"
    CLOSED = "closed"


class Loop(Protocol):
    """The interface of the event loop for a connection. All methods may be called from any thread.

    ``leaving``: True to end each connection with its next response. ``environ``: the WSGI variables of all requests."""

    limits: Limits
    leaving: bool
    environ: Environ
    error_body: messages.ErrorBody

    def await_(self, connection: Connection, events: int) -> None:
        """Notify the connection once when it is readable or writable. Must be the last action of a thread on the
        connection, since the thread of the loop may use it after this call."""

    def submit(self, connection: Connection) -> None:
        """Queue the request for a thread."""

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""


class Connection:
    """A client's connection. ``used``: number of requests received. ``deadline``: time at which an inactive connection
    is closed."""

    __slots__ = ("_discarded", "_exchange", "_keep", "_loop", "_rest", "_tls", "address", "begun",
                 "client", "data", "deadline", "port", "secure", "since", "sock",
                 "state", "trusted", "used")

    def __init__(self, loop: Loop, sock: socket.socket | Secured, address: tuple[Any, ...]) -> None:
        self._loop = loop
        self.sock = sock
        self.address, self.port = address[:2]
        self.client = client_of(self.address)
        self.trusted = loop.limits.trusted(self.address)
        self._tls = sock if isinstance(sock, Secured) else None
        self.secure = self._tls is not None
        self.since = time.monotonic()
        self.used = self._discarded = 0
        self._exchange = Exchange(loop.limits.header_size, loop.limits.body_size)
        self.data = bytearray()
        self._rest = memoryview(b"")
        self._keep = True
        self.state = State.READING
        self._expect_request()
        if self.secure:
            self.state = State.GREETING
            self.deadline = self.since + loop.limits.receive

    # -- in the loop's thread ----------------------------------------------------------------------
    def ready(self) -> None:
        """Handle a readable or writable socket."""
        if self.state is State.READING:
            self._receive()
        elif self.state is State.SENDING:
            self._send()
        elif self.state is State.ENDING:
            self._discard()
        elif self.state is State.GREETING:
            self._greet()

    def expired(self) -> None:
        """Handle an expired deadline."""
        if self.state is State.READING and self.begun:
            self.refuse(408, f"The request was not complete within {self._loop.limits.receive:g} seconds.")
        else:
            self.close()

    def refuse(self, status: int, message: str, retry_after: int | None = None) -> None:
        """Respond to an invalid request with an error in the API's format, then close the connection."""
        headers = [("Content-Type", "application/json")]
        if retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        body = msgspec.json.encode(self._loop.error_body(status, message, retry_after))
        self._keep = False
        self._discarded = 1
        self._answer(f"{status} {messages.PHRASES[status]}", headers, body)

    def _greet(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.await_(self, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._loop.await_(self, select.EPOLLOUT)
        except (OSError, ValueError):
            self.close()
        else:
            self.state = State.READING
            self.deadline = time.monotonic() + IDLE
            self._receive()

    def _receive(self) -> None:
        limits = self._loop.limits
        while True:
            try:
                got = self.sock.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError):
                break
            except ssl.SSLWantWriteError:
                self._loop.await_(self, select.EPOLLOUT)
                return
            except (OSError, ValueError):
                got = b""
            if not got:
                self.close()
                return
            self.data += got
            if (len(got) < _PIECE and not self.secure) or len(self.data) > limits.header_size + limits.body_size:
                break
        if self.data:
            self._advance()
        else:  # wait for more: the TLS messages contained no application data
            self._loop.await_(self, select.EPOLLIN)

    def _discard(self) -> None:
        try:
            got = self.sock.recv(_PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            got = None
        except (OSError, ValueError):
            got = b""
        self._discarded += len(got or b"")
        if got == b"" or self._discarded > _DISCARD:
            self.close()
        else:
            self._loop.await_(self, select.EPOLLIN)

    # -- in the processing thread ------------------------------------------------------------------
    def close(self) -> None:
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self._loop.forget(self)
        if self._tls is not None:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
        self.sock.close()
        self._rest, self.data = memoryview(b""), bytearray()

    def environ(self) -> Environ:
        """Return the WSGI environment of the request."""
        scheme = "https" if self.secure else "http"
        return {**(self._exchange.environ or {}), **self._loop.environ, "REMOTE_ADDR": self.address,
                "REMOTE_PORT": str(self.port), "wsgi.version": (1, 0), "wsgi.url_scheme": scheme,
                "wsgi.input": io.BytesIO(bytes(self._exchange.body)), "wsgi.errors": sys.stderr,
                "wsgi.multithread": True, "wsgi.multiprocess": True, "wsgi.run_once": False}

    def answer(self, status: str, headers: messages.Headers, body: bytes) -> None:
        """Send a response, and give the connection back to the loop's thread. Raises h11.LocalProtocolError for an
        invalid header."""
        self._keep = self._keep and not self._loop.leaving
        self._answer(status, headers, body)

    def _answer(self, status: str, headers: messages.Headers, body: bytes) -> None:
        text = self._exchange.answer(status, headers, body, self._keep)
        self._rest = memoryview(text)
        self.deadline = time.monotonic() + _FETCH + len(text) / _SLOWEST
        self.state = State.SENDING
        self._send()

    @property
    def unsent(self) -> int:
        """Return the number of response bytes that the client has not read yet."""
        return len(self._rest)

    def _send(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[self.sock.send(self._rest[:_PIECE]):]
            if self._tls is not None:
                self._tls.flush()
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._loop.await_(self, select.EPOLLOUT)
        except ssl.SSLWantReadError:
            self._loop.await_(self, select.EPOLLIN)
        except (OSError, ValueError):
            self.close()
        else:
            self._sent()

    def _sent(self) -> None:
        self._rest = memoryview(b"")  # an empty view of the response would keep all of it in memory
        if self._exchange.again():
            self.state = State.READING
            self._expect_request()
            if self.data or self._exchange.pending:
                self._advance()
            else:
                # Bytes of a TLS connection may be buffered in this process, so that epoll does not report them.
                waits = select.EPOLLOUT if self._tls is not None and self._tls.pending() else 0
                self._loop.await_(self, select.EPOLLIN | waits)
        elif self._discarded or self.data or self._exchange.pending:
            self._end()
        else:
            self.close()

    def _end(self) -> None:
        """Half-close the connection: a full close would discard data that the client has not read yet."""
        self.state = State.ENDING
        self.deadline = time.monotonic() + _LINGER
        self.data = bytearray()
        try:
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
            self.sock.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            self.close()
        else:
            self._loop.await_(self, select.EPOLLIN)

    # -- incoming requests -------------------------------------------------------------------------
    def _expect_request(self) -> None:
        self.begun = False
        self.deadline = time.monotonic() + IDLE

    def _advance(self) -> None:
        """Parse the received bytes; submit a complete request."""
        if not self.begun:
            self.begun = True
            self.deadline = time.monotonic() + self._loop.limits.receive
        try:
            complete = self._exchange.collect(self.data)
        except messages.Refused as error:
            self.refuse(error.status, error.message)
            return
        if complete:
            if self._exchange.too_long:
                # Run the application without reading the body: error 401 (no token) precedes 413 (size).
                self._keep = False
                self._discarded = 1
            self.used += 1
            self.state = State.WORKING
            self._loop.submit(self)
            return
        if invitation := self._exchange.invitation():
            with contextlib.suppress(OSError):
                self.sock.send(invitation)
                if self._tls is not None:
                    self._tls.flush()
        self._loop.await_(self, select.EPOLLIN)
