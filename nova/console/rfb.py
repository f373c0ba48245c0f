"""The security handshake of RFB 3.8 (RFC 6143), which the proxy performs with the host and with the browser separately.
The browser is authorized by its token and uses the security type None. The proxy authenticates itself to the host, with
VeNCrypt by certificates on both sides. After the handshake the proxy relays all bytes unchanged."""

import ssl
import struct
from collections.abc import Awaitable, Callable

from nova import exception
from nova.conf import CONF
from nova.console.streams import BrowserStream, HostStream

VERSION = b"RFB 003.008\n"
# Security types; supported version of VeNCrypt, and its only supported subtype: authentication by certificates alone.
NONE, VENCRYPT = 1, 19
_VENCRYPT_VERSION, _X509_NONE = b"\x00\x02", 260
_MAX_REASON = 4096  # maximum number of bytes of the host's error message that are logged


class HandshakeFailed(Exception):
    """A failed handshake. The message is for the log."""


# The handshake with the host for one security type, up to the SecurityResult, which is relayed to the browser.
Scheme = Callable[[], Awaitable[None]]


async def negotiate(browser: BrowserStream, host: HostStream, schemes: dict[int, Scheme]) -> None:
    """Perform the handshakes with both sides, up to the SecurityResult of the host. ``schemes``: security type ->
    handshake. The first security type that the host offers and ``schemes`` has is chosen. Raises HandshakeFailed,
    EOFError."""
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
        raise HandshakeFailed(f"[vnc]auth_schemes allows none of the security types that the host offers: {offered}")
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


def vencrypt_tls() -> ssl.SSLContext:
    """Return the TLS context configured by [vnc]vencrypt_*. Raises InvalidInput. Only the CA of the host's certificate
    is checked, not the host name, since a host reports its own address."""
    options = CONF.vnc
    if not options.vencrypt_ca_certs:
        raise exception.InvalidInput(reason="[vnc]auth_schemes vencrypt requires vencrypt_ca_certs")
    if bool(options.vencrypt_client_cert) != bool(options.vencrypt_client_key):
        raise exception.InvalidInput(reason="[vnc]vencrypt_client_cert and vencrypt_client_key require each other")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.load_verify_locations(options.vencrypt_ca_certs)
        if options.vencrypt_client_cert:
            tls.load_cert_chain(options.vencrypt_client_cert, options.vencrypt_client_key)
    except OSError as error:  # includes ssl.SSLError
        raise exception.InvalidInput(reason=f"[vnc]vencrypt_ca_certs, vencrypt_client_cert or vencrypt_client_key "
                                            f"is invalid: {error}") from error
    return tls


async def vencrypt(host: HostStream, tls: ssl.SSLContext) -> None:
    """Perform the VeNCrypt handshake after the security type was chosen. Raises HandshakeFailed, EOFError, OSError."""
    if await host.read(2) != _VENCRYPT_VERSION:
        raise HandshakeFailed("the host does not support VeNCrypt 0.2")
    await host.write(_VENCRYPT_VERSION)
    if await host.read(1) != b"\x00":
        raise HandshakeFailed("the host refused VeNCrypt 0.2")
    [count] = await host.read(1)
    offered = struct.unpack(f"!{count}I", await host.read(4 * count))
    if _X509_NONE not in offered:
        raise HandshakeFailed(f"the host offers the VeNCrypt subtypes {offered}, but not X509None ({_X509_NONE})")
    await host.write(struct.pack("!I", _X509_NONE))
    if await host.read(1) != b"\x01":
        raise HandshakeFailed("the host refused X509None")
    await host.start_tls(tls)
