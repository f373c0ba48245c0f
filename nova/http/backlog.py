"""The queue of connections whose complete request waits for a thread, and its order under overload."""

import collections
import queue
import select
import socket
import time
from typing import Any

from nova.http.tls import Secured

# Seconds that the first connection waits before the server counts as overloaded.
_LATE = 2.0
# Under overload, every so many-th connection taken is the one that has waited longest.
_SHARE = 5
_CLOSED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Backlog(queue.Queue[Any]):
    """A queue: first in, first out until the first connection has waited for ``late`` seconds. From then on the server
    is overloaded, and the oldest clients are the next to time out: in FIFO order every response would be just too late.
    Therefore mostly the newest connection is taken, which is answered in time. None (the end of a thread) comes after
    all connections."""

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
        """Remove and return connections whose clients have disconnected; they still count as connections."""
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
