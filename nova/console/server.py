"""The server of a proxy: web pages, and WebSocket connections that become sessions."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import functools
import ipaddress
import logging
import resource
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from nova import context, exception
from nova.conf import CONF
from nova.console import pages, rfb
from nova.console.gate import Asked, Gate, Refused, check_origin
from nova.console.session import Session
from nova.console.streams import Browser, Host, Networks, connect
from nova.objects.base import new_uuid
from nova.objects.console import PROTOCOLS, SERIAL, Console
from nova.rpcapi.consoles import Consoles

LOG = logging.getLogger(__name__)

# Seconds in which a request has to come in and be answered; conductor and host are asked meanwhile.
_HANDSHAKE = 20.0
# Connections of one client (an IPv4 address, an IPv6 /64) that have shown no token yet.
_HANDSHAKES = 64
# Seconds between two questions whether the browser is there, and until it counts as gone.
_PING, _PONG = 20.0, 20.0
# Bytes of a message, and how many messages are taken before they can be passed on.
_MESSAGE, _MESSAGES = 1 << 20, 4
# Threads that ask over the bus.
_THREADS = 8
# Seconds between two questions whether the servers of open consoles are still what they were, and consoles in each.
LOOK, _PAGE = 15.0, 500
# File descriptors that are not for connections.
_OTHER_FILES = 128
# The closing codes of WebSockets.
_POLICY, _RESTART = 1008, 1012

# What the library logs has URLs, and these have tokens.
_SILENT = logging.getLogger("nova.console.websockets")


class ConsoleServer:
    """All of it on one event loop. ``directory`` has the web pages ("": none)."""

    def __init__(self, gate: Gate, consoles: Consoles, directory: str,
                 schemes: Callable[[Host], dict[int, rfb.Scheme]]) -> None:
        self._gate, self._consoles, self._directory, self._schemes = gate, consoles, directory, schemes
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "console")
        self._networks: Networks = [ipaddress.ip_network(name) for name in CONF.console.guest_networks]
        self._sessions: dict[str, Session] = {}
        self._per_server: collections.Counter[str] = collections.Counter()
        self._door = _Door()
        self._server: Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, secure: ssl.SSLContext | None) -> int:
        """Returns the port. Raises OSError."""
        _SILENT.disabled = True
        self._server = await serve(
            self._serve, host, port, ssl=secure, process_request=self._answer, select_subprotocol=_subprotocol,
            create_connection=self._connection, compression=None, server_header=None, open_timeout=_HANDSHAKE,
            ping_interval=_PING, ping_timeout=_PONG, close_timeout=5, max_size=_MESSAGE, max_queue=_MESSAGES,
            logger=_SILENT)
        self._watch = asyncio.create_task(self._look_after())
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        """Close all; browsers hear that the proxy goes, and may connect again."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close(code=_RESTART, reason="The console proxy is restarted.")
            await self._server.wait_closed()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- requests ----------------------------------------------------------------------------------
    async def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """None: it becomes a session."""
        client = _client(connection)
        try:
            if request.headers.get("Upgrade", "").lower() != "websocket":
                return await self._page(request.path)
            return await self._admit(connection, request)
        except Refused as error:
            LOG.info("A connection from %s was refused: %s", client, error)
            return _refusal(HTTPStatus.FORBIDDEN, str(error))
        except exception.ServiceUnavailable as error:
            LOG.warning("A connection from %s was refused: %s", client, error)
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Try again later.")

    async def _page(self, path: str) -> Response:
        if not self._directory:
            return _response(*pages.missing())
        loop = asyncio.get_running_loop()
        return _response(*await loop.run_in_executor(self._threads, pages.read, self._directory, path))

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        asked = Asked(request.path, {name.lower(): value for name, value in request.headers.raw_items()})
        console = await asyncio.get_running_loop().run_in_executor(self._threads, self._gate.admit, asked.token)
        check_origin(asked, CONF.console.allowed_origins, console.access_url_base)
        if self._per_server[console.instance_uuid] >= CONF.console.connections_per_server:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Too many consoles of this server are open.")
        connection.console = console  # type: ignore[attr-defined]
        self._door.leave(connection)
        return None

    # --- sessions ----------------------------------------------------------------------------------
    async def _serve(self, connection: ServerConnection) -> None:
        console: Console = connection.console  # type: ignore[attr-defined]
        session = Session(new_uuid(), console, PROTOCOLS[console.console_type])
        if PROTOCOLS[console.console_type] == SERIAL:
            self._take_over(console)
        self._sessions[session.of.ident] = session
        self._per_server[console.instance_uuid] += 1
        loop, alarm = asyncio.get_running_loop(), None
        if CONF.consoleauth.enforce_session_timeout:
            alarm = loop.call_later(max(0.0, console.seconds), session.end, _POLICY, "The time of its token is over.")
        try:
            end = await session.run(Browser(connection), self._connect, self._schemes)
            await connection.close(end.code, end.reason)
        finally:
            if alarm is not None:
                alarm.cancel()
            del self._sessions[session.of.ident]
            self._per_server[console.instance_uuid] -= 1
            if not self._per_server[console.instance_uuid]:
                del self._per_server[console.instance_uuid]

    @property
    def _connection(self) -> type[ServerConnection]:
        return cast(type[ServerConnection], functools.partial(_Connection, self._door))

    def _take_over(self, console: Console) -> None:
        """A serial port has one client: whoever comes last has it, since the one before may be gone unnoticed."""
        for session in self._sessions.values():
            if session.console.address == console.address:
                session.end(_POLICY, "The console was opened elsewhere.")

    async def _connect(self, console: Console) -> Host:
        return await connect(console.address.host, console.address.port, self._networks)

    async def _look_after(self) -> None:
        """End the sessions whose servers were stopped or moved, also where the host cannot say so any more."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK)
            known = [session.of for session in self._sessions.values()]
            for start in range(0, len(known), _PAGE):
                page = known[start:start + _PAGE]
                try:
                    over = await loop.run_in_executor(self._threads, self._consoles.over, context.admin(), page)
                except exception.NovaException as error:
                    LOG.warning("Whether open consoles have to end is not known: %s", error)
                    break
                for ident in over:
                    if ident in self._sessions:
                        self._sessions[ident].end(_POLICY, "The server was stopped, moved or deleted.")

class _Door:
    """The connections that have shown no token yet, by client."""

    def __init__(self) -> None:
        self._waiting: dict[ServerConnection, str] = {}
        self._clients: collections.Counter[str] = collections.Counter()

    def enter(self, connection: ServerConnection) -> bool:
        """Whether this one more may wait."""
        client = _client(connection)
        if self._clients[client] >= _HANDSHAKES:
            return False
        self._clients[client] += 1
        self._waiting[connection] = client
        return True

    def leave(self, connection: ServerConnection) -> None:
        """It is let in, or gone. Does nothing the second time."""
        client = self._waiting.pop(connection, None)
        if client is not None:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


class _Connection(ServerConnection):
    """A connection that is closed at once if there are too many."""

    def __init__(self, door: _Door, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self.server.handler_tasks) > most_connections() or not self._door.enter(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)


def most_connections() -> int:
    """[console]max_connections, as far as this process may open files: a session has two."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(int(CONF.console.max_connections), max(1, (files - _OTHER_FILES) // 2))


def _subprotocol(_connection: ServerConnection, offered: Any) -> Any:
    """Bytes as they are; who asks for nothing gets the same."""
    return "binary" if "binary" in offered else None


def _client(connection: ServerConnection) -> str:
    peer = connection.remote_address
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0]) if peer else ipaddress.ip_address("0.0.0.0")
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _response(status: HTTPStatus, headers: dict[str, str], content: bytes, phrase: str = "") -> Response:
    made = Headers({**headers, "Content-Length": str(len(content)), "Connection": "close"})
    return Response(status.value, phrase or status.phrase, made, content)


def _refusal(status: HTTPStatus, text: str) -> Response:
    """Nothing comes after the headers: to clients that look no further that would be what the console says."""
    return _response(status, {}, b"", text)
