"""Serving the API: a threaded HTTP server on a socket that may be shared by several processes."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

from cheroot import wsgi

from nova.api import app as api_app
from nova.api.auth import App
from nova.conf import CONF

LOG = logging.getLogger(__name__)

# Bodies above [oslo_middleware]max_request_body_size get the API's own 413; above this the
# server does not even read them.
_MOST_BODY = 64 * 1024 * 1024
_BACKLOG = 1024


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


class Server(wsgi.Server):
    """cheroot's server on a socket that exists already.

    stop() answers for ``linger`` seconds as before, but ends every connection with the answer; then it takes no more
    connections, and requests in flight have graceful_shutdown_timeout.
    """

    def __init__(self, shared: socket.socket, application: App, threads: int, linger: float = 0.0) -> None:
        super().__init__(shared.getsockname()[:2], application, numthreads=threads, request_queue_size=_BACKLOG,
                         timeout=60, shutdown_timeout=CONF.graceful_shutdown_timeout, server_name="nova")
        self._shared = shared
        self._linger = linger
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
        """Whoever is connected already is answered; then the socket is closed here."""
        while True:
            try:
                made, address = self.socket.accept()
            except OSError:  # nobody waits
                break
            made.settimeout(self.timeout)
            connection = self.ConnectionClass(self, made)
            connection.remote_addr, connection.remote_port = address[:2]
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
