"""HTTP servers with limits, so that clients that send slow, large or malformed requests do not disturb the process."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from nova.common.errors import Invalid, os_error_text

_CONNECTIONS = 32  # open connections of a server; further ones are closed, to keep file descriptors for the API server
_LIFETIME = 60.0  # longest time of a connection with its handshake and its request, in seconds; then it is closed
_PAUSE = 0.2  # seconds for which a closed connection still counts in _CONNECTIONS, to limit the rate of requests

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def split_address(address: str, option: str) -> tuple[str | None, int]:
    """Return the host (None: all addresses) and the port in the value of an option. Raises Invalid."""
    try:
        parts = urlsplit(f"//{address}")
        if parts.port and parts.netloc == address:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise Invalid(f"{option}: {address!r:.80} is not HOST:PORT.")


class _Connection(asyncio.Protocol):
    """Passes the events of a connection to the protocol of aiohttp, and ends it after its lifetime."""

    def __init__(self, inner: asyncio.Protocol, connections: set["_Connection"]) -> None:
        self.inner, self.connections = inner, connections
        self.transport: asyncio.BaseTransport | None = None
        self.refused = len(connections) >= _CONNECTIONS
        if not self.refused:
            connections.add(self)
            self.timer = asyncio.get_running_loop().call_later(_LIFETIME, self._expire)
        self.data_received, self.eof_received = inner.data_received, inner.eof_received  # type: ignore[method-assign]
        self.pause_writing, self.resume_writing = inner.pause_writing, inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.refused:
            self._expire()
        else:
            self.inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.refused:
            self.timer.cancel()
            asyncio.get_running_loop().call_later(_PAUSE, self.connections.discard, self)
            self.inner.connection_lost(error)

    def _expire(self) -> None:
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
        else:  # nothing to abort: the TLS handshake has failed or will time out
            self.connections.discard(self)


@contextlib.asynccontextmanager
async def serve(address: str, option: str, routes: list[web.RouteDef], tls: ssl.SSLContext | None = None,
                body: int = 1 << 16) -> AsyncIterator[None]:
    """Serve ``routes`` at host:port, one request per connection. ``body``: largest request, in bytes. Raises Invalid,
    which names the ``option``, if the address cannot be used."""
    host, port = split_address(address, option)
    application = web.Application(client_max_size=body, middlewares=[_close])
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    connections: set[_Connection] = set()
    try:
        try:
            assert runner.server
            create = runner.server
            server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(create(), connections), host, port, ssl=tls,
                ssl_handshake_timeout=10.0 if tls else None)
        except OSError as error:
            raise Invalid(f"{option}: cannot listen on {address}: {os_error_text(error)}.") from None
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


@web.middleware
async def _close(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = web.Response(status=error.status, text=error.text)
    response.force_close()
    return response
