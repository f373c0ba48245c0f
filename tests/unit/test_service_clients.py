"""Clients of external services: a service that does not respond must not occupy all threads."""

import concurrent.futures
import http.server
import itertools
import threading

import pytest

import nova.conf
from nova import context, service_clients
from nova.conf import CONF
from nova.service_clients import ServiceClient, Unreachable

CTX = context.RequestContext(overwrite=False)


@pytest.fixture
def slow():
    """Return the URL of a service that does not respond, and the event that lets it respond."""
    released = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/quick":
                released.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args):
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", released
    released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(slow, monkeypatch):
    nova.conf.register()
    nova.conf.register_external_services()
    CONF.set_override("endpoint_override", slow[0], group="neutron")
    monkeypatch.setattr(service_clients, "_MAX_PENDING", 4)
    monkeypatch.setattr(service_clients, "_MAX_PENDING_SUSPECT", 1)
    monkeypatch.setattr(service_clients, "_SUSPECT_AFTER", 0.2)
    yield ServiceClient("neutron", {})
    CONF.clear_override("endpoint_override", group="neutron")


def get(client, token="user:project", path="/"):  # noqa: S107
    try:
        return client.request(CTX, "GET", path, token, connect_retries=0).status_code
    except Unreachable as error:
        return str(error)


def test_pending_requests_to_a_silent_service_are_limited(client, slow, monkeypatch):
    monkeypatch.setattr(service_clients, "_SUSPECT_AFTER", 2.0)  # long enough for a busy machine
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(get, client) for _number in range(12)]
        first = itertools.islice(concurrent.futures.as_completed(futures, 60), 8)
        assert {future.result() for future in first} == {"4 requests are already waiting for a response"}
        assert get(client) == "4 requests are already waiting for a response"
        slow[1].set()
        assert [future.result(60) for future in futures].count(200) == 4
        assert list(pool.map(lambda _number: get(client), range(40))) == [200] * 40


def test_requests_with_novas_own_credentials_are_not_limited(client, slow):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(get, client, "") for _number in range(8)]
        assert concurrent.futures.wait(futures, 1).done == set()
        slow[1].set()
        assert [future.result(60) for future in futures] == [200] * 8


def test_slow_responses_do_not_block_other_requests(client, slow):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        slow_requests = [pool.submit(get, client) for _number in range(3)]
        assert concurrent.futures.wait(slow_requests, 0.5).done == set()
        assert get(client, "", "/quick") == 200  # a response to Nova's own request shows that the service is alive
        assert get(client, path="/quick") == 200
        slow[1].set()
        assert [future.result(60) for future in slow_requests] == [200] * 3
