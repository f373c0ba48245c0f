"""Limits on the connections of a proxy."""

import contextlib
import socket
import struct

from nova.conf import register
from nova.console.connection_limiter import ConnectionLimiter, Listener

register()


def test_client_reconnecting_from_the_same_port_is_counted_once():
    """The system accepts the same address after a reset, before this side has closed the previous connection."""
    with Listener(ConnectionLimiter(), "127.0.0.1", 0) as listening, contextlib.ExitStack() as stack:
        where, port = listening.getsockname(), 0
        for _time in range(100):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", port))
            port = client.getsockname()[1]
            client.connect(where)
            accepted, _peer = listening.accept()  # Raises if a limit is reached.
            stack.enter_context(accepted)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
