"""A small HTTP/1.1 server for many listening sockets with one pool of threads.

One asyncio thread does all input and output, so slow, silent or many guests occupy no thread; only complete requests
reach the application. One request per connection."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import io
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from nova.http import messages
from nova.http.exchange import Exchange
from nova.http.messages import Wsgi
from nova.service.fair_pool import FairThreadPool

LOG = logging.getLogger(__name__)

K = TypeVar("K")

# Maximum size in bytes of the header and of the body of a request.
HEAD_LIMIT = 16 * 1024
BODY_LIMIT = 16 * 1024
# Maximum duration of a connection in seconds; then it is closed.
DEADLINE = 20
# Timeouts in seconds of the TLS handshake and of the TLS shutdown.
HANDSHAKE = 5.0
# Maximum number of connections: of one guest, of the guests of a tenant, in total.
PER_PEER = 8
PER_TENANT = 250
TOTAL = 1000

_KIND = "metadata"


class Server:
    """A server to which any thread can add listening sockets, and from which it can remove them, at any time.
    ``tenant_of``: returns the tenant of a connection by network id and address. Tenants share the threads fairly, and
    each has a limit of connections. Above a limit the guest or tenant with the most connections loses its oldest
    connection without a request."""

    def __init__(self, application: Wsgi, threads: int,
                 tenant_of: Callable[[str, str], str] = lambda network, address: network) -> None:
        self.application, self.tenant_of = application, tenant_of
        self.pool = FairThreadPool({_KIND: threads}, name="metadata")
        self.loop = asyncio.new_event_loop()
        # The open connections, oldest first.
        self.connections: dict[Connection, None] = {}
        self.peers: collections.Counter[tuple[str, str]] = collections.Counter()
        self.tenants: collections.Counter[str] = collections.Counter()
        self._listeners: dict[object, asyncio.Server] = {}
        self._thread = threading.Thread(target=self._run, name="metadata-io", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5) -> None:
        """Refuse new requests and finish those that have begun, for at most ``timeout`` seconds."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._drain(timeout), self.loop).result(timeout + 5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.pool.shutdown(wait=False, cancel_futures=True)

    def add(self, key: object, sock: socket.socket, extra: dict[str, str] | None = None, trusted: bool = False,
            secure: ssl.SSLContext | None = None) -> None:
        """Serve a listening socket; ``extra`` is merged into the WSGI environment of its requests. ``trusted`` peers
        (proxies) may have any number of connections. ``secure``: the TLS context, if TLS is used."""
        asyncio.run_coroutine_threadsafe(self._add(key, sock, extra or {}, trusted, secure), self.loop).result(10)

    def remove(self, key: object) -> None:
        """Close a listening socket. Requests that have begun are finished."""
        self.loop.call_soon_threadsafe(self._remove, key)

    # --- in the loop's thread ---------------------------------------------------------------------
    def make_room(self, newcomer: Connection, within_tenant: bool) -> bool:
        """Close an idle connection of the guest or tenant with the most connections. Return False if there is none, or
        if the tenant of ``newcomer`` has the most."""
        idle = [connection for connection in self.connections if connection.idle and connection is not newcomer
                and (connection.tenant == newcomer.tenant or not within_tenant)]
        victim = max(idle, default=None, key=lambda connection: (
            self.tenants[connection.tenant], self.peers[connection.peer]))
        if victim is None or (not newcomer.trusted and self.tenants[victim.tenant] < self.tenants[newcomer.tenant]):
            return False
        victim.abort()
        return True

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    async def _add(self, key: object, sock: socket.socket, extra: dict[str, str], trusted: bool,
                   secure: ssl.SSLContext | None) -> None:
        self._remove(key)
        limit = HANDSHAKE if secure else None
        self._listeners[key] = await self.loop.create_server(
            lambda: Connection(self, extra, trusted), sock=sock, ssl=secure, ssl_handshake_timeout=limit,
            ssl_shutdown_timeout=limit)

    def _remove(self, key: object) -> None:
        listener = self._listeners.pop(key, None)
        if listener is not None:
            listener.close()

    async def _drain(self, timeout: float) -> None:
        for key in list(self._listeners):
            self._remove(key)
        deadline = self.loop.time() + timeout
        while any(connection.busy for connection in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.05)
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """A connection: it collects a request, passes it to a thread, writes the response and closes."""

    def __init__(self, server: Server, extra: dict[str, str], trusted: bool) -> None:
        self._server, self._extra, self.trusted = server, extra, trusted
        self._data = bytearray()
        self._exchange = Exchange(HEAD_LIMIT, BODY_LIMIT, lenient=not trusted)
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self.peer = (self._extra.get("nova.network_id", ""), transport.get_extra_info("peername")[0])
        server = self._server
        self.tenant = "" if self.trusted else server.tenant_of(*self.peer)
        server.connections[self] = None
        server.peers[self.peer] += 1
        server.tenants[self.tenant] += 1
        self._timer = server.loop.call_later(DEADLINE, self.abort)
        if not self._admitted():
            LOG.warning("Closed a connection from %s: too many connections are open", self.peer[1])
            self.abort()

    def _admitted(self) -> bool:
        server = self._server
        if not self.trusted:
            if server.peers[self.peer] > PER_PEER:
                return False
            if server.tenants[self.tenant] > PER_TENANT:
                return server.make_room(self, within_tenant=True)
        return len(server.connections) <= TOTAL or server.make_room(self, within_tenant=False)

    @property
    def idle(self) -> bool:
        """Return True if no request is running and the connection may be closed (always False for proxies)."""
        return not (self.busy or self.trusted or self._transport.is_closing())

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._server.connections.pop(self, None)
        _decrement(self._server.peers, self.peer)
        _decrement(self._server.tenants, self.tenant)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.busy:
            return
        self._data += data
        try:
            if self._exchange.collect(self._data):
                self._dispatch()
            elif invitation := self._exchange.invitation():
                self._transport.write(invitation)
        except messages.Refused as error:
            self.busy = True
            status = f"{error.status} {messages.PHRASES[error.status]}"
            self._write(status, [("Content-Type", "text/plain")], status.encode())

    def _dispatch(self) -> None:
        self.busy = True
        if self._exchange.too_long:
            raise messages.Refused(413, "The body is too long.")
        body = bytes(self._exchange.body)
        environ = {**(self._exchange.environ or {}), **self._extra, "REMOTE_ADDR": self.peer[1], "wsgi.version": (1, 0),
                   "wsgi.url_scheme": self._scheme, "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr,
                   "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
                   "SERVER_NAME": "metadata", "SERVER_PORT": "80", "SCRIPT_NAME": ""}
        future = self._server.pool.submit(_KIND, self.tenant, messages.call, self._server.application, environ)
        asyncio.wrap_future(future, loop=self._server.loop).add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[tuple[str, list[tuple[str, str]], bytes]]) -> None:
        if future.cancelled():
            self.abort()
        elif future.exception() is not None:
            LOG.error("Unexpected error in the metadata application, the request fails", exc_info=future.exception())
            self._write("500 Internal Server Error", [], b"")
        else:
            self._write(*future.result())

    def _write(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._exchange.answer(status, headers, body, keep=False))
        self._transport.close()


def _decrement(counter: collections.Counter[K], key: K) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
