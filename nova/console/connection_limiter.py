"""Limits on the connections of a console proxy, applied when a connection is accepted, before TLS and authorization."""

import collections
import itertools
import resource
import socket
from collections.abc import Callable
from typing import Any

from nova.conf import CONF
from nova.console.streams import keep_alive
from nova.service.rates import client_of

_MAX_UNAUTHORIZED = 64  # maximum number of connections per client without an authorized token
# File descriptors that are reserved for other uses than connections.
_RESERVED_FILES = 128
_BACKLOG = 128

PeerAddress = Any  # as returned by socket.accept


class ConnectionLimiter:
    """Counters of the open connections of a proxy, and of the connections of each client that are not authorized yet. A
    client may connect from the same port again before this side has closed the previous connection. The new connection
    then replaces the previous one, and calls with the number of the previous one do nothing."""

    def __init__(self) -> None:
        # Address -> number of the connection, and client ("" once the connection is authorized).
        self._open: dict[PeerAddress, tuple[int, str]] = {}
        self._unauthorized: collections.Counter[str] = collections.Counter()
        self._numbers = itertools.count(1)

    def add(self, peer: PeerAddress) -> int:
        """Count a new connection and return its number, or 0 if a limit is reached."""
        client = client_of(peer[0])
        if len(self._open) >= max_connections() or self._unauthorized[client] >= _MAX_UNAUTHORIZED:
            return 0
        if peer in self._open:
            self.remove(peer, self._open[peer][0])
        number = next(self._numbers)
        self._open[peer] = number, client
        self._unauthorized[client] += 1
        return number

    def authorized(self, peer: PeerAddress) -> None:
        """Stop counting a connection as not authorized."""
        number, client = self._open.get(peer, (0, ""))
        if client:
            self._open[peer] = number, ""
            self._count_down(client)

    def remove(self, peer: PeerAddress, number: int) -> None:
        """Stop counting a closed connection. May be called again."""
        if self._open.get(peer, (0, ""))[0] != number:
            return
        _number, client = self._open.pop(peer)
        if client:
            self._count_down(client)

    def _count_down(self, client: str) -> None:
        self._unauthorized[client] -= 1
        if not self._unauthorized[client]:
            del self._unauthorized[client]


def max_connections() -> int:
    """Return [console]max_connections, or less if this process may not open two files for each session."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(int(CONF.console.max_connections), max(1, (files - _RESERVED_FILES) // 2))


class Listener(socket.socket):
    """A listening socket that immediately closes connections that exceed a limit."""

    def __init__(self, limiter: ConnectionLimiter, host: str, port: int) -> None:
        family, _type, _protocol, _name, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self._limiter = limiter

    def accept(self) -> tuple[socket.socket, PeerAddress]:
        """Accept a connection, or close it and raise ConnectionAbortedError if a limit is reached."""
        accepted, peer = super().accept()
        number = self._limiter.add(peer)
        if not number:
            accepted.close()
            raise ConnectionAbortedError
        keep_alive(accepted)
        return _CountedConnection(accepted, lambda: self._limiter.remove(peer, number)), peer


class _CountedConnection(socket.socket):
    """A connection that calls ``on_close`` when it is closed."""

    def __init__(self, accepted: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._on_close = on_close

    def close(self) -> None:
        super().close()
        self._on_close()
