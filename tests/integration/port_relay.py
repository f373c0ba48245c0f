"""TCP relays between network namespaces."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from nova.network.linux import netns


class PortRelay:
    """A relay from ``address`` and ``port`` in the ``namespace`` to 127.0.0.1 and port ``outer`` (or the same port) in
    this namespace."""

    def __init__(self, namespace: str, address: str, port: int, outer: int = 0) -> None:
        self._listener = netns.call(namespace, lambda: socket.create_server((address, port)))
        start_relay(self._listener, lambda: socket.create_connection(("127.0.0.1", outer or port), timeout=5))

    def close(self) -> None:
        """Refuse new connections to the port."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that would keep the namespace alive
        self._listener.close()


class InwardRelay(PortRelay):
    """A relay from ``address`` and ``port`` in this namespace to the same port of ``host`` in the ``namespace``."""

    def __init__(self, namespace: str, host: str, address: str, port: int) -> None:
        self._listener = socket.create_server((address, port))
        start_relay(self._listener, lambda: netns.call(
            namespace, lambda: socket.create_connection((host, port), timeout=5)))


def start_relay(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Relay each connection to ``listener`` to a new connection, until the listener is closed."""
    threading.Thread(target=_relay, args=(listener, connect), name="relay", daemon=True).start()


def _relay(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Relay each connection to ``listener`` to a new connection, until the listener is closed."""
    while True:
        try:
            inner, _address = listener.accept()
        except OSError:
            return
        try:
            outer = connect()
        except OSError:
            inner.close()
            continue
        outer.settimeout(None)
        for source, sink in ((inner, outer), (outer, inner)):
            threading.Thread(target=pump, args=(source, sink), name="relay", daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    # Close both directions: a broken connection must not look intact from the other side.
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
