"""Many clients in one thread, each of whom waits a while for its answer and then closes its connection.

They share the machine with what they measure, so that each request must cost them little: no coroutines, no threads.
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
class Found:
    """``answers``: how often which status came in time; 0: none did."""

    seconds: float
    offered: int
    answers: collections.Counter[int]

    @property
    def per_s(self) -> float:
        """Answers of use."""
        return sum(count for status, count in self.answers.items() if 200 <= status < 300) / self.seconds


@dataclasses.dataclass(eq=False)
class _Asked:
    """A connection with a request under way."""

    sock: socket.socket
    request: bytes
    ends: float
    got: bytearray = dataclasses.field(default_factory=bytearray)
    length: int = -1
    over: bool = False


class Crowd:
    """``requests`` are sent in turn. Connections are kept while they are good; each carries one at a time."""

    def __init__(self, address: tuple[str, int], requests: Sequence[bytes], patience: float) -> None:
        self._address, self._patience = address, patience
        self._turns = itertools.cycle(requests)
        self._poll = select.epoll()
        self._idle: dict[int, socket.socket] = {}
        self._asked: dict[int, _Asked] = {}
        self._in_order: collections.deque[_Asked] = collections.deque()
        self._answers: collections.Counter[int] = collections.Counter()

    def closed(self, clients: int, seconds: float) -> Found:
        """So many clients, each of which asks again as soon as it is answered."""
        end = time.monotonic() + seconds
        before = self._answers.copy()
        while time.monotonic() < end:
            while len(self._asked) < clients:
                self._ask()
            self._wait(0.05)
        self._finish()
        answers = self._answers - before
        return Found(seconds, answers.total(), answers)

    def opened(self, per_s: float, seconds: float) -> Found:
        """So many requests a second, whatever becomes of them.

        What is found is that of the last ``seconds``: before, it is offered until the first clients have given up.
        """
        began, offered = time.monotonic(), 0
        # When what counts began (after a machine that has other work held this up, it is later), and what was before.
        since, before, answered = float("inf"), 0, self._answers.copy()
        while (passed := time.monotonic() - began) < since + seconds:
            if passed >= self._patience and since == float("inf"):
                since, before, answered = passed, offered, self._answers.copy()
            while offered < passed * per_s:
                self._ask()
                offered += 1
            self._wait(0.002)
        found = Found(passed - since, offered - before, self._answers - answered)
        self._finish()
        return found

    def close(self) -> None:
        for sock in self._idle.values():
            sock.close()
        self._poll.close()

    def _finish(self) -> None:
        """Until all are answered or have given up."""
        while self._asked:
            self._wait(0.05)

    def _ask(self) -> None:
        if self._idle:
            _number, sock = self._idle.popitem()
            events = select.EPOLLIN
        else:
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(self._address)
            events = select.EPOLLOUT
        asked = _Asked(sock, next(self._turns), time.monotonic() + self._patience)
        self._asked[sock.fileno()] = asked
        self._in_order.append(asked)
        if events == select.EPOLLIN:
            self._poll.modify(sock.fileno(), events)
            self._send(asked)
        else:
            self._poll.register(sock.fileno(), events)

    def _wait(self, seconds: float) -> None:
        """See to what happens within so many seconds, and to who has waited too long."""
        for number, events in self._poll.poll(seconds):
            asked = self._asked.get(number)
            if asked is None:  # the server has ended a connection that was kept
                if number in self._idle:
                    self._idle.pop(number).close()
            elif events & select.EPOLLOUT:
                self._poll.modify(number, select.EPOLLIN)
                self._send(asked)
            else:
                self._receive(asked)
        now = time.monotonic()
        while self._in_order and (self._in_order[0].over or self._in_order[0].ends <= now):
            if not (first := self._in_order.popleft()).over:
                self._end(first, 0)

    def _send(self, asked: _Asked) -> None:
        try:
            asked.sock.sendall(asked.request)  # smaller than what a socket takes at once
        except OSError:
            self._end(asked, 0)

    def _receive(self, asked: _Asked) -> None:
        try:
            got = asked.sock.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self._end(asked, 0)
            return
        asked.got += got
        if asked.length < 0 and (head := asked.got.find(b"\r\n\r\n")) >= 0:
            lines = bytes(asked.got[:head]).lower()
            asked.length = head + 4 + int(lines.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if 0 <= asked.length <= len(asked.got):
            self._end(asked, int(asked.got[9:12]), keep=b"\r\nconnection: close" not in asked.got[:1024].lower())

    def _end(self, asked: _Asked, status: int, keep: bool = False) -> None:
        asked.over = True
        del self._asked[asked.sock.fileno()]
        self._answers[status] += 1
        if keep:
            self._poll.modify(asked.sock.fileno(), 0)
            self._idle[asked.sock.fileno()] = asked.sock
        else:
            asked.sock.close()
