"""An open console: a relay of bytes until either side or the proxy closes the connection."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nova.console import rfb
from nova.console.streams import BrowserStream, HostStream, ReadTimeout
from nova.objects.servers.console import VNC, Console, ConsoleSession

LOG = logging.getLogger(__name__)

# Timeouts in seconds: for the connection to the console, and for the RFB handshake.
CONNECT_TIMEOUT, HANDSHAKE_TIMEOUT = 8.0, 15.0

Connect = Callable[[Console], Awaitable[HostStream]]


@dataclasses.dataclass(frozen=True)
class End:
    """The WebSocket close code of a connection and the reason, which is sent to the user."""

    code: int
    reason: str


ENDED = End(1000, "The console has ended.")
CLIENT_STALLED = End(1008, "The client does not read the output of the console.")
UNREACHABLE = End(1011, "The console cannot be reached.")


class Session:
    """A console that is open for a browser. ``protocol``: the protocol of the console on its host."""

    def __init__(self, ident: str, console: Console, protocol: str) -> None:
        self.console = console
        self.record = ConsoleSession(ident=ident, instance_uuid=console.instance_uuid, since=console.since)
        self._protocol = protocol
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def end(self, code: int, reason: str) -> None:
        """Make run() return this code and reason soon. Only the first call counts."""
        if not self._end.done():
            self._end.set_result(End(code, reason))

    async def run(self, browser: BrowserStream, connect: Connect,
                  schemes: Callable[[HostStream], dict[int, rfb.Scheme]]) -> End:
        """Relay until the session ends; return the close code and reason for the browser."""
        console, started = self.console, time.monotonic()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                host = await connect(console)
        except OSError as error:  # includes TimeoutError
            LOG.warning("[instance: %s] Cannot connect to the console at %s:%d, closing the session: %s",
                        console.instance_uuid, console.address.host, console.address.port, error or "timeout")
            return UNREACHABLE
        try:
            if self._protocol == VNC:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                    await rfb.negotiate(browser, host, schemes(host))
            LOG.info("[instance: %s] Console %s opened for user %s", console.instance_uuid, console.console_type,
                     console.user_id)
            end = await self._relay(browser, host)
            LOG.info("[instance: %s] Console %s closed after %.0f s: %s", console.instance_uuid,
                     console.console_type, time.monotonic() - started, end.reason)
            return end
        except (rfb.HandshakeFailed, EOFError, OSError) as error:
            LOG.warning("[instance: %s] Cannot open console %s, closing the session: %s", console.instance_uuid,
                        console.console_type, error or "connection closed or handshake timeout")
            return UNREACHABLE
        finally:
            host.close()

    async def _relay(self, browser: BrowserStream, host: HostStream) -> End:
        # A copying task that waits for the host to read does not notice that the browser closed the connection:
        # wait_closed does.
        tasks = [asyncio.create_task(coroutine) for coroutine in (
            _copy(browser, host), _copy(host, browser), browser.wait_closed(), browser.heartbeat())]
        try:
            waited: list[asyncio.Future[Any]] = [*tasks, self._end]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        if self._end.done():
            return self._end.result()
        return CLIENT_STALLED if any(isinstance(result, ReadTimeout) for result in results) else ENDED


async def _copy(source: BrowserStream | HostStream, sink: BrowserStream | HostStream) -> None:
    """Copy until the source ends, waiting while the sink does not read. Raises ReadTimeout, EOFError, OSError."""
    while data := await source.read_available():
        await sink.write(data)
