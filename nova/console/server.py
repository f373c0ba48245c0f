"""The HTTP and WebSocket server of a console proxy."""

import asyncio
import collections
import concurrent.futures
import logging
import math
import re
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from nova import context, exception
from nova.common import plain_ip
from nova.conf import CONF
from nova.console import pages, rfb
from nova.console.authorization import ConnectionDenied, ConnectionRequest, TokenAuthorizer, check_origin
from nova.console.connection_limiter import ConnectionLimiter, Listener
from nova.console.session import End, Session
from nova.console.streams import BrowserStream, HostStream, Networks, connect
from nova.objects.base import new_uuid
from nova.objects.servers.console import PROTOCOLS, SERIAL, Console
from nova.rpcapi.servers import Consoles
from nova.service.fair_pool import FairThreadPool
from nova.service.rates import Limiter, client_of

LOG = logging.getLogger(__name__)

# Timeout in seconds of the TLS handshake, and of the WebSocket handshake including authorization.
_HANDSHAKE_TIMEOUT = 20.0
# Maximum size of a message in bytes, and maximum number of messages in the receive queue.
_MAX_MESSAGE, _MAX_QUEUE = 1 << 20, 4
_CLOSE_TIMEOUT = 5.0  # seconds in which a client must read the remaining data and the close frame
# Maximum number of unsent bytes per client; above it the connection is aborted. Relayed data never reach the limit,
# since the relay waits until the client reads.
_MAX_UNSENT = 1 << 20
# Number of threads for authorization, and for web pages and periodic checks.
_AUTHORIZATION_THREADS, _OTHER_THREADS = 8, 4
_AUTHORIZE = "authorize"
# Interval in seconds of the check whether open consoles have to end, and number of consoles per RPC call.
CHECK_INTERVAL, _PAGE = 15.0, 500
_RETRY_AFTER = 5  # Retry-After in seconds if there are too many consoles, or if a service is unavailable
# The beginning of a request target in the form for proxies (RFC 9112 section 3.2.2).
_ABSOLUTE = re.compile(r"\Ahttps?://[^/?]+", re.IGNORECASE)
_POLICY, _RESTART = 1008, 1012  # WebSocket close codes: policy violation, service restart

# The log lines of the library have URLs with tokens, so its logger is disabled.
_DISABLED_LOGGER = logging.getLogger("nova.console.websockets")


