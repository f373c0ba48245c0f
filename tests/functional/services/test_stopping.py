"""A stopping server refuses or answers all clients and never drops accepted connections."""

from __future__ import annotations

import collections
import http.client
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nova.api import service
from nova.conf import CONF, register
from nova.http.server import Server


def hello(_environ: Any, start: Callable[..., Any]) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "5")])
    return [b"hello"]


class Served:
    """A server on its own socket, with clients that send requests until they are refused."""

    def __init__(self, last: Callable[[], bool] = lambda: True) -> None:
        register(CONF)
        self.socket = service.listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.ends: collections.Counter[str] = collections.Counter()
        self.server = self.another(last)
        self._clients: list[threading.Thread] = []

    def another(self, last: Callable[[], bool] = lambda: True) -> Server:
        """Start the server of another process on the socket."""
        server = service.serve(self.socket.dup(), hello, 4, linger=0.2, last=last)
        server.prepare()
        threading.Thread(target=server.serve, daemon=True).start()
        return server

    def ask(self, count: int) -> None:
        """Send requests in a loop; half of the clients keep their connection until the server closes it."""
        for number in range(count):
            self._clients.append(threading.Thread(target=self._ask, args=(number % 2 == 0,)))
            self._clients[-1].start()

    def join(self) -> None:
        for client in self._clients:
            client.join(30)

    def get(self) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/")
        return connection.getresponse().read()

    def _ask(self, keep: bool) -> None:
        connection, end = None, time.monotonic() + 20
        while time.monotonic() < end:
            connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/")
                answer = connection.getresponse()
                assert answer.read() == b"hello"
                if answer.will_close or not keep:
                    connection.close()
                    connection = None
            except Exception as error:
                self.ends[type(error).__name__] += 1
                return
            time.sleep(0.002)


@pytest.mark.parametrize("_round", range(3))
def test_accepted_connections_are_answered_during_shutdown(_round: int) -> None:
    served = [Served() for _ in range(4)]
    for one in served:
        one.ask(4)
    time.sleep(0.3)
    for one in served:
        one.socket.close()
        threading.Thread(target=one.server.stop).start()
    for one in served:
        one.join()
    assert [one.ends for one in served] == [{"ConnectionRefusedError": 4}] * 4


def test_stopped_server_leaves_a_shared_socket_open_for_its_successor() -> None:
    served = Served(last=lambda: False)
    successor = served.another()
    served.server.stop()
    assert [served.get() for _ in range(20)] == [b"hello"] * 20
    served.socket.close()
    successor.stop()
    with pytest.raises(ConnectionRefusedError):
        served.get()
