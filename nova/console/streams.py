"""The two sides of a session: the browser's WebSocket and the host's TCP connection."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import struct
from collections.abc import Awaitable, Sequence

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from nova.common import plain_ip

_READ_SIZE = 64 * 1024  # maximum number of bytes per read
# TCP keepalive: seconds of silence before the first probe, seconds between probes, and unanswered probes until the
# system closes the connection.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
# Interval in seconds of heartbeats to a browser, which keep the connection open in proxies and firewalls on the way.
HEARTBEAT_INTERVAL = 20.0
READ_TIMEOUT = 60.0  # seconds that data may wait for a browser to read before the session ends
# Seconds in which a host may read the remaining data after its connection is closed, before the connection is reset.
LINGER = 5.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER value that makes the system reset the connection and discard unsent data

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


def keep_alive(connection: socket.socket) -> None:
    """Enable TCP keepalive, so that the system closes the connection a minute after its peer vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class ReadTimeout(EOFError):
    """The browser has not read pending data for READ_TIMEOUT seconds."""


class BrowserStream:
    """The browser's WebSocket as a stream of bytes, regardless of message boundaries. A vanished browser is detected by
    TCP keepalive and by data that it does not read. Pings are not used, since many simple clients send no pongs."""

    def __init__(self, websocket: Connection) -> None:
        self._websocket = websocket
        self._buffer = b""

    async def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes. Raises EOFError."""
        while len(self._buffer) < size:
            self._buffer += await self._receive()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    async def read_available(self) -> bytes:
        """Wait for data and return it, or b"" at the end of the stream."""
        data, self._buffer = self._buffer, b""
        with contextlib.suppress(EOFError):
            while not data:
                data = await self._receive()
        return data

    async def write(self, data: bytes) -> None:
        """Send data, waiting while the browser does not read. Raises EOFError, ReadTimeout."""
        await self._send(self._websocket.send(data))

    async def heartbeat(self) -> None:
        """Send an empty pong, which requires no response (RFC 6455 section 5.5.3), at intervals. Raises
        EOFError, ReadTimeout."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            await self._send(self._websocket.pong(b""))

    async def wait_closed(self) -> None:
        """Return when the connection is closed, even if nothing reads the data that the browser sent."""
        await self._websocket.wait_closed()

    async def _send(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                await sending
        except ConnectionClosed:
            raise EOFError from None
        except TimeoutError:
            raise ReadTimeout from None

    async def _receive(self) -> bytes:
        try:
            return await self._websocket.recv(decode=False)
        except ConnectionClosed:
            raise EOFError from None


class HostStream:
    """The TCP connection to a console on its host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, size: int) -> bytes:
        """Return exactly ``size`` bytes. Raises EOFError, OSError."""
        return await self._reader.readexactly(size)

    async def read_available(self) -> bytes:
        return await self._reader.read(_READ_SIZE)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Continue the connection in TLS. Unread plain-text bytes are discarded: a man in the middle could have sent
        them. Raises OSError."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = _TlsProtocol(reader, self._writer)
        try:
            transport = await loop.start_tls(self._writer.transport, protocol, context)
        except UnicodeDecodeError as error:  # for example a URL in the certificate
            raise ConnectionAbortedError(f"the certificate of the host is malformed: {error}") from error
        if transport is None:
            raise ConnectionResetError("the host has closed the connection")
        protocol.connection_made(transport)
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def close(self) -> None:
        """Close the connection. A stalled host gets a reset after LINGER seconds, to free the console."""
        self._writer.close()
        asyncio.get_running_loop().call_later(LINGER, _abort, self._writer)


class _TlsProtocol(asyncio.StreamReaderProtocol):
    """The protocol of the TLS connection. It refers to the writer of the plain connection, since a writer closes its
    connection when it is garbage-collected."""

    def __init__(self, reader: asyncio.StreamReader, plain_writer: asyncio.StreamWriter) -> None:
        super().__init__(reader)
        self._plain_writer = plain_writer


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the socket is usually closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def connect(host: str, port: int, networks: Networks) -> HostStream:
    """Connect to a console. Raises OSError, also if the host is outside all ``networks`` (empty: any network)."""
    addresses = [address for address in await _addresses(host, port) if not networks or any(
        plain_ip.address(address.partition("%")[0]) in network for network in networks)]
    if not addresses:
        raise OSError(f"{host} is not in [console]guest_networks")
    reader, writer = await asyncio.open_connection(addresses[0], port)
    keep_alive(writer.get_extra_info("socket"))
    return HostStream(reader, writer)


async def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host name or address. An address is returned without the resolver, whose few threads
    may all wait for names that do not resolve. Raises OSError."""
    try:
        return [str(plain_ip.address(host))]
    except ValueError:
        pass
    try:
        results = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an invalid name
        raise OSError(f"{host} is not a host name") from error
    return [str(item[4][0]) for item in results]
