"""The two sides of a session: the browser's WebSocket and the host's TCP connection."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import struct
from collections.abc import Awaitable, Sequence

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from nova.objects import plain_ip

# Bytes that are read at once.
_PART = 64 * 1024
# TCP keepalive: seconds of silence before the first probe, seconds between probes, and unanswered probes until the
# system closes the connection.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
# Seconds between two heartbeats to a browser, which keep the connection open in proxies and firewalls on the way.
HEARTBEAT = 20.0
# Seconds that data may wait for a browser to read, until the session ends.
UNREAD = 60.0
# Seconds in which a host takes what is left for it when its connection is closed.
LEFT = 5.0
# Closed so, the system keeps nothing of it (SO_LINGER).
_AT_ONCE = struct.pack("ii", 1, 0)

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


def keep_alive(connection: socket.socket) -> None:
    """Have the system close the connection a minute after its peer has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Unread(EOFError):
    """The browser has read nothing for UNREAD seconds although data waited for it."""


class Browser:
    """The browser's side: a stream of bytes, however the browser cuts them into messages.

    A browser that is gone is recognized by TCP keepalive and by data that it does not read. It is never asked to
    answer: many simple clients read what a console writes but send no pongs.
    """

    def __init__(self, websocket: Connection) -> None:
        self._websocket = websocket
        self._left = b""

    async def read(self, size: int) -> bytes:
        """Exactly so many. Raises EOFError."""
        while len(self._left) < size:
            part = await self._receive()
            if part is None:
                raise EOFError
            self._left += part
        found, self._left = self._left[:size], self._left[size:]
        return found

    async def some(self) -> bytes:
        """What has come; b"": it is the end."""
        found, self._left = self._left, b""
        while not found:
            part = await self._receive()
            if part is None:
                return b""
            found = part
        return found

    async def write(self, data: bytes) -> None:
        """Send data, waiting while the browser does not read. Raises EOFError, Unread."""
        await self._in_time(self._websocket.send(data))

    async def heartbeat(self) -> None:
        """Send an empty pong, which needs no answer (RFC 6455 section 5.5.3), now and then. Raises EOFError, Unread."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            await self._in_time(self._websocket.pong(b""))

    async def gone(self) -> None:
        """Return when the connection is closed, also while nothing reads what the browser sent."""
        await self._websocket.wait_closed()

    async def _in_time(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(UNREAD):
                await sending
        except ConnectionClosed:
            raise EOFError from None
        except TimeoutError:
            raise Unread from None

    async def _receive(self) -> bytes | None:
        try:
            return await self._websocket.recv(decode=False)
        except ConnectionClosed:
            return None


class Host:
    """The console's own connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, size: int) -> bytes:
        """Exactly so many. Raises EOFError, OSError."""
        return await self._reader.readexactly(size)

    async def some(self) -> bytes:
        return await self._reader.read(_PART)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Raises OSError.

        What came before in the clear, from whoever is between, is not read any more: it would pass for the host's.
        """
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = _Secured(reader, self._writer)
        transport = await loop.start_tls(self._writer.transport, protocol, context)
        if transport is None:
            raise ConnectionResetError("the host has closed the connection")
        protocol.connection_made(transport)
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def close(self) -> None:
        """A host that takes nothing does not keep the connection, nor whoever comes next from the console."""
        self._writer.close()
        asyncio.get_running_loop().call_later(LEFT, _abort, self._writer)


class _Secured(asyncio.StreamReaderProtocol):
    """What came by TLS. Keeps the writer from before: one that is forgotten closes its connection."""

    def __init__(self, reader: asyncio.StreamReader, before: asyncio.StreamWriter) -> None:
        super().__init__(reader)
        self._before = before


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # it is closed, most of the time
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()


async def connect(host: str, port: int, networks: Networks) -> Host:
    """Raises OSError, also for a host that is in none of the ``networks`` (none given: anywhere)."""
    addresses = [address for address in await _addresses(host, port) if not networks or _is_in(address, networks)]
    if not addresses:
        raise OSError(f"{host} is in none of [console]guest_networks")
    reader, writer = await asyncio.open_connection(addresses[0], port)
    keep_alive(writer.get_extra_info("socket"))
    return Host(reader, writer)


async def _addresses(host: str, port: int) -> list[str]:
    """Raises OSError. An address waits for none of the few threads that ask for names: a host may say names of which
    nobody answers."""
    try:
        return [str(plain_ip.address(host))]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that no name can be
        raise OSError(f"{host} is no name of a host") from error
    return [str(item[4][0]) for item in found]


def _is_in(address: str, networks: Networks) -> bool:
    known = plain_ip.address(address.partition("%")[0])
    return any(known in network for network in networks)
