"""The queue of connections whose complete request waits for a thread, and its order under overload."""

import collections
import queue
import select
import socket
import time
from typing import Any

from nova.http.tls import Secured

# Seconds that the oldest connection waits before the server counts as overloaded.
_LATE = 2.0
# Under overload, one in this number of connections is the one that has waited longest; the others are the newest.
_SHARE = 5
_CLOSED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Backlog(queue.Queue[Any]):
    """A queue that is first in, first out until the oldest connection has waited for ``late`` seconds. Then the server
    is overloaded: in FIFO order every client would time out shortly before its response. Therefore mostly the newest
    connection is taken, whose client still waits. The item None ends a thread; it is taken last."""

    def __init__(self, late: float = _LATE) -> None:
        self._late = late
        super().__init__()

    def _init(self, maxsize: int) -> None:
        self._waiting: collections.deque[tuple[float, Any]] = collections.deque()
        self._ends = 0
        self._taken = 0

    def _qsize(self) -> int:
        return len(self._waiting) + self._ends

    def _put(self, item: Any) -> None:
        if item is None:
            self._ends += 1
        else:
            self._waiting.append((time.monotonic(), item))

    def _get(self) -> Any:
        if not self._waiting:
            self._ends -= 1
            return None
        if time.monotonic() - self._waiting[0][0] < self._late:
            return self._waiting.popleft()[1]
        self._taken += 1
        return (self._waiting.popleft() if self._taken % _SHARE == 0 else self._waiting.pop())[1]

    def take_closed(self) -> list[Any]:
        """Remove and return connections whose clients have disconnected. The caller must close them."""
        with self.mutex:
            poller = select.poll()
            for _since, waiting in self._waiting:
                poller.register(waiting.sock, _CLOSED)
            closed = {number for number, _events in poller.poll(0)}
            connections = [waiting for _since, waiting in self._waiting if waiting.sock.fileno() in closed]
            if connections:
                self._waiting = collections.deque(
                    (since, waiting) for since, waiting in self._waiting if waiting.sock.fileno() not in closed)
        return connections


def is_closed_by_peer(connected: socket.socket | Secured) -> bool:
    """Return True if the peer has closed the connection, or its sending half."""
    poller = select.poll()
    poller.register(connected, _CLOSED)
    return bool(poller.poll(0))
