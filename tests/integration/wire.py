"""A TCP connection to the broker that tests can cut and block."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.integration.port_relay import pump


class Wire:
    """A relay from a loopback ``port`` to the port ``target``. ``came``: the times of connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.came: list[float] = []
        self._blocked = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                inner, _address = self._listener.accept()
            except OSError:
                return
            self.came.append(time.monotonic())
            try:
                if self._blocked:
                    raise ConnectionRefusedError
                outer = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                inner.close()
                continue
            self._sockets += [inner, outer]
            for ends in ((inner, outer), (outer, inner)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    def cut(self) -> None:
        """Close all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def block(self) -> None:
        """Refuse all connections until :meth:`unblock`."""
        self._blocked = True
        self.cut()

    def unblock(self) -> None:
        self._blocked = False

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
