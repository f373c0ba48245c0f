"""Who may connect: connections are counted as they are accepted, before TLS is begun and before anybody is asked."""

from __future__ import annotations

import collections
import itertools
import resource
import socket
from collections.abc import Callable
from typing import Any

from nova.conf import CONF
from nova.console.streams import keep_alive
from nova.service.rates import client_of

# Connections of one client that have shown no token yet.
_HANDSHAKES = 64
# File descriptors that are not for connections.
_OTHER_FILES = 128
_BACKLOG = 128

Peer = Any  # the address of the other side, as sockets have it


class Door:
    """The connections of a proxy, and of each client those that have shown no token yet.

    A client may come back from the same port before its last connection from there is closed on this side: what is
    said of one that has been replaced counts no more.
    """

    def __init__(self) -> None:
        # Each with its number and its client ("" once a token was shown).
        self._open: dict[Peer, tuple[int, str]] = {}
        self._waiting: collections.Counter[str] = collections.Counter()
        self._numbers = itertools.count(1)

    def enter(self, peer: Peer) -> int:
        """A number by which it may leave; 0: this one more may not connect."""
        client = client_of(peer[0])
        if len(self._open) >= most_connections() or self._waiting[client] >= _HANDSHAKES:
            return 0
        if peer in self._open:
            self.leave(peer, self._open[peer][0])
        number = next(self._numbers)
        self._open[peer] = number, client
        self._waiting[client] += 1
        return number

    def shown(self, peer: Peer) -> None:
        """It has shown a token, and counts no more among those of its client that have not."""
        number, client = self._open.get(peer, (0, ""))
        if client:
            self._open[peer] = number, ""
            self._no_longer(client)

    def leave(self, peer: Peer, number: int) -> None:
        """It is closed. Does nothing the second time."""
        if self._open.get(peer, (0, ""))[0] != number:
            return
        _number, client = self._open.pop(peer)
        if client:
            self._no_longer(client)

    def _no_longer(self, client: str) -> None:
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]


def most_connections() -> int:
    """[console]max_connections, as far as this process may open files: a session has two."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(int(CONF.console.max_connections), max(1, (files - _OTHER_FILES) // 2))


class Listener(socket.socket):
    """A socket that listens, and closes at once what the door does not let in."""

    def __init__(self, door: Door, host: str, port: int) -> None:
        """Raises OSError."""
        family, _type, _protocol, _name, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        super().__init__(made.family, made.type, made.proto, made.detach())
        self._door = door

    def accept(self) -> tuple[socket.socket, Peer]:
        """Raises ConnectionAbortedError for one that is not let in: who waits next gets another turn for that."""
        accepted, peer = super().accept()
        number = self._door.enter(peer)
        if not number:
            accepted.close()
            raise ConnectionAbortedError
        keep_alive(accepted)
        return _Counted(accepted, lambda: self._door.leave(peer, number)), peer


class _Counted(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(self, accepted: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._closed_now = closed

    def close(self) -> None:
        super().close()
        self._closed_now()
