"""TLS between browsers and console proxies, as configured by cert, key, ssl_only and [console]ssl_*."""

from __future__ import annotations

import ssl

from nova import exception
from nova.conf import CONF

_VERSIONS = {"default": ssl.TLSVersion.TLSv1_2, "tlsv1_2": ssl.TLSVersion.TLSv1_2, "tlsv1_3": ssl.TLSVersion.TLSv1_3}


def browser_context() -> ssl.SSLContext | None:
    """Return the TLS context, or None for plain HTTP. Raises InvalidInput for invalid options."""
    if not CONF.cert:
        if CONF.ssl_only or CONF.key:
            raise exception.InvalidInput(reason="ssl_only and key require cert")
        return None
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = _VERSIONS[CONF.console.ssl_minimum_version]
    try:
        tls.load_cert_chain(CONF.cert, CONF.key)
        if CONF.console.ssl_ciphers:
            tls.set_ciphers(CONF.console.ssl_ciphers)
    except OSError as error:  # includes ssl.SSLError
        raise exception.InvalidInput(reason=f"cert {CONF.cert}, key or [console]ssl_ciphers is invalid: "
                                            f"{error}") from error
    return tls
