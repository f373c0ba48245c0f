"""The security handshake of RFB 3.8 (RFC 6143), which the proxy performs with the host and with the browser separately.

The browser is authorized by its token and uses the security type None. The proxy authenticates itself to the host.
After the handshake the proxy relays all bytes unchanged.
"""

import struct
from collections.abc import Awaitable, Callable

from nova.console.streams import BrowserStream, HostStream

VERSION = b"RFB 003.008\n"
# Security types.
NONE = 1
_MAX_REASON = 4096


class HandshakeFailed(Exception):
    """A failed handshake. The message is for the log."""


# The handshake with the host for one security type, up to the SecurityResult, which is relayed to the browser.
Scheme = Callable[[], Awaitable[None]]


async def negotiate(browser: BrowserStream, host: HostStream, schemes: dict[int, Scheme]) -> None:
    """Perform the handshakes with both sides, up to the SecurityResult of the host.

    ``schemes``: security type -> handshake. The first security type that the host offers and ``schemes`` has is chosen.
    Raises HandshakeFailed, EOFError.
    """
    if await host.read(len(VERSION)) != VERSION:
        raise HandshakeFailed("the host does not support RFB 3.8")
    await host.write(VERSION)
    offered = await _offered(host)
    chosen = next((kind for kind in offered if kind in schemes), None)
    await browser.write(VERSION)
    if await browser.read(len(VERSION)) != VERSION:
        raise HandshakeFailed("the browser does not support RFB 3.8")
    if chosen is None:
        reason = b"Unable to negotiate security with server"
        await browser.write(struct.pack("!BI", 0, len(reason)) + reason)
        raise HandshakeFailed(f"the host offers the security types {offered}, and [vnc]auth_schemes none of them")
    await browser.write(bytes([1, NONE]))
    if await browser.read(1) != bytes([NONE]):
        raise HandshakeFailed("the browser chose a security type that was not offered")
    await host.write(bytes([chosen]))
    await schemes[chosen]()


async def none() -> None:
    """Perform no authentication (security type None)."""


async def _offered(host: HostStream) -> list[int]:
    [count] = await host.read(1)
    if count:
        return list(await host.read(count))
    [length] = struct.unpack("!I", await host.read(4))
    reason = await host.read(min(length, _MAX_REASON))
    raise HandshakeFailed(f"the host refused the connection: {ascii(reason.decode('utf-8', 'replace'))[1:-1]}")
