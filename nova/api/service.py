"""Serving the API: a threaded HTTP server on a socket that may be shared by several processes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from cheroot import wsgi

from nova.api import app as api_app
from nova.api.auth import App
from nova.api.backlog import Backlog, Connection
from nova.conf import CONF

LOG = logging.getLogger(__name__)

# Bodies above [oslo_middleware]max_request_body_size get the API's own 413; above this the
# server does not even read them.
_MOST_BODY = 64 * 1024 * 1024
_BACKLOG = 1024
# Connections that are taken from the system at once.
_AT_ONCE = 64
# Seconds in which a handshake that has begun is over.
_HANDSHAKE = 0.05
# A classic packet filter (linux/filter.h): load the TCP flags; with SYN among them drop the packet, else keep it.
_NO_SYN = struct.pack("=" + 4 * "HBBI", 0x30, 0, 0, 13, 0x45, 0, 1, 0x02, 0x06, 0, 0, 0, 0x06, 0, 0, 0xffffffff)
_SO_ATTACH_FILTER = 26


def listen(address: str, port: int) -> socket.socket:
    """A listening socket; make it before forking, the workers share it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by the connections: small answers must not wait for an acknowledgement.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.bind((address, port))
    made.listen(_BACKLOG)
    return made


def shut_to_newcomers(listening: socket.socket) -> None:
    """Nobody new gets into the queue of this socket, which is to be closed; whoever is in it stays connected.

    Closing a socket resets what is in its queue, and some client always gets in after the last look. Newcomers are
    not refused but unheard: their system tries again after a second and finds the socket closed, or our successor's.
    """
    program = ctypes.create_string_buffer(_NO_SYN)
    with contextlib.suppress(OSError):  # a kernel without it: what came in the last moment is reset
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                             struct.pack("HP", len(_NO_SYN) // 8, ctypes.addressof(program)))


class Server(wsgi.Server):
    """cheroot's server on a socket that exists already.

    stop() answers for ``linger`` seconds as before, but ends every connection with the answer; then it takes no more
    connections, and requests in flight have graceful_shutdown_timeout. ``last``: whether the socket ends with it,
    rather than being left to other processes. A request whose client has gone before a thread was free is not done.
    """

    ConnectionClass = Connection

    def __init__(self, shared: socket.socket, application: App, threads: int, linger: float = 0.0,
                 last: Callable[[], bool] = lambda: True) -> None:
        super().__init__(shared.getsockname()[:2], application, numthreads=threads, request_queue_size=_BACKLOG,
                         timeout=60, shutdown_timeout=CONF.graceful_shutdown_timeout, server_name="nova")
        waiting = Backlog()
        self.requests._queue, self.requests.get = waiting, waiting.get
        self._shared = shared
        self._linger = linger
        self._last = last
        self._leaving = False
        self.max_request_body_size = _MOST_BODY

    def bind(self, *_: Any, **__: Any) -> socket.socket:
        # A copy: closing it at stop leaves the socket to the other processes.
        copy = self._shared.dup()
        self.socket = copy
        self.bind_addr = copy.getsockname()[:2]
        return copy

    def prepare(self) -> None:
        super().prepare()
        # Another process may have accepted the connection that woke this one up: do not wait for the next.
        self.socket.setblocking(False)
        connections: Any = self._connections  # type: ignore[attr-defined]
        connections._from_server_socket = functools.partial(self._accept, connections._from_server_socket)

    def _accept(self, one: Callable[[socket.socket], Any], listening: socket.socket) -> None:
        """Take all who wait to be connected: in the system's queue the first would keep the others waiting.

        cheroot takes one before it looks at all other connections again.
        """
        for _ in range(_AT_ONCE):
            made = one(listening)
            if made is None:
                break
            self.process_conn(made)

    @property
    def can_add_keepalive_connection(self) -> bool:
        return not self._leaving and bool(super().can_add_keepalive_connection)

    def stop(self) -> None:
        if not self.ready or self._leaving:
            return
        self._leaving = True
        time.sleep(self._linger)
        self._connections.stop()  # type: ignore[attr-defined]
        self._take_rest()
        super().stop()

    def _take_rest(self) -> None:
        """Whoever is connected, or has asked already, is answered; then the socket is closed here."""
        if self._last():
            shut_to_newcomers(self.socket)
            time.sleep(_HANDSHAKE)
        while True:
            try:
                made, address = self.socket.accept()
            except OSError:  # nobody waits
                break
            made.settimeout(self.timeout)
            connection = self.ConnectionClass(self, made)
            connection.remote_addr, connection.remote_port = address[:2]
            self.process_conn(connection)
        kept = self._connections._selector  # type: ignore[attr-defined]
        for number, connection in kept.select(timeout=0):
            if connection is not self:
                kept.unregister(number)
                self.process_conn(connection)
        self.socket.close()
        self.socket = None
        self._shared.close()

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        LOG.log(level, "%s", msg, exc_info=traceback)


class ApiService:
    """The API inside a process that has other things to do (nova-allinone, tests).

    ``port`` 0 takes a free one; ``url`` is where it answers once started.
    """

    def __init__(self, bus_transport: Any, address: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = listen(address, port)
        self._server = Server(self._socket, api_app.create_app(bus_transport), CONF.api.threads)
        self._thread = threading.Thread(target=self._server.serve, name="api", daemon=True)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Answer from now on."""
        self._server.prepare()
        self._thread.start()

    def stop(self) -> None:
        """Take no new requests, finish those in flight."""
        self._server.stop()
        self._thread.join(CONF.graceful_shutdown_timeout)
