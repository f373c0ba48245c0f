"""The request backlog of the API when requests outnumber threads: order and disconnected clients."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from nova.api import service
from nova.conf import CONF, register
from nova.http.backlog import Backlog, is_closed_by_peer


def waiting(count: int) -> list[object]:
    return [object() for _ in range(count)]


def drained(backlog: Backlog) -> list[Any]:
    found = []
    while True:
        try:
            found.append(backlog.get_nowait())
        except queue.Empty:
            return found


def test_backlog_is_first_in_first_out_while_waits_are_short() -> None:
    backlog, came = Backlog(late=60), waiting(10)
    for one in came:
        backlog.put(one)
    assert backlog.qsize() == 10
    assert drained(backlog) == came


def test_overloaded_backlog_serves_newest_first_and_every_fifth_the_oldest() -> None:
    backlog, came = Backlog(late=0), waiting(10)
    for one in came:
        backlog.put(one)
    assert [came.index(one) for one in drained(backlog)] == [9, 8, 7, 6, 0, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("late", [0.0, 60.0])
def test_worker_threads_end_only_after_the_backlog_is_empty(late: float) -> None:
    backlog, end, (first, second) = Backlog(late), None, waiting(2)
    for item in (first, end, second):
        backlog.put(item)
    found = drained(backlog)
    assert found[2] is end
    assert set(found[:2]) == {first, second}


def test_a_connection_closed_by_the_client_is_detected() -> None:
    client, ours = socket.socketpair()
    client.sendall(b"something")
    assert not is_closed_by_peer(ours)
    client.close()
    assert is_closed_by_peer(ours)
    ours.close()


class Served:
    """An HTTP server with a single thread, whose requests block until :attr:`go` is released."""

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


def test_queued_request_of_a_disconnected_client_is_not_executed(served: Served) -> None:
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


def test_closed_connections_in_the_backlog_free_the_limit_per_client() -> None:
    served = Served(per_client=3)
    try:
        first = served.ask("/first")
        assert served.begun.acquire(timeout=60)
        for gone in [served.ask("/gone") for _ in range(2)]:
            gone.close()
        status, tries = b"429", 100
        while b"429" in status and tries:  # closed connections are detected twice a second
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
