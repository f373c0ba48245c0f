"""Health checks of misbehaving components."""

import contextlib
import socket
import threading

import pytest

from nova.novad.deployment import health
from nova.novad.masking import Masker
from nova.novad.platform import Component, Health
from nova.novad.runtime.podman import Wanted
from tests.unit.novad.runtimes import FakeRuntime


@pytest.fixture
def runtime():
    made = FakeRuntime({"i:1": "good"})
    made.create(Wanted(name="c", image=made.fetch("i:1").ident, labels={}, component=Component(image="i")))
    made.start("c")
    return made


@contextlib.contextmanager
def server(answer):
    """Serve a connection with ``answer(connection)`` and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def serve():
            with contextlib.suppress(OSError):
                connection = listening.accept()[0]
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    answer(connection)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(20)


def drip(connection):
    """Send a byte every 50 ms without end, so that no single read times out."""
    end = threading.Event()
    while not end.wait(0.05):
        connection.sendall(b"a")


@pytest.mark.parametrize(("answer", "said"), [
    (drip, "no answer in 0.3 seconds"), (lambda one: one.sendall(b"nonsense\r\n" * 9), "does not answer"),
    (lambda one: one.sendall(b"HTTP/1.1 503 No\r\n\r\n"), "answers 503"), (lambda one: None, "does not answer")])
def test_invalid_http_response_is_unhealthy_within_the_timeout(runtime, answer, said):
    with server(answer) as port, pytest.raises(health.Unhealthy, match=said):
        health.check(runtime, "c", Health(http=f"http://127.0.0.1:{port}/", timeout=0.3), lambda: Masker(()))


@pytest.mark.parametrize("status", [200, 302, 404])
def test_http_response_below_500_is_healthy(runtime, status):
    with server(lambda one: one.sendall(b"HTTP/1.1 %d So\r\nLocation: file:///etc/shadow\r\n\r\n" % status)) as port:
        health.check(runtime, "c", Health(http=f"http://127.0.0.1:{port}/path?query", timeout=5),
                     lambda: Masker(()))
