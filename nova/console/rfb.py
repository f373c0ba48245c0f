"""The security handshake of RFB 3.8 (RFC 6143), which a proxy has with the host and with the browser apart.

The browser has shown its token and needs nothing more; what the host wants is the proxy's business. After it the
proxy looks into nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Protocol

VERSION = b"RFB 003.008\n"
# Security types.
NONE = 1
_REASON_MOST = 4096


class Failed(Exception):
    """Why there is no session, for the log."""


class Stream(Protocol):
    """One side: exactly so many bytes (raises EOFError when it ends before), and bytes to it."""

    async def read(self, size: int) -> bytes: ...
    async def write(self, data: bytes) -> None: ...


# What follows on the host's side when a security type was chosen, up to the result (which the browser gets).
Scheme = Callable[[], Awaitable[None]]


async def negotiate(browser: Stream, host: Stream, schemes: dict[int, Scheme]) -> None:
    """Both sides' handshakes, up to the host's SecurityResult; ``schemes`` by security type. Raises Failed, EOFError.

    Of the types that the host offers, in its order, the first one with a scheme is taken.
    """
    if await host.read(len(VERSION)) != VERSION:
        raise Failed("the host does not speak RFB 3.8")
    await host.write(VERSION)
    offered = await _offered(host)
    chosen = next((kind for kind in offered if kind in schemes), None)
    await browser.write(VERSION)
    if await browser.read(len(VERSION)) != VERSION:
        raise Failed("the browser does not speak RFB 3.8")
    if chosen is None:
        reason = b"Unable to negotiate security with server"
        await browser.write(struct.pack("!BI", 0, len(reason)) + reason)
        raise Failed(f"the host offers the security types {offered}, and [vnc]auth_schemes none of them")
    await browser.write(bytes([1, NONE]))
    if await browser.read(1) != bytes([NONE]):
        raise Failed("the browser chose what was not offered")
    await host.write(bytes([chosen]))
    await schemes[chosen]()


async def none() -> None:
    """Nothing is asked."""


async def _offered(host: Stream) -> list[int]:
    [count] = await host.read(1)
    if count:
        return list(await host.read(count))
    [length] = struct.unpack("!I", await host.read(4))
    reason = await host.read(min(length, _REASON_MOST))
    raise Failed(f"the host refuses: {ascii(reason.decode('utf-8', 'replace'))[1:-1]}")
