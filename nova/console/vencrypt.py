"""VeNCrypt (RFB security type 19): the connection to the host goes on in TLS, with certificates on both sides.

Only the subtype X509None is spoken: who the other side is follows from its certificate, and nothing more is asked.
"""

from __future__ import annotations

import ssl
import struct

from nova import exception
from nova.conf import CONF
from nova.console.rfb import Failed
from nova.console.streams import Host

TYPE = 19
_VERSION = b"\x00\x02"
_X509_NONE = 260


def context() -> ssl.SSLContext:
    """As [vnc]vencrypt_* say. Raises InvalidInput.

    A host is known by who vouches for it, not by its name: it is found under the address that it tells itself.
    """
    options = CONF.vnc
    if not options.vencrypt_ca_certs:
        raise exception.InvalidInput(reason="[vnc]auth_schemes vencrypt needs vencrypt_ca_certs")
    if bool(options.vencrypt_client_cert) != bool(options.vencrypt_client_key):
        raise exception.InvalidInput(reason="[vnc]vencrypt_client_cert and vencrypt_client_key need one another")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_verify_locations(options.vencrypt_ca_certs)
        if options.vencrypt_client_cert:
            made.load_cert_chain(options.vencrypt_client_cert, options.vencrypt_client_key)
    except OSError as error:  # ssl.SSLError is one
        raise exception.InvalidInput(reason=f"[vnc]vencrypt_ca_certs, vencrypt_client_cert or vencrypt_client_key "
                                            f"cannot be used: {error}") from error
    return made


async def secure(host: Host, tls: ssl.SSLContext) -> None:
    """The handshake behind the choice of the type. Raises Failed, EOFError, OSError (also of TLS)."""
    if await host.read(2) != _VERSION:
        raise Failed("the host does not speak VeNCrypt 0.2")
    await host.write(_VERSION)
    if await host.read(1) != b"\x00":
        raise Failed("the host refuses VeNCrypt 0.2")
    [count] = await host.read(1)
    offered = struct.unpack(f"!{count}I", await host.read(4 * count))
    if _X509_NONE not in offered:
        raise Failed(f"of VeNCrypt the host offers {offered}, and not X509None ({_X509_NONE})")
    await host.write(struct.pack("!I", _X509_NONE))
    if await host.read(1) != b"\x01":
        raise Failed("the host refuses X509None")
    await host.start_tls(tls)
