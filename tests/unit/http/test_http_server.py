"""The API's HTTP server over real sockets: slow clients, limits, malformed requests and persistent connections."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from nova import conf
from nova.api import errors, service
from nova.http.exchange import Exchange
from nova.http.limits import Limits, among
from nova.http.server import Server
from tests.polling import poll

THREADS = 2


class Served:
    """A server with two threads that echoes requests: /big sends 8 MB, /bad raises, /slow waits for :attr:`go`."""

    def __init__(self, **limits: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        self.go = threading.Event()
        conf.register()
        self.socket = service.listen("127.0.0.1", 0)
        self.port: int = self.socket.getsockname()[1]
        chosen = Limits(**{"header_size": 4096, "body_size": 1000, **limits})
        self.server = Server(self.socket, self._answer, THREADS, chosen, errors.body, timeout=10)
        self.server.prepare()
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.seen.append(environ)
        path = environ["PATH_INFO"]
        if path == "/bad":
            raise RuntimeError("broken")
        if path == "/slow":
            assert self.go.wait(60)
        body = b"x" * 8_000_000 if path == "/big" else environ["wsgi.input"].read() or path.encode()
        more = [("X-Said", "a\r\nEvil: b")] if path == "/split" else []
        start("200 OK", [("Content-Length", str(len(body))), *more])
        return [body]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def say(self, text: bytes) -> bytes:
        """Return everything that the server sends until it closes the connection."""
        with self.connect() as client:
            client.sendall(text)
            return everything(client)

    def get(self, path: str = "/fine", body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST" if body is not None else "GET", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def end(self) -> None:
        self.go.set()
        self.server.stop()
        self._thread.join(60)


def everything(client: socket.socket) -> bytes:
    found = b""
    while got := client.recv(65536):
        found += got
    return found


@pytest.fixture
def make() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def one(**limits: Any) -> Served:
        made.append(Served(**limits))
        return made[-1]

    yield one
    for served in made:
        served.end()


@pytest.fixture
def served(make: Callable[..., Served]) -> Served:
    return make()


# -- slow clients ------------------------------------------------------------------------------------
@pytest.mark.parametrize("half", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
                                  b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
                                  b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"])
def test_incomplete_requests_occupy_no_thread(served: Served, half: bytes) -> None:
    clients = [served.connect() for _ in range(10 * THREADS)]
    for client in clients:
        client.sendall(half)
    assert served.get() == (200, b"/fine")
    for client in clients:
        client.close()


def test_unread_responses_occupy_no_thread(served: Served) -> None:
    clients = [served.connect() for _ in range(2 * THREADS)]
    for client in clients:
        client.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    assert served.get() == (200, b"/fine")
    answer = http.client.HTTPResponse(clients[0])
    answer.begin()
    assert answer.read() == b"x" * 8_000_000
    for client in clients:
        client.close()


def test_idle_connections_keep_no_response_in_memory(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _number in range(3):
            client = stack.enter_context(served.connect())
            client.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = http.client.HTTPResponse(client)
            answer.begin()
            while answer.read(65536):
                pass
        eventually(lambda: tracemalloc.get_traced_memory()[0] < 8_000_000)


def test_incomplete_request_gets_408_after_the_receive_timeout(make: Callable[..., Served]) -> None:
    served = make(receive=0.2)
    answer = served.say(b"GET / HTTP/1.1\r\nHost:")
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"within 0.2 seconds" in answer
    assert served.seen == []


def test_request_received_in_pieces_is_reassembled(served: Served) -> None:
    with served.connect() as client:
        for piece in (b"\r\nPO", b"ST /x HTTP/1.1\r",
                      b"\nHost: x\r\nContent-Length: 6\r\nConnection: close\r\n\r", b"\nab",
                      b"cdef"):
            client.sendall(piece)
            time.sleep(0.02)
        assert everything(client).endswith(b"\r\n\r\nabcdef")


# -- sizes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("request_", "status"), [
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 5000 + b"\r\n\r\n", 431),
    (b"GET /" + b"y" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 3000, 431),
])
def test_oversized_request_heads_are_refused(served: Served, request_: bytes, status: int) -> None:
    answer = served.say(request_)
    assert answer.split()[1] == str(status).encode()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["computeFault"]["code"] == status
    assert served.seen == []


def test_an_endless_header_does_not_block_other_clients(served: Served) -> None:
    with served.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
        for _ in range(1000):
            client.sendall(b"y" * 65536)
    assert served.get() == (200, b"/fine")


@pytest.mark.parametrize("chunked", [True, False])
def test_application_gets_the_length_of_an_oversized_body_without_its_data(served: Served, chunked: bool) -> None:
    body: Any = iter([b"x" * 600, b"y" * 600]) if chunked else b"x" * 3_000_000
    assert served.get("/x", body) == (200, b"/x")
    assert int(served.seen[0]["CONTENT_LENGTH"]) > 1000


def test_body_and_header_at_their_size_limits_are_accepted(served: Served) -> None:
    assert served.get("/x", b"b" * 1000, **{"X-Long": "h" * 3900}) == (200, b"b" * 1000)
    assert served.get("/x", iter([b"b" * 999, b"c"])) == (200, b"b" * 999 + b"c")


# -- connections -------------------------------------------------------------------------------------
def test_connections_above_the_limit_per_client_get_429(make: Callable[..., Served]) -> None:
    served = make(per_client=5)
    silent = [served.connect() for _ in range(5)]
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.request("GET", "/fine")
    answer = connection.getresponse()
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "1"
    assert json.loads(answer.read())["overLimit"]["retryAfter"] == "1"
    connection.close()
    for client in silent:
        client.close()
    eventually(lambda: served.get() == (200, b"/fine"))


def test_trusted_proxy_has_no_connection_limit(make: Callable[..., Served]) -> None:
    served = make(per_client=2, trusted=among(["127.0.0.0/8"]))
    silent = [served.connect() for _ in range(10)]
    assert served.get() == (200, b"/fine")
    for client in silent:
        client.close()


def test_at_the_connection_limit_the_largest_client_loses_an_idle_connection(make: Callable[..., Served]) -> None:
    served = make(total=10, per_client=10)
    silent = [served.connect() for _ in range(9)]
    neighbour = socket.create_connection(("127.0.0.1", served.port), 30, ("127.0.0.2", 0))
    late = socket.create_connection(("127.0.0.1", served.port), 30, ("127.0.0.3", 0))
    for client in (neighbour, late):
        client.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert everything(client).endswith(b"/x")
        client.close()
    assert silent[0].recv(1) == b"", "the oldest idle connection is still open"
    for client in silent:
        client.close()


def test_at_the_connection_limit_the_largest_client_gets_503(make: Callable[..., Served]) -> None:
    served = make(total=10, per_client=20)
    silent = [served.connect() for _ in range(10)]
    answer = served.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 1\r\n" in answer
    for client in silent:
        client.close()


# -- requests that a proxy might parse differently ---------------------------------------------------
@pytest.mark.parametrize(("request_", "status"), [
    (b"GET / HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nName : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nName: x\r\n folded\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nName: a\nOther: b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"\x16\x03\x01 nonsense", 400),
    (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET http:///path HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET http://user@x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET http://x/#part HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET http://x#part HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\n\r\n", 505),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\nx", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 300 + b"\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 1000, 431),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n"
     b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\n\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n folded\r\n\r\n", 400),
])
def test_malformed_or_ambiguous_requests_are_refused(served: Served, request_: bytes, status: int) -> None:
    answer = served.say(request_)
    assert answer.split()[1] == str(status).encode(), answer
    assert b"\r\nConnection: close\r\n" in answer
    assert served.seen == []


@pytest.mark.parametrize(("target", "host", "path", "query"), [
    (b"http://cloud:8774/v2.1/servers?a=b", "cloud:8774", "/v2.1/servers", "a=b"), (b"HTTP://cloud/", "cloud", "/", ""),
    (b"https://cloud", "cloud", "/", ""), (b"http://[::1]:1?a=http://b/", "[::1]:1", "/", "a=http://b/"),
    (b"http://cloud//a%2Fb", "cloud", "//a%2Fb", ""), (b"/http://cloud/", "x", "/http://cloud/", "")])
def test_absolute_request_target_overrides_the_host_header(
        served: Served, target: bytes, host: str, path: str, query: str) -> None:
    """Accept the absolute form that clients send to proxies; its host takes precedence over the header."""
    answer = served.say(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    environ = served.seen[0]
    assert [environ[name] for name in ("HTTP_HOST", "PATH_INFO", "QUERY_STRING")] == [host, path, query]


@pytest.mark.parametrize("at", range(1, 22))
def test_end_of_a_chunked_body_may_arrive_in_pieces(at: int) -> None:
    exchange, end = Exchange(1000, 1000), b"00;a=b\r\nX: y\r\nY: z\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
    whole = exchange.collect(bytearray(head + end[:at])) or exchange.collect(bytearray(end[at:] + b"GET /"))
    assert (whole, bytes(exchange.body), exchange.pending) == (True, b"x", True)


def test_headers_with_underscores_are_dropped(served: Served) -> None:
    assert served.get(**{"X_Forwarded_Host": "evil", "X-Real": "1"})[0] == 200
    assert "HTTP_X_FORWARDED_HOST" not in served.seen[0]
    assert served.seen[0]["HTTP_X_REAL"] == "1"


def test_repeated_headers_are_joined_and_the_path_is_decoded(served: Served) -> None:
    served.say(b"GET /a%20b%2Fc?q=%2F HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a: 2\r\nConnection: close\r\n\r\n")
    assert served.seen[0]["HTTP_X_A"] == "1, 2"
    assert served.seen[0]["PATH_INFO"] == "/a b%2Fc"
    assert served.seen[0]["QUERY_STRING"] == "q=%2F"
    assert served.seen[0]["REMOTE_ADDR"] == "127.0.0.1"


# -- persistent connections --------------------------------------------------------------------------
def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
                       b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                       b"3;a=b\r\ntwo\r\n0\r\nTrailer: x\r\n\r\n"
                       b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /4")
        answers = everything(client)
    assert [answers.count(text) for text in (b"\r\n\r\n/1H", b"\r\n\r\ntwoH", b"\r\n\r\n/3")] == [1, 1, 1]
    assert [one["PATH_INFO"] for one in served.seen] == ["/1", "/2", "/3"]


def test_http_1_0_request_needs_no_host_and_ends_the_connection(served: Served) -> None:
    answer = served.say(b"GET /1 HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET /2 HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n/1")
    assert len(served.seen) == 1


def test_expect_100_continue_is_answered_before_the_body(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n"
                       b"Connection: close\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abc")
        assert everything(client).endswith(b"\r\n\r\nabc")


def test_expect_100_continue_with_an_oversized_body_gets_no_100(served: Served) -> None:
    answer = served.say(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\nExpect: 100-continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_protocol_upgrades_are_ignored(served: Served, protocol: bytes) -> None:
    with served.connect() as client:
        client.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
                       b"GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = everything(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.endswith(b"/2")


def test_response_header_with_a_line_break_becomes_a_500(served: Served) -> None:
    status, body = served.get("/split")
    assert status == 500
    assert b"Evil" not in body


def test_head_response_has_no_body(served: Served) -> None:
    answer = served.say(b"HEAD /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"Content-Length: 2\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_application_error_is_a_500_without_details(served: Served) -> None:
    status, body = served.get("/bad")
    assert status == 500
    assert b"broken" not in body
    assert served.get() == (200, b"/fine")


def test_stop_completes_active_requests_and_closes_idle_connections(served: Served) -> None:
    idle, asking = served.connect(), served.connect()
    idle.sendall(b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle.recv(1000).endswith(b"/fine")
    asking.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    eventually(lambda: len(served.seen) == 2)
    stopping = threading.Thread(target=served.server.stop)
    stopping.start()
    assert idle.recv(1000) == b""
    served.go.set()
    assert b"Connection: close\r\n" in everything(asking)
    stopping.join(60)
    with pytest.raises(ConnectionRefusedError):
        served.connect()


def eventually(true: Callable[[], bool], seconds: float = 30) -> None:
    assert poll(true, seconds, 0.02)


def test_address_that_a_killed_process_still_has_is_awaited() -> None:
    """Workers of a killed process close the socket a moment later than it ends."""
    conf.register()
    former = service.listen("127.0.0.1", 0)
    address = former.getsockname()
    timer = threading.Timer(0.3, former.close)
    timer.start()
    with service.listen(*address) as made:
        assert made.getsockname() == address
    timer.join()


def test_address_of_another_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    conf.register()
    monkeypatch.setattr(service, "_RELEASE", 0.2)
    with service.listen("127.0.0.1", 0) as other, pytest.raises(OSError, match="Address already in use"):
        service.listen(*other.getsockname())
