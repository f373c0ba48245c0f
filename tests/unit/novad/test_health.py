"""Health checks of misbehaving components."""

import contextlib
import socket
import threading

import pytest

from nova.novad.deployment.containers import Containers, Unhealthy
from nova.novad.deployment.journal import Deployed
from nova.novad.platform import Component, Health
from nova.novad.runtime.podman import Wanted
from nova.novad.secrets import Secrets
from tests.unit.novad.runtimes import FakeRuntime


@pytest.fixture
def check(tmp_path):
    """Return ``check(health)``, which checks a running component."""
    runtime = FakeRuntime({"i:1": "good"})
    runtime.create(Wanted(name="p-c", image=runtime.fetch("i:1").ident, labels={}, component=Component(image="i")))
    runtime.start("p-c")
    containers = Containers(lambda: "p", None, runtime, None, Secrets(tmp_path / "secrets"), threading.Event())
    return lambda health: containers.check(Deployed(name="c", image="", component=Component(image="i", health=health)))


@contextlib.contextmanager
def server(answer, address="127.0.0.1"):
    """Serve a connection with ``answer(connection)`` and yield the port."""
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
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
def test_invalid_http_response_is_unhealthy_within_the_timeout(check, answer, said):
    with server(answer) as port, pytest.raises(Unhealthy, match=said):
        check(Health(http=f"http://127.0.0.1:{port}/", timeout=0.3))


@pytest.mark.parametrize("health", [{"tcp": "[::1]:{}"}, {"tcp": "::1:{}"}, {"http": "http://[::1]:{}"},
                                    {"http": "http://user:word@[::1]:{}?a#b"}], ids=str)
def test_addresses_of_ipv6_are_checked(check, health):
    with server(lambda one: one.sendall(b"HTTP/1.1 200 So\r\n\r\n"), "::1") as port:
        [(kind, text)] = health.items()
        check(Health(**{kind: text.format(port)}))


@pytest.mark.parametrize("status", [200, 302, 404])
def test_http_response_below_500_is_healthy(check, status):
    with server(lambda one: one.sendall(b"HTTP/1.1 %d So\r\nLocation: file:///etc/shadow\r\n\r\n" % status)) as port:
        check(Health(http=f"http://127.0.0.1:{port}/path?query", timeout=5))
