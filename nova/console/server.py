"""The server of a proxy: web pages, and WebSocket connections that become sessions."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import math
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from nova import context, exception
from nova.conf import CONF
from nova.console import pages, rfb
from nova.console.door import Door, Listener
from nova.console.gate import Asked, Gate, Refused, check_origin
from nova.console.session import End, Session
from nova.console.streams import Browser, Host, Networks, connect
from nova.objects import plain_ip
from nova.objects.base import new_uuid
from nova.objects.console import PROTOCOLS, SERIAL, Console
from nova.rpcapi.consoles import Consoles
from nova.service.rates import Limiter, client_of
from nova.service.turns import Turns

LOG = logging.getLogger(__name__)

# Seconds in which TLS has to be agreed on, and then a request to come in and be answered; conductor and host are asked
# meanwhile.
_HANDSHAKE = 20.0
# Bytes of a message, and how many messages are taken before they can be passed on.
_MESSAGE, _MESSAGES = 1 << 20, 4
# Seconds in which a client has to read the rest of its data and the end of its connection.
_CLOSE = 5.0
# Bytes that a client leaves untaken; what is relayed to it never comes near that, since it waits.
_UNTAKEN = 1 << 20
# Threads that ask over the bus whether a client may come in; others, for pages and what the proxy asks for itself.
_THREADS, _OTHERS = 8, 4
_ADMIT = "admit"
# Seconds between two questions whether the servers of open consoles are still what they were, and consoles in each.
LOOK, _PAGE = 15.0, 500
# Seconds after which whoever found too many, or nobody who knows, may try again.
_AGAIN = 5
# The closing codes of WebSockets.
_POLICY, _RESTART = 1008, 1012

# What the library logs has URLs, and these have tokens.
_SILENT = logging.getLogger("nova.console.websockets")


class _Connection(ServerConnection):
    """A connection that is aborted when its client reads none of the answers to its pings."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > _UNTAKEN:
            self.transport.abort()


class ConsoleServer:
    """All of it on one event loop. ``directory`` has the web pages ("": none), ``rate`` counts what clients ask."""

    def __init__(self, gate: Gate, consoles: Consoles, directory: str,
                 schemes: Callable[[Host], dict[int, rfb.Scheme]], rate: Limiter | None = None) -> None:
        self._gate, self._consoles, self._directory, self._schemes = gate, consoles, directory, schemes
        # Clients take turns: those that wait for a host that does not answer hold up nobody else.
        self._asking = Turns({_ADMIT: _THREADS}, "console")
        self._threads = concurrent.futures.ThreadPoolExecutor(_OTHERS, "console-pages")
        self._networks: Networks = [plain_ip.network(name) for name in CONF.console.guest_networks]
        self._sessions: dict[str, Session] = {}
        self._per_server: collections.Counter[str] = collections.Counter()
        self._door = Door()
        self._rate = rate
        self._server: Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, secure: ssl.SSLContext | None) -> int:
        """Returns the port. Raises OSError."""
        _SILENT.disabled = True
        in_time: dict[str, Any] = {"ssl_handshake_timeout": _HANDSHAKE} if secure is not None else {}
        self._server = await serve(
            self._serve, sock=Listener(self._door, host, port), ssl=secure, process_request=self._answer,
            select_subprotocol=_subprotocol, compression=None, server_header=None, open_timeout=_HANDSHAKE,
            ping_interval=None, close_timeout=_CLOSE, max_size=_MESSAGE, max_queue=_MESSAGES,
            logger=_SILENT, create_connection=_Connection, **in_time)
        self._watch = asyncio.create_task(self._look_after())
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        """Close all; browsers hear that the proxy goes, and may connect again."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close(code=_RESTART, reason="The console proxy is restarted.")
            await self._server.wait_closed()
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- requests ----------------------------------------------------------------------------------
    async def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """None: it becomes a session."""
        client = client_of(connection.remote_address[0])
        if self._rate is not None and (wait := self._rate.take(client)):
            return _later(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests.", math.ceil(wait))
        try:
            if [value.lower() for value in request.headers.get_all("Upgrade")] != ["websocket"]:
                return await self._page(request.path)
            return await self._admit(connection, request)
        except Refused as error:
            LOG.info("A connection from %s was refused: %s", client, error)
            return _refusal(HTTPStatus.FORBIDDEN, str(error))
        except exception.ServiceUnavailable as error:
            LOG.warning("A connection from %s was refused: %s", client, error)
            return _later(HTTPStatus.SERVICE_UNAVAILABLE, "Try again later.")

    async def _page(self, path: str) -> Response:
        if not self._directory:
            return _response(*pages.missing())
        loop = asyncio.get_running_loop()
        return _response(*await loop.run_in_executor(self._threads, pages.read, self._directory, path))

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        asked = Asked(request.path, {name.lower(): value for name, value in request.headers.raw_items()})
        client = client_of(connection.remote_address[0])
        console = await asyncio.wrap_future(self._asking.submit(_ADMIT, client, self._gate.admit, asked.token))
        check_origin(asked, CONF.console.allowed_origins, console.access_url_base)
        if self._per_server[console.instance_uuid] >= CONF.console.connections_per_server:
            return _later(HTTPStatus.TOO_MANY_REQUESTS, "Too many consoles of this server are open.")
        connection.console = console  # type: ignore[attr-defined]
        self._door.shown(connection.remote_address)
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
            await _close(connection, end)
        finally:
            if alarm is not None:
                alarm.cancel()
            del self._sessions[session.of.ident]
            self._per_server[console.instance_uuid] -= 1
            if not self._per_server[console.instance_uuid]:
                del self._per_server[console.instance_uuid]

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


async def _close(connection: ServerConnection, end: End) -> None:
    """Close a connection with a code and a reason; abort it if its client does not read them in time."""
    try:
        async with asyncio.timeout(_CLOSE):
            await connection.close(end.code, end.reason)
    except TimeoutError:
        connection.transport.abort()


def _subprotocol(_connection: ServerConnection, offered: Any) -> Any:
    """Bytes as they are; who asks for nothing gets the same."""
    return "binary" if "binary" in offered else None


def _response(status: HTTPStatus, headers: dict[str, str], content: bytes, phrase: str = "") -> Response:
    made = Headers({**headers, "Content-Length": str(len(content)), "Connection": "close"})
    return Response(status.value, phrase or status.phrase, made, content)


def _refusal(status: HTTPStatus, text: str) -> Response:
    """Nothing comes after the headers: to clients that look no further that would be what the console says."""
    return _response(status, {}, b"", text)


def _later(status: HTTPStatus, text: str, seconds: int = _AGAIN) -> Response:
    made = _refusal(status, text)
    made.headers["Retry-After"] = str(seconds)
    return made
