"""TLS to browsers: what the options cert, key, ssl_only and [console]ssl_* say."""

from __future__ import annotations

import ssl

from nova import exception
from nova.conf import CONF

_VERSIONS = {"default": ssl.TLSVersion.TLSv1_2, "tlsv1_2": ssl.TLSVersion.TLSv1_2, "tlsv1_3": ssl.TLSVersion.TLSv1_3}


def of_browsers() -> ssl.SSLContext | None:
    """None: plain HTTP. Raises InvalidInput for options that cannot be used."""
    if not CONF.cert:
        if CONF.ssl_only or CONF.key:
            raise exception.InvalidInput(reason="ssl_only and key need a cert")
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = _VERSIONS[CONF.console.ssl_minimum_version]
    try:
        made.load_cert_chain(CONF.cert, CONF.key)
        if CONF.console.ssl_ciphers:
            made.set_ciphers(CONF.console.ssl_ciphers)
    except OSError as error:  # ssl.SSLError is one
        raise exception.InvalidInput(reason=f"cert {CONF.cert}, key or [console]ssl_ciphers cannot be used: "
                                            f"{error}") from error
    return made
