"""VeNCrypt (RFB security type 19): TLS between proxy and host, with certificates on both sides.

Only the subtype X509None is supported: both sides authenticate by certificates alone.
"""

import ssl
import struct

from nova import exception
from nova.conf import CONF
from nova.console.rfb import HandshakeFailed
from nova.console.streams import HostStream

TYPE = 19
_VERSION = b"\x00\x02"
_X509_NONE = 260


def context() -> ssl.SSLContext:
    """Return the TLS context configured by [vnc]vencrypt_*. Raises InvalidInput.

    Only the CA of the host's certificate is checked, not the host name, since a host reports its own address.
    """
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


async def secure(host: HostStream, tls: ssl.SSLContext) -> None:
    """Perform the VeNCrypt handshake after the security type was chosen. Raises HandshakeFailed, EOFError, OSError."""
    if await host.read(2) != _VERSION:
        raise HandshakeFailed("the host does not support VeNCrypt 0.2")
    await host.write(_VERSION)
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
