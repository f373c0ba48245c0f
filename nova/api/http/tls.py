"""TLS of what is served: what the options tls_* of a section say."""

from __future__ import annotations

import ssl

from nova import exception
from nova.conf import CONF


def context(section: str) -> ssl.SSLContext | None:
    """What TLS (1.2 or later) is spoken with; None: it is not. Raises InvalidInput for options that cannot be used."""
    options = CONF[section]
    if not options.tls_cert_file:
        if options.tls_key_file or options.tls_client_ca_file:
            raise exception.InvalidInput(reason=f"[{section}]tls_key_file and tls_client_ca_file need a tls_cert_file")
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    name = "tls_cert_file"
    try:
        made.load_cert_chain(options.tls_cert_file, options.tls_key_file)
        if options.tls_client_ca_file:
            name = "tls_client_ca_file"
            made.load_verify_locations(options.tls_client_ca_file)
            made.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        key = f" with tls_key_file {options.tls_key_file}" if name == "tls_cert_file" and options.tls_key_file else ""
        raise exception.InvalidInput(
            reason=f"[{section}]{name} {options[name]}{key} cannot be used: {error}") from error
    return made
