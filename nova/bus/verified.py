"""Connections to brokers: publishing has deadlines, and over TLS each broker must prove the name it was called by.

With several brokers in transport_url oslo.messaging names none. kombu then takes the name of the first that it tries
for that of all others, too, whose certificates are refused.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import pyamqp

from nova.bus import publishing


class Transport(pyamqp.Transport):
    """In place of kombu's own."""

    Connection = publishing.Connection

    def establish_connection(self) -> Any:
        wanted: Any = self.client
        if isinstance(wanted.ssl, dict) and "ca_certs" in wanted.ssl:
            # A copy: all that this connection tries share the dictionary.
            wanted.ssl = {**wanted.ssl, "server_hostname": wanted.hostname}
        made = super().establish_connection()  # type: ignore[no-untyped-call]
        publishing.watch(made)
        return made