class _Connection(ServerConnection):
    """A connection that is aborted when its client does not read the responses to its pings."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > _MAX_UNSENT:
            self.transport.abort()


class ConsoleServer:
    """A console proxy on one event loop. ``directory``: the directory of the web pages, or ""; ``rate``: the rate limit
    of requests per client."""

    def __init__(self, authorizer: TokenAuthorizer, consoles: Consoles, directory: str,
                 schemes: Callable[[HostStream], dict[int, rfb.Scheme]], rate: Limiter | None = None) -> None:
        self._authorizer, self._consoles, self._directory, self._schemes = authorizer, consoles, directory, schemes
        # Fair per client: requests that wait for a host that does not respond do not block other clients.
        self._authorizations = FairThreadPool({_AUTHORIZE: _AUTHORIZATION_THREADS}, "console")
        self._threads = concurrent.futures.ThreadPoolExecutor(_OTHER_THREADS, "console-pages")
        self._networks: Networks = [plain_ip.network(name) for name in CONF.console.guest_networks]
        self._sessions: dict[str, Session] = {}
        self._per_server: collections.Counter[str] = collections.Counter()
        self._limiter = ConnectionLimiter()
        self._rate = rate
        self._server: Server | None = None
        self._check_task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, secure: ssl.SSLContext | None) -> int:
        """Listen and return the port. Raises OSError if the address is not available."""
        _DISABLED_LOGGER.disabled = True
        tls_options: dict[str, Any] = {"ssl_handshake_timeout": _HANDSHAKE_TIMEOUT} if secure is not None else {}
        self._server = await serve(
            self._serve, sock=Listener(self._limiter, host, port), ssl=secure, process_request=self._process_request,
            select_subprotocol=_subprotocol, compression=None, server_header=None, open_timeout=_HANDSHAKE_TIMEOUT,
            ping_interval=None, close_timeout=_CLOSE_TIMEOUT, max_size=_MAX_MESSAGE, max_queue=_MAX_QUEUE,
            logger=_DISABLED_LOGGER, create_connection=_Connection, **tls_options)
        self._check_task = asyncio.create_task(self._check_sessions())
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        """Close all connections with the code for a service restart, after which browsers may reconnect."""
        if self._check_task is not None:
            self._check_task.cancel()
        if self._server is not None:
            self._server.close(code=_RESTART, reason="The console proxy is restarted.")
            await self._server.wait_closed()
        self._authorizations.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- requests ----------------------------------------------------------------------------------
    async def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the response, or None to accept the WebSocket connection."""
        client = client_of(connection.remote_address[0])
        if self._rate is not None and (wait := self._rate.take(client)):
            return _retry_later(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests.", math.ceil(wait))
        try:
            if [value.lower() for value in request.headers.get_all("Upgrade")] != ["websocket"]:
                return await self._page(request)
            return await self._authorize(connection, request)
        except ConnectionDenied as error:
            LOG.info("Denied a console connection from %s: %s", client, error)
            return _error(HTTPStatus.FORBIDDEN, str(error))
        except exception.ServiceUnavailable as error:
            LOG.warning("Cannot authorize a console connection from %s, the client may retry: %s", client, error)
            return _retry_later(HTTPStatus.SERVICE_UNAVAILABLE, "Try again later.")

    async def _page(self, request: Request) -> Response:
        """Return the response to a health check of a load balancer, or a web page."""
        path = _ABSOLUTE.sub("", request.path)
        if request.method == "OPTIONS":
            response = _response(HTTPStatus.OK, {"Allow": "GET, HEAD, OPTIONS"}, b"")
        elif path.partition("?")[0] == "/healthcheck":
            response = _response(HTTPStatus.OK, {"Content-Type": "text/plain; charset=utf-8"}, b"OK")
        elif self._directory:
            loop = asyncio.get_running_loop()
            response = _response(*await loop.run_in_executor(self._threads, pages.read, self._directory, path))
        else:
            response = _response(*pages.missing())
        if request.method == "HEAD":
            response.body = b""
        return response

    async def _authorize(self, connection: ServerConnection, request: Request) -> Response | None:
        head = ConnectionRequest(request.path, {name.lower(): value for name, value in request.headers.raw_items()})
        client = client_of(connection.remote_address[0])
        console = await asyncio.wrap_future(
            self._authorizations.submit(_AUTHORIZE, client, self._authorizer.authorize, head.token))
        check_origin(head, CONF.console.allowed_origins, console.access_url_base)
        if self._per_server[console.instance_uuid] >= CONF.console.connections_per_server:
            return _retry_later(HTTPStatus.TOO_MANY_REQUESTS, "Too many consoles of this server are open.")
        connection.console = console  # type: ignore[attr-defined]
        self._limiter.authorized(connection.remote_address)
        return None

    # --- sessions ----------------------------------------------------------------------------------
    async def _serve(self, connection: ServerConnection) -> None:
        console: Console = connection.console  # type: ignore[attr-defined]
        session = Session(new_uuid(), console, PROTOCOLS[console.console_type])
        if PROTOCOLS[console.console_type] == SERIAL:
            # A serial port has one client. The previous one may have vanished unnoticed, so the new one replaces it.
            for other in self._sessions.values():
                if other.console.address == console.address:
                    other.end(_POLICY, "The console was opened elsewhere.")
        self._sessions[session.record.ident] = session
        self._per_server[console.instance_uuid] += 1
        loop, timer = asyncio.get_running_loop(), None
        if CONF.consoleauth.enforce_session_timeout:
            timer = loop.call_later(max(0.0, console.seconds), session.end, _POLICY, "The token has expired.")
        try:
            end = await session.run(BrowserStream(connection), self._connect, self._schemes)
            await _close(connection, end)
        finally:
            if timer is not None:
                timer.cancel()
            del self._sessions[session.record.ident]
            self._per_server[console.instance_uuid] -= 1
            if not self._per_server[console.instance_uuid]:
                del self._per_server[console.instance_uuid]

    async def _connect(self, console: Console) -> HostStream:
        return await connect(console.address.host, console.address.port, self._networks)

    async def _check_sessions(self) -> None:
        """End the sessions of servers that were stopped, moved or deleted, even if their host is down."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            records = [session.record for session in self._sessions.values()]
            for start in range(0, len(records), _PAGE):
                page = records[start:start + _PAGE]
                try:
                    ended = await loop.run_in_executor(self._threads, self._consoles.over, context.admin(), page)
                except exception.NovaException as error:
                    LOG.warning("Cannot check whether open consoles have to end, retrying in %.0f s: %s",
                                CHECK_INTERVAL, error)
                    break
                for ident in ended:
                    if ident in self._sessions:
                        self._sessions[ident].end(_POLICY, "The server was stopped, moved or deleted.")


async def _close(connection: ServerConnection, end: End) -> None:
    """Close a connection with a code and a reason; abort it if the client does not read them within 5 s."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await connection.close(end.code, end.reason)
    except TimeoutError:
        connection.transport.abort()


def _subprotocol(_connection: ServerConnection, offered: Any) -> Any:
    """Return the subprotocol "binary" if the client offers it, or None, which means the same."""
    return "binary" if "binary" in offered else None


def _response(status: HTTPStatus, headers: dict[str, str], content: bytes, phrase: str = "") -> Response:
    all_headers = Headers({**headers, "Content-Length": str(len(content)), "Connection": "close"})
    return Response(status.value, phrase or status.phrase, all_headers, content)


def _error(status: HTTPStatus, text: str) -> Response:
    """Return an error response without a body, which some clients would take for output of the console."""
    return _response(status, {}, b"", text)


def _retry_later(status: HTTPStatus, text: str, seconds: int = _RETRY_AFTER) -> Response:
    response = _error(status, text)
    response.headers["Retry-After"] = str(seconds)
    return response
