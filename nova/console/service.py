"""Console proxies as services: their console types, listening addresses and event loop threads."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import ssl
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from nova import bus, exception
from nova.conf import CONF
from nova.console import rfb
from nova.console.authorization import TokenAuthorizer
from nova.console.server import ConsoleServer
from nova.console.streams import HostStream
from nova.objects.servers import console
from nova.rpcapi.compute import Compute
from nova.rpcapi.servers import Consoles
from nova.service.rates import limiter

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

_STOP_TIMEOUT = 10.0  # timeout in seconds for closing all connections when the proxy stops
# [console]ssl_minimum_version -> TLS version.
_TLS_VERSIONS = {"default": ssl.TLSVersion.TLSv1_2, "tlsv1_2": ssl.TLSVersion.TLSv1_2,
                 "tlsv1_3": ssl.TLSVersion.TLSv1_3}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of console proxy. ``types``: its console types; ``group`` and ``prefix``: group and prefix of its options;
    ``web``: the directory of its web pages in Debian."""

    name: str
    types: tuple[str, ...]
    group: str
    prefix: str
    web: str = ""

    @property
    def address(self) -> tuple[str, int]:
        options = CONF[self.group]
        return options[f"{self.prefix}_host"], options[f"{self.prefix}_port"]


NOVNC = Kind("nova-novncproxy", (console.NOVNC,), "vnc", "novncproxy", "/usr/share/novnc")
SPICE = Kind("nova-spicehtml5proxy", (console.SPICE_HTML5,), "spice", "html5proxy", "/usr/share/spice-html5")
SERIAL = Kind("nova-serialproxy", (console.SERIAL,), "serial_console", "serialproxy")
KINDS = (NOVNC, SPICE, SERIAL)


class ConsoleProxy:
    """The server of one type of console proxy, with its event loop thread. Raises InvalidInput for invalid options."""

    def __init__(self, transport: messaging.RPCTransport, kind: Kind) -> None:
        self._kind = kind
        self._secure = _browser_tls()
        self._rate = limiter("console", "rate_limit_address")
        self._schemes = security_schemes(CONF.vnc.auth_schemes)
        self._consoles = bus.client(transport, Consoles)
        self._authorizer = TokenAuthorizer(self._consoles, bus.client(transport, Compute), kind.types)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=kind.name, daemon=True)
        self._server: ConsoleServer | None = None
        self.port = 0

    def start(self) -> None:
        """Listen, and return when connections are accepted. Raises OSError if the address is not available."""
        self._thread.start()
        host, port = self._kind.address
        self.port = self._run_coroutine(self._listen(host, port))
        LOG.info("%s listens on %s port %d%s", self._kind.name, host, self.port, " (TLS)" if self._secure else "")

    def stop(self) -> None:
        """Close all consoles and end the event loop."""
        if self._server is not None:
            self._run_coroutine(self._server.stop(), _STOP_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT)

    async def _listen(self, host: str, port: int) -> int:
        self._server = ConsoleServer(self._authorizer, self._consoles, self._pages(), self._schemes, self._rate)
        return await self._server.start(host, port, self._secure)

    def _pages(self) -> str:
        directory = self._kind.web if CONF.web is None else CONF.web
        if directory and not os.path.isdir(directory):
            LOG.warning("The directory of web pages %s (option web) does not exist: only WebSocket clients are served",
                        directory)
            return ""
        return str(directory)

    def _run_coroutine(self, coroutine: Any, seconds: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)


def security_schemes(names: Collection[str]) -> Callable[[HostStream], dict[int, rfb.Scheme]]:
    """Return a function that returns the handshakes with a host by security type, for these [vnc]auth_schemes. Raises
    InvalidInput for invalid options."""
    secure = rfb.vencrypt_tls() if "vencrypt" in names else None

    def schemes(host: HostStream) -> dict[int, rfb.Scheme]:
        handshakes: dict[int, rfb.Scheme] = {rfb.NONE: rfb.none} if "none" in names else {}
        if secure is not None:
            handshakes[rfb.VENCRYPT] = functools.partial(rfb.vencrypt, host, secure)
        return handshakes

    return schemes


def _browser_tls() -> ssl.SSLContext | None:
    """Return the TLS context for browsers, or None for plain HTTP. Raises InvalidInput for invalid options."""
    if not CONF.cert:
        if CONF.ssl_only or CONF.key:
            raise exception.InvalidInput(reason="ssl_only and key require cert")
        return None
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = _TLS_VERSIONS[CONF.console.ssl_minimum_version]
    try:
        tls.load_cert_chain(CONF.cert, CONF.key)
        if CONF.console.ssl_ciphers:
            tls.set_ciphers(CONF.console.ssl_ciphers)
    except OSError as error:  # includes ssl.SSLError
        raise exception.InvalidInput(reason=f"cert {CONF.cert}, key or [console]ssl_ciphers is invalid: "
                                            f"{error}") from error
    return tls
