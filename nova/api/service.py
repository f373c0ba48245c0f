"""The API server: section [api] sets its addresses, limits and TLS keys."""

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from nova import exception
from nova.api import app as api_app
from nova.api import errors
from nova.api.auth import check_listening
from nova.conf import CONF
from nova.http import server, tls
from nova.http.limits import Limits, among
from nova.http.messages import Wsgi

_BACKLOG = 1024
_RELEASE = 5.0  # seconds to wait until the workers of a killed process have closed their listening socket


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket. Call this before the workers fork, since they share it. If the address is in use, wait
    up to five seconds for the workers of a killed process to exit. Raises InvalidInput (noauth), OSError."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit this option. Without it, small responses would wait for an acknowledgement.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    until = time.monotonic() + _RELEASE
    while True:
        try:
            made.bind((address, port))
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                made.close()
                raise
            time.sleep(0.1)
    try:
        check_listening(made.getsockname()[0])
    except exception.InvalidInput:
        made.close()
        raise
    made.listen(_BACKLOG)
    return made


def serve(shared: socket.socket, application: Wsgi, threads: int, linger: float = 0.0,
          last: Callable[[], bool] = lambda: True) -> server.Server:
    """Return a server with the limits and TLS of [api]; call prepare() on it. Raises InvalidInput for bad TLS files."""
    limits = Limits(
        header_size=CONF.api.max_header_size, body_size=CONF.oslo_middleware.max_request_body_size,
        receive=CONF.api.receive_timeout, per_client=CONF.api.connections_per_client, total=CONF.api.max_connections,
        trusted=among(CONF.api.trusted_proxies))
    return server.Server(shared, application, threads, limits, errors.body, linger, last,
                         CONF.graceful_shutdown_timeout, tls.context("api"))


class ServerThread:
    """An HTTP server in a thread of a process with other services. ``shared``: its socket, bound to ``address``;
    ``name``: the name of its option group and its thread; ``url``: its URL."""

    def __init__(self, shared: socket.socket, http_server: server.Server, address: str, name: str) -> None:
        self._server = http_server
        self._thread = threading.Thread(target=self._server.serve, name=name, daemon=True)
        host = f"[{address}]" if ":" in address else address
        self.url = f"{'https' if CONF[name].tls_cert_file else 'http'}://{host}:{shared.getsockname()[1]}"

    def start(self) -> None:
        """Start to serve requests in the thread."""
        self._server.prepare()
        self._thread.start()

    def stop(self) -> None:
        """Refuse new requests and finish running ones."""
        self._server.stop()
        self._thread.join(CONF.graceful_shutdown_timeout)


class ApiService(ServerThread):
    """The API for nova-allinone and tests. ``port`` 0: a free port."""

    def __init__(self, bus_transport: Any, address: str = "127.0.0.1", port: int = 0) -> None:
        shared = listen(address, port)
        super().__init__(shared, serve(shared, api_app.create_app(bus_transport), CONF.api.threads), address, "api")
