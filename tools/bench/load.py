"""HTTP clients with persistent connections, low CPU usage and concurrency by threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

_TIMEOUT = 120.0


class Unexpected(Exception):
    """A response that makes the benchmark impossible."""


class Connection:
    """A persistent HTTP/1.1 connection. Responses must have a Content-Length, as those of the API do."""

    def __init__(self, host: str, port: int, headers: Mapping[str, str]) -> None:
        self._address = (host, port)
        lines = {"Host": f"{host}:{port}", "Connection": "keep-alive", "Content-Type": "application/json", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._socket: socket.socket | None = None

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request and return (status, body) of the response."""
        head = f"{method} /v2.1{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_TIMEOUT)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(head.encode() + body)
            return self._answer(self._socket)
        except BaseException:
            self.close()
            raise

    def expect(self, status: int, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request and return the body of the response. Raises Unexpected for another status."""
        actual, content = self.request(method, path, body)
        if actual != status:
            raise Unexpected(f"{method} {path}: {actual} {content[:500].decode(errors='replace')}")
        return content

    def get(self, path: str) -> Any:
        return json.loads(self.expect(200, "GET", path))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, source: socket.socket) -> tuple[int, bytes]:
        data = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                break
            data += self._receive(source)
        head = data[:end].lower()
        status = int(head[9:12])
        at = head.find(b"\r\ncontent-length:")
        if at < 0 and status != 204:
            raise Unexpected(f"Response without Content-Length: {head!r}")
        length = int(head[at + 17:].partition(b"\r\n")[0]) if at >= 0 else 0
        body = bytearray(data[end + 4:])
        while len(body) < length:
            body += self._receive(source)
        if b"\r\nconnection: close" in head:
            self.close()
        return status, bytes(body)

    @staticmethod
    def _receive(source: socket.socket) -> bytes:
        data = source.recv(1 << 18)
        if not data:
            raise Unexpected("The API closed the connection before the end of the response.")
        return data


class Watcher:
    """A client that polls the list of busy servers on behalf of all other clients.

    ``path`` lists the busy servers (in one small page). :meth:`wait` returns after the first list that was requested
    later and lacks the server, plus a random part of the interval: independent clients would not notice the change
    at the same moment, and would not send their next requests together. ``polls`` counts the lists.
    """

    def __init__(self, connection: Connection, path: str, interval: float) -> None:
        self._connection, self._path, self._interval = connection, path, interval
        self._waiting: dict[str, tuple[int, threading.Event]] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._ended = False
        self.polls = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._wanted.set()
        self._thread.join(_TIMEOUT)
        self._connection.close()

    def wait(self, server_id: str) -> None:
        """Wait until the server is no longer busy. Raises Unexpected after two minutes."""
        event = threading.Event()
        with self._lock:
            # A list that is already requested may predate the server.
            self._waiting[server_id] = (self.polls, event)
            self._wanted.set()
        if not event.wait(_TIMEOUT):
            raise Unexpected(f"{server_id} is still busy ({self._path})")
        if self.error is not None:
            raise self.error
        time.sleep(random.random() * self._interval)  # noqa: S311

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended:
            self._wanted.wait()
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + self._interval
            with self._lock:
                self.polls += 1
                if not self._waiting:
                    self._wanted.clear()
            if self._wanted.is_set() and not self._ended:
                self._poll()

    def _poll(self) -> None:
        try:
            busy = {server["id"] for server in self._connection.get(self._path)["servers"]}
        except Exception as error:
            self.error, busy = error, set()
        with self._lock:
            done = [server_id for server_id, (polls, _event) in self._waiting.items()
                    if self.error is not None or (polls < self.polls and server_id not in busy)]
            for server_id in done:
                self._waiting.pop(server_id)[1].set()


def in_parallel(clients: int, tasks: Sequence[Any], connect: Callable[[], Connection],
                act: Callable[[Connection, Any], Any]) -> list[Any]:
    """Call ``act`` for every task, in ``clients`` threads with a connection each; return results in task order."""
    numbers = itertools.count()
    answers: list[Any] = [None] * len(tasks)

    def client() -> None:
        with connect() as connection:
            while (number := next(numbers)) < len(tasks):
                answers[number] = act(connection, tasks[number])

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client) for _ in range(clients)]:
            done.result()
    return answers


def for_seconds(clients: int, seconds: float, connect: Callable[[], Connection],
                act: Callable[[Connection], Any]) -> list[float]:
    """Call ``act`` repeatedly in ``clients`` threads for ``seconds``; return the duration of each call in seconds."""
    end = time.monotonic() + seconds

    def client(_: int) -> list[float]:
        times = []
        with contextlib.closing(connect()) as connection:
            while (began := time.monotonic()) < end:
                act(connection)
                times.append(time.monotonic() - began)
        return times

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return [duration for times in pool.map(client, range(clients)) for duration in times]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of ``values``; ``share`` between 0 and 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    return {f"p{round(share * 100)}_ms": round(1000 * percentile(values, share), 2) for share in (0.5, 0.99)}
