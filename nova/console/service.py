"""A console proxy as a service: which consoles, where it listens, and a thread for its event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from nova import bus
from nova.conf import CONF
from nova.console import rfb, tls, vencrypt
from nova.console.gate import Gate
from nova.console.server import ConsoleServer
from nova.console.streams import Host
from nova.objects import console
from nova.rpcapi.compute import Compute
from nova.rpcapi.consoles import Consoles
from nova.service.rates import limiter

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# Seconds in which browsers have to notice that the proxy ends.
_STOP = 10.0


@dataclasses.dataclass(frozen=True)
class Kind:
    """A proxy: the types of consoles that it opens, where its options are, and where Debian has its web pages."""

    name: str
    types: tuple[str, ...]
    group: str
    prefix: str
    web: str = ""

    @property
    def listens(self) -> tuple[str, int]:
        options = CONF[self.group]
        return options[f"{self.prefix}_host"], options[f"{self.prefix}_port"]


NOVNC = Kind("nova-novncproxy", (console.NOVNC,), "vnc", "novncproxy", "/usr/share/novnc")
SPICE = Kind("nova-spicehtml5proxy", (console.SPICE_HTML5,), "spice", "html5proxy", "/usr/share/spice-html5")
SERIAL = Kind("nova-serialproxy", (console.SERIAL,), "serial_console", "serialproxy")
KINDS = (NOVNC, SPICE, SERIAL)


class ConsoleProxy:
    """start() listens, stop() closes all consoles. Raises InvalidInput for options that cannot be used."""

    def __init__(self, transport: messaging.RPCTransport, kind: Kind) -> None:
        self._kind = kind
        self._secure = tls.of_browsers()
        self._rate = limiter("console", "rate_limit_address")
        self._schemes = schemes_of(CONF.vnc.auth_schemes)
        consoles = bus.client(transport, Consoles)
        self._gate = Gate(consoles, bus.client(transport, Compute), kind.types)
        self._consoles = consoles
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=kind.name, daemon=True)
        self._server: ConsoleServer | None = None
        self.port = 0

    def start(self) -> None:
        """Returns when browsers are answered. Raises OSError when the address cannot be had."""
        self._thread.start()
        host, port = self._kind.listens
        self.port = self._ask(self._listen(host, port))
        LOG.info("%s listens on %s port %d%s", self._kind.name, host, self.port, " (TLS)" if self._secure else "")

    def stop(self) -> None:
        if self._server is not None:
            self._ask(self._server.stop(), _STOP)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP)

    async def _listen(self, host: str, port: int) -> int:
        self._server = ConsoleServer(self._gate, self._consoles, self._pages(), self._schemes, self._rate)
        return await self._server.start(host, port, self._secure)

    def _pages(self) -> str:
        directory = self._kind.web if CONF.web is None else CONF.web
        if directory and not os.path.isdir(directory):
            LOG.warning("There are no web pages in %s (option web): only WebSocket clients are served", directory)
            return ""
        return str(directory)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _ask(self, what: Any, seconds: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(seconds)


def schemes_of(names: Collection[str]) -> Callable[[Host], dict[int, rfb.Scheme]]:
    """What is done with a host, by security type, for these [vnc]auth_schemes. Raises InvalidInput."""
    secure = vencrypt.context() if "vencrypt" in names else None

    def schemes(host: Host) -> dict[int, rfb.Scheme]:
        known: dict[int, rfb.Scheme] = {rfb.NONE: rfb.none} if "none" in names else {}
        if secure is not None:
            known[vencrypt.TYPE] = functools.partial(vencrypt.secure, host, secure)
        return known

    return schemes
