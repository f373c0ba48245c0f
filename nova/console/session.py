"""One open console: bytes to and fro, until a side ends, or the proxy ends it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nova.console import rfb
from nova.console.streams import Browser, Host, Unread
from nova.objects.console import VNC, Console, ConsoleSession

LOG = logging.getLogger(__name__)

# Seconds in which the console has to be reached, and both sides to have agreed.
CONNECT, AGREE = 8.0, 15.0

Connect = Callable[[Console], Awaitable[Host]]


@dataclasses.dataclass(frozen=True)
class End:
    """How a connection is closed: the WebSocket's code, and a reason that the user may read."""

    code: int
    reason: str


GONE = End(1000, "The console has ended.")
UNREAD = End(1008, "The client does not read what the console writes.")
UNREACHABLE = End(1011, "The console cannot be reached.")


class Session:
    """A console that is open for a browser. ``protocol``: what its host speaks."""

    def __init__(self, ident: str, console: Console, protocol: str) -> None:
        self.console = console
        self.of = ConsoleSession(ident=ident, instance_uuid=console.instance_uuid, since=console.since)
        self._protocol = protocol
        self._over: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def end(self, code: int, reason: str) -> None:
        """Have run() return this soon. Does nothing the second time."""
        if not self._over.done():
            self._over.set_result(End(code, reason))

    async def run(self, browser: Browser, connect: Connect, schemes: Callable[[Host], dict[int, rfb.Scheme]]) -> End:
        """Relay until it is over; returns how the browser's side is to be closed."""
        console, started = self.console, time.monotonic()
        try:
            async with asyncio.timeout(CONNECT):
                host = await connect(console)
        except OSError as error:  # TimeoutError is one
            LOG.warning("[instance: %s] The console at %s:%d cannot be reached: %s", console.instance_uuid,
                        console.address.host, console.address.port, error or "no answer")
            return UNREACHABLE
        try:
            if self._protocol == VNC:
                async with asyncio.timeout(AGREE):
                    await rfb.negotiate(browser, host, schemes(host))
            LOG.info("[instance: %s] Console %s is open for user %s", console.instance_uuid, console.console_type,
                     console.user_id)
            end = await self._relay(browser, host)
            LOG.info("[instance: %s] Console %s was closed after %.0f s: %s", console.instance_uuid,
                     console.console_type, time.monotonic() - started, end.reason)
            return end
        except (rfb.Failed, EOFError, OSError) as error:
            LOG.warning("[instance: %s] Console %s was not opened: %s", console.instance_uuid, console.console_type,
                        error or "a side closed the connection, or was silent")
            return UNREACHABLE
        finally:
            host.close()

    async def _relay(self, browser: Browser, host: Host) -> End:
        # A task that waits for the host to read does not notice that the browser has closed the connection.
        ways = [asyncio.create_task(way) for way in (_copy(browser, host), _copy(host, browser), browser.gone(),
                                                     browser.heartbeat())]
        try:
            waited: list[asyncio.Future[Any]] = [*ways, self._over]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            results = await asyncio.gather(*ways, return_exceptions=True)
        if self._over.done():
            return self._over.result()
        return UNREAD if any(isinstance(result, Unread) for result in results) else GONE


async def _copy(source: Browser | Host, sink: Browser | Host) -> None:
    """Copy until a side ends. A sink that does not read holds up the source. Raises Unread, EOFError, OSError."""
    while data := await source.some():
        await sink.write(data)
