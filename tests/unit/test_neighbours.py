"""How other services are asked: those that do not answer must not hold all threads."""

import concurrent.futures
import http.server
import itertools
import threading

import pytest

import nova.conf
from nova import context, neighbours
from nova.conf import CONF
from nova.neighbours import Neighbour, Unreachable

CTX = context.RequestContext(overwrite=False)


@pytest.fixture
def slow():
    """(url, let go): a service that says nothing until it is let go."""
    go = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/quick":
                go.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args):
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", go
    go.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def neighbour(slow, monkeypatch):
    nova.conf.register()
    nova.conf.register_asked_services()
    CONF.set_override("endpoint_override", slow[0], group="neutron")
    monkeypatch.setattr(neighbours, "_AT_ONCE", 4)
    monkeypatch.setattr(neighbours, "_WHILE_SUSPECT", 1)
    monkeypatch.setattr(neighbours, "_SUSPECT", 0.2)
    yield Neighbour("neutron", {})
    CONF.clear_override("endpoint_override", group="neutron")


def ask(neighbour, token="user:project", path="/"):  # noqa: S107
    try:
        return neighbour.request(CTX, "GET", path, token, connect_retries=0).status_code
    except Unreachable as error:
        return str(error)


def test_few_wait_for_a_service_that_says_nothing_and_all_can_ask_one_that_answers_again(neighbour, slow, monkeypatch):
    monkeypatch.setattr(neighbours, "_SUSPECT", 2.0)  # so long they wait for their turn, on a busy machine too
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, neighbour) for _number in range(12)]
        first = itertools.islice(concurrent.futures.as_completed(asked, 60), 8)
        assert {future.result() for future in first} == {"4 requests wait for its answer already"}
        assert ask(neighbour) == "4 requests wait for its answer already"
        slow[1].set()
        assert [future.result(60) for future in asked].count(200) == 4
        assert list(pool.map(lambda _number: ask(neighbour), range(40))) == [200] * 40


def test_what_nova_asks_for_itself_is_not_counted(neighbour, slow):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, neighbour, "") for _number in range(8)]
        assert concurrent.futures.wait(asked, 1).done == set()
        slow[1].set()
        assert [future.result(60) for future in asked] == [200] * 8


def test_one_answer_that_takes_long_stands_in_nobodys_way(neighbour, slow):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        held = [pool.submit(ask, neighbour) for _number in range(3)]
        assert concurrent.futures.wait(held, 0.5).done == set()
        assert ask(neighbour, "", "/quick") == 200  # what Nova asks for itself shows that somebody answers
        assert ask(neighbour, path="/quick") == 200
        slow[1].set()
        assert [future.result(60) for future in held] == [200] * 3
