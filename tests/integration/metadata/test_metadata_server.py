"""The HTTP server of the metadata service over real sockets, with well-behaved and slow clients."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time

import pytest

from nova.api.guest_metadata import server as server_module
from nova.api.guest_metadata.server import Server
from nova.api.guest_metadata.service import listen


class App:
    """Echoes requests; /slow waits, /big has a long response, /bad raises an error."""

    def __init__(self):
        self.go = threading.Event()
        self.seen = []

    def __call__(self, environ, start_response):
        self.seen.append(environ)
        path = environ["PATH_INFO"]
        if path == "/slow":
            self.go.wait(5)
        if path == "/bad":
            raise RuntimeError("broken")
        body = b"x" * 3_000_000 if path == "/big" else environ["wsgi.input"].read() or path.encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


@contextlib.contextmanager
def serving(**options):
    """Start a server for one network and yield server, application and port."""
    app = App()
    server = Server(app, **options)
    server.start()
    sock = listen(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server.add("one", sock, {"nova.network_id": "n1"})
    yield server, app, port
    app.go.set()
    server.stop(timeout=1)


@pytest.fixture
def served():
    with serving(threads=2) as made:
        yield made


def get(port, path, method="GET", body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def raw(port, data, timeout=5):
    with socket.create_connection(("127.0.0.1", port), timeout) as sock:
        sock.sendall(data)
        found = b""
        while chunk := sock.recv(65536):
            found += chunk
        return found


def test_requests_reach_the_application(served):
    _server, app, port = served
    assert get(port, "/a%20b?x=1") == (200, b"/a b")
    assert app.seen[0]["QUERY_STRING"] == "x=1"
    assert app.seen[0]["REMOTE_ADDR"] == "127.0.0.1"
    assert app.seen[0]["nova.network_id"] == "n1"
    assert get(port, "/", "POST", b"body") == (200, b"body")
    assert get(port, "/big")[1] == b"x" * 3_000_000


def test_split_request_body_with_100_continue(served):
    _server, _app, port = served
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\nHost: m\r\nContent-Le")
        time.sleep(0.05)
        sock.sendall(b"ngth: 6\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue")
        sock.sendall(b"abc")
        time.sleep(0.05)
        sock.sendall(b"def")
        answer = b""
        while chunk := sock.recv(1000):
            answer += chunk
    assert answer.endswith(b"abcdef")


@pytest.mark.parametrize(("request_", "status"), [
    (b"GET / HTTP/1.1\r\nHost: m\r\nbroken\r\n\r\n", b"400"),
    (b"\x16\x03\x01 nonsense\r\n\r\n", b"400"),
    (b"GET nowhere HTTP/1.1\r\nHost: m\r\n\r\n", b"400"),
    (b"GET / HTTP/2.0\r\n\r\n", b"505"),
    (b"POST / HTTP/1.1\r\nHost: m\r\nContent-Length: -1\r\n\r\n", b"400"),
    (b"POST / HTTP/1.1\r\nHost: m\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
    (b"POST / HTTP/1.1\r\nHost: m\r\nContent-Length: 99999999\r\n\r\n", b"413"),
    (b"POST / HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n0\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: m\r\nX: " + b"y" * 20000 + b"\r\n\r\n", b"431"),
])
def test_malformed_requests_are_refused_with_their_status(served, request_, status):
    _server, app, port = served
    assert raw(port, request_).split()[1] == status
    assert app.seen == []


@pytest.mark.parametrize("request_", [
    b"GET /x HTTP/1.0\n\n", b"GET /x HTTP/1.0\r\n\r\n", b"GET http://169.254.169.254/x HTTP/1.1\r\nHost: m\r\n\r\n",
    b"GET /x HTTP/1.1\nHost: m\nX: a\n folded\n\n"])
def test_simple_http_clients_are_answered(served, request_):
    _server, _app, port = served
    assert raw(port, request_).endswith(b"\r\n\r\n/x")


@pytest.mark.parametrize("request_", [
    b"GET /x HTTP/1.1\r\nHost: m\r\nX: a\nX-Instance-ID: b\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: m\r\nX: a\r\n folded\r\n\r\n"])
def test_ambiguous_headers_of_a_proxy_are_refused(served, request_):
    """A proxy may pass on a header of a guest in which this server alone would find another header."""
    server, app, _port = served
    sock = listen(("127.0.0.1", 0))
    server.add("proxies", sock, trusted=True)
    assert raw(sock.getsockname()[1], request_).split()[1] == b"400"
    assert app.seen == []


def test_application_error_returns_an_empty_500_response(served):
    _server, _app, port = served
    status, body = get(port, "/bad")
    assert (status, body) == (500, b"")


def test_silent_connections_do_not_block_other_connections(served, monkeypatch):
    _server, _app, port = served
    monkeypatch.setattr(server_module, "PER_PEER", 50)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert get(port, "/fine")[0] == 200
    for sock in silent:
        sock.close()


def test_connections_per_peer_are_limited(served):
    _server, _app, port = served
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(server_module.PER_PEER)]
    time.sleep(0.1)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        get(port, "/fine")
    for sock in silent:
        sock.close()
    time.sleep(0.1)
    assert get(port, "/fine")[0] == 200


# --- projects, distinguished by the third number of their addresses --------------------------------------
@pytest.fixture
def shared():
    """Start a server with one thread for two projects."""
    with serving(threads=1, tenant_of=lambda _network, address: address.split(".")[2]) as made:
        yield made


def connected(port, address):
    return socket.create_connection(("127.0.0.1", port), 30, (address, 0))


def asked(port, address, path):
    """Open a connection and send a request."""
    sock = connected(port, address)
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: m\r\n\r\n".encode())
    return sock


def answer(sock):
    found = b""
    with sock:
        while chunk := sock.recv(65536):
            found += chunk
    return found


@pytest.mark.parametrize(("per_tenant", "total"), [(10, 1000), (1000, 20)])
def test_project_with_many_guests_does_not_block_another_project(shared, monkeypatch, per_tenant, total):
    server, _app, port = shared
    monkeypatch.setattr(server_module, "PER_TENANT", per_tenant)
    monkeypatch.setattr(server_module, "TOTAL", total)
    silent = [connected(port, f"127.0.1.{number}") for number in range(1, 41)]
    assert b"/quiet" in answer(asked(port, "127.0.2.1", "/quiet"))
    assert b"/noisy" in answer(asked(port, "127.0.1.99", "/noisy")), "the oldest silent connections were not closed"
    assert len(server.connections) <= min(per_tenant, total) + 1
    for sock in silent:
        sock.close()


def test_threads_are_shared_fairly_between_projects(shared):
    _server, app, port = shared
    noisy = [asked(port, "127.0.1.1", "/slow")]
    while not app.seen:
        time.sleep(0.01)
    noisy += [asked(port, f"127.0.1.{number}", "/noisy") for number in range(2, 9)]
    time.sleep(0.3)
    quiet = asked(port, "127.0.2.1", "/quiet")
    time.sleep(0.3)
    app.go.set()
    for sock in [*noisy, quiet]:
        assert b"200 OK" in answer(sock)
    assert [environ["PATH_INFO"] for environ in app.seen].index("/quiet") <= 2


def test_incomplete_request_is_closed_at_the_deadline(served, monkeypatch):
    _server, _app, port = served
    monkeypatch.setattr(server_module, "DEADLINE", 0.2)
    started = time.monotonic()
    assert raw(port, b"GET / HTTP/1.1\r\nHost: m\r\n") == b""
    assert time.monotonic() - started < 3


def test_removed_socket_refuses_connections(served):
    server, _app, port = served
    server.remove("one")
    time.sleep(0.1)
    with pytest.raises(ConnectionRefusedError):
        get(port, "/")


def test_stop_finishes_running_requests(served):
    server, app, port = served
    answers = []
    asking = threading.Thread(target=lambda: answers.append(get(port, "/slow")))
    asking.start()
    while not app.seen:
        time.sleep(0.01)
    threading.Timer(0.2, app.go.set).start()
    server.stop()
    asking.join(5)
    assert answers == [(200, b"/slow")]
