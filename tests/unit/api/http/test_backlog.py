"""The API with more requests than threads: who is served, and in which order."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from nova.api import service
from nova.api.http.backlog import Backlog, is_closed_by_peer
from nova.conf import CONF, register


def waiting(count: int) -> list[object]:
    return [object() for _ in range(count)]


def drained(backlog: Backlog) -> list[Any]:
    found = []
    while True:
        try:
            found.append(backlog.get_nowait())
        except queue.Empty:
            return found


def test_first_come_first_served_while_nobody_waits_long() -> None:
    backlog, came = Backlog(late=60), waiting(10)
    for one in came:
        backlog.put(one)
    assert backlog.qsize() == 10
    assert drained(backlog) == came


def test_with_too_much_to_do_the_newest_come_first_and_one_in_five_is_the_oldest() -> None:
    backlog, came = Backlog(late=0), waiting(10)
    for one in came:
        backlog.put(one)
    assert [came.index(one) for one in drained(backlog)] == [9, 8, 7, 6, 0, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("late", [0.0, 60.0])
def test_threads_end_only_when_nobody_waits_any_more(late: float) -> None:
    backlog, end, (first, second) = Backlog(late), None, waiting(2)
    for item in (first, end, second):
        backlog.put(item)
    found = drained(backlog)
    assert found[2] is end
    assert set(found[:2]) == {first, second}


def test_a_client_that_closes_has_gone() -> None:
    client, ours = socket.socketpair()
    client.sendall(b"something")
    assert not is_closed_by_peer(ours)
    client.close()
    assert is_closed_by_peer(ours)
    ours.close()


class Served:
    """A server with one thread, whose requests each wait for :attr:`go`."""

    def __init__(self, per_client: int = 256) -> None:
        register(CONF)
        CONF.set_override("connections_per_client", per_client, group="api")
        self.socket = service.listen("127.0.0.1", 0)
        self.done: list[str] = []
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.server = service.serve(self.socket, self._answer, 1)
        CONF.clear_override("connections_per_client", group="api")
        self.server.prepare()
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.done.append(environ["PATH_INFO"])
        self.begun.release()
        assert self.go.acquire(timeout=60)
        start("204 No Content", [("Content-Length", "0")])
        return []

    def ask(self, path: str) -> socket.socket:
        client = socket.create_connection(self.socket.getsockname())
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        return client

    def end(self) -> None:
        self.server.stop()
        self._thread.join(60)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.end()


def test_what_a_client_asked_for_that_has_gone_since_is_not_done(served: Served) -> None:
    first = served.ask("/first")
    assert served.begun.acquire(timeout=60)
    served.ask("/gone").close()
    last = served.ask("/last")
    served.go.release(3)
    assert first.recv(100).startswith(b"HTTP/1.1 204")
    assert last.recv(100).startswith(b"HTTP/1.1 204")
    assert served.done == ["/first", "/last"]
    first.close()
    last.close()


def test_who_has_gone_leaves_room_for_others_though_no_thread_was_free() -> None:
    served = Served(per_client=3)
    try:
        first = served.ask("/first")
        assert served.begun.acquire(timeout=60)
        for gone in [served.ask("/gone") for _ in range(2)]:
            gone.close()
        status, tries = b"429", 100
        while b"429" in status and tries:  # those who have gone are looked for twice a second
            tries -= 1
            time.sleep(0.1)
            last = served.ask("/last")
            last.settimeout(0.2)
            try:
                status = last.recv(100)
            except TimeoutError:
                status = b"it waits, and is not turned away"
        assert status == b"it waits, and is not turned away"
        served.go.release(2)
        last.settimeout(60)
        assert last.recv(100).startswith(b"HTTP/1.1 204")
        assert served.done == ["/first", "/last"]
        first.close()
        last.close()
    finally:
        served.end()
