"""Background load: many simulated clients in one thread; each closes its connection after a timeout.

The clients share the machine with the measured services, so each request must be cheap: no coroutines, no threads.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import select
import socket
import time
from collections.abc import Sequence

_PIECE = 256 * 1024


@dataclasses.dataclass
class Result:
    """The result of a load; ``answers``: number of responses in time by status (0: no response in time)."""

    seconds: float
    offered: int
    answers: collections.Counter[int]

    @property
    def per_s(self) -> float:
        """Return the rate of successful responses in time."""
        return sum(count for status, count in self.answers.items() if 200 <= status < 300) / self.seconds


@dataclasses.dataclass(eq=False)
class _Pending:
    """A connection with a pending request."""

    sock: socket.socket
    request: bytes
    deadline: float
    received: bytearray = dataclasses.field(default_factory=bytearray)
    length: int = -1
    over: bool = False


class BackgroundLoad:
    """Clients that send ``requests`` in turn, over persistent connections with one request at a time.

    ``timeout``: seconds that a client waits for a response.
    """

    def __init__(self, address: tuple[str, int], requests: Sequence[bytes], timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self._requests = itertools.cycle(requests)
        self._poll = select.epoll()
        self._idle: dict[int, socket.socket] = {}
        self._pending: dict[int, _Pending] = {}
        self._in_order: collections.deque[_Pending] = collections.deque()
        self._answers: collections.Counter[int] = collections.Counter()

    def closed(self, clients: int, seconds: float) -> Result:
        """Run a closed loop: ``clients`` that send the next request as soon as the response arrives."""
        end = time.monotonic() + seconds
        before = self._answers.copy()
        while time.monotonic() < end:
            while len(self._pending) < clients:
                self._send_next()
            self._wait(0.05)
        self._finish()
        answers = self._answers - before
        return Result(seconds, answers.total(), answers)

    def opened(self, per_s: float, seconds: float) -> Result:
        """Run an open loop: ``per_s`` requests a second, independent of responses.

        The result covers the last ``seconds``; before, the load runs until the first clients reach their timeout.
        """
        began, offered = time.monotonic(), 0
        # Start of the measurement (later than planned on a busy machine), and the counts before it.
        since, before, answered = float("inf"), 0, self._answers.copy()
        while (elapsed := time.monotonic() - began) < since + seconds:
            if elapsed >= self._timeout and since == float("inf"):
                since, before, answered = elapsed, offered, self._answers.copy()
            while offered < elapsed * per_s:
                self._send_next()
                offered += 1
            self._wait(0.002)
        result = Result(elapsed - since, offered - before, self._answers - answered)
        self._finish()
        return result

    def close(self) -> None:
        for sock in self._idle.values():
            sock.close()
        self._poll.close()

    def _finish(self) -> None:
        """Wait until all requests have a response or reached the timeout."""
        while self._pending:
            self._wait(0.05)

    def _send_next(self) -> None:
        if self._idle:
            _number, sock = self._idle.popitem()
            events = select.EPOLLIN
        else:
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(self._address)
            events = select.EPOLLOUT
        pending = _Pending(sock, next(self._requests), time.monotonic() + self._timeout)
        self._pending[sock.fileno()] = pending
        self._in_order.append(pending)
        if events == select.EPOLLIN:
            self._poll.modify(sock.fileno(), events)
            self._send(pending)
        else:
            self._poll.register(sock.fileno(), events)

    def _wait(self, seconds: float) -> None:
        """Process socket events for up to ``seconds``, then end the requests that reached the timeout."""
        for number, events in self._poll.poll(seconds):
            pending = self._pending.get(number)
            if pending is None:  # the server closed an idle connection
                if number in self._idle:
                    self._idle.pop(number).close()
            elif events & select.EPOLLOUT:
                self._poll.modify(number, select.EPOLLIN)
                self._send(pending)
            else:
                self._receive(pending)
        now = time.monotonic()
        while self._in_order and (self._in_order[0].over or self._in_order[0].deadline <= now):
            if not (first := self._in_order.popleft()).over:
                self._end(first, 0)

    def _send(self, pending: _Pending) -> None:
        try:
            pending.sock.sendall(pending.request)  # smaller than the send buffer of a socket
        except OSError:
            self._end(pending, 0)

    def _receive(self, pending: _Pending) -> None:
        try:
            data = pending.sock.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(pending, 0)
            return
        pending.received += data
        if pending.length < 0 and (head := pending.received.find(b"\r\n\r\n")) >= 0:
            lines = bytes(pending.received[:head]).lower()
            pending.length = head + 4 + int(lines.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if 0 <= pending.length <= len(pending.received):
            self._end(pending, int(pending.received[9:12]),
                      keep=b"\r\nconnection: close" not in pending.received[:1024].lower())

    def _end(self, pending: _Pending, status: int, keep: bool = False) -> None:
        pending.over = True
        del self._pending[pending.sock.fileno()]
        self._answers[status] += 1
        if keep:
            self._poll.modify(pending.sock.fileno(), 0)
            self._idle[pending.sock.fileno()] = pending.sock
        else:
            pending.sock.close()
