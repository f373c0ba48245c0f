"""Options of a console proxy. Each test starts its own proxy beside that of the suite."""

import contextlib
import socket
import ssl
import subprocess
import threading
import time

import msgspec
import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from nova import exception
from nova.conf import CONF
from nova.console import streams
from nova.console.authorization import ConnectionDenied, TokenAuthorizer
from nova.console.service import NOVNC, ConsoleProxy
from nova.objects.base import new_uuid
from tests.certificates import Authority
from tests.functional.client import wait_for
from tests.functional.consoles import Screen, ended, is_closed, opened, token_of


@pytest.fixture
def proxy(suite, tmp_path):
    """Return a function that starts a proxy with [console] options (``top``: without a group) and returns its port."""
    started = []

    def proxy(top=None, **options):
        CONF.set_override("novncproxy_port", 0, group="vnc")
        for group, given in (("console", options), (None, {"web": str(tmp_path), **(top or {})})):
            for name, value in given.items():
                CONF.set_override(name, value, group=group)
        made = ConsoleProxy(suite.transport, NOVNC)
        made.start()
        started.append(made)
        return made.port

    yield proxy
    for each in started:
        each.stop()
    CONF.clear_override("novncproxy_port", group="vnc")
    for name in ("guest_networks", "max_connections", "ssl_minimum_version", "rate_limit_address"):
        CONF.clear_override(name, group="console")
    for name in ("web", "cert", "key", "ssl_only"):
        CONF.clear_override(name)


@pytest.fixture
def token(member, flavor, image_id):
    """Return a function that creates a console token of a running server; ``scheme`` is that of the proxy's URL."""
    def token(scheme="http"):
        CONF.set_override("novncproxy_base_url", f"{scheme}://127.0.0.1/vnc_auto.html", group="vnc")
        uuid = member.boot(flavor, image_id)
        member.wait(uuid, "ACTIVE")
        asked = {"remote_console": {"protocol": "vnc", "type": "novnc"}}
        return token_of(member.post(f"/servers/{uuid}/remote-consoles", asked)["remote_console"]["url"])

    yield token
    CONF.clear_override("novncproxy_base_url", group="vnc")


def test_proxy_with_ssl_only_accepts_tls_connections_only(proxy, token, tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("proxy")
    port = proxy({"cert": pair.certificate, "key": pair.key, "ssl_only": True}, ssl_minimum_version="tlsv1_3")
    (tmp_path / "hello.html").write_text("<p>hello</p>")
    page = requests.get(f"https://127.0.0.1:{port}/hello.html", verify=authority.file, timeout=10)
    assert page.text == "<p>hello</p>"
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{port}/hello.html", timeout=10)
    trusting = ssl.create_default_context(cafile=authority.file)
    told = token("https")
    with opened(port, told, scheme="wss", ssl=trusting, origin=f"https://127.0.0.1:{port}") as websocket:
        assert Screen(websocket).ask() == 0x2040FF
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        opened(port, told, scheme="wss", ssl=trusting)


def test_proxy_with_ssl_only_requires_a_valid_certificate_at_start(proxy, tmp_path):
    with pytest.raises(exception.InvalidInput, match="require cert"):
        proxy({"ssl_only": True})
    (tmp_path / "cert.pem").write_text("none")
    with pytest.raises(exception.InvalidInput, match="is invalid"):
        proxy({"ssl_only": True, "cert": str(tmp_path / "cert.pem")})


def test_proxy_connects_only_to_addresses_in_guest_networks(proxy, token):
    told = token()
    with opened(proxy(guest_networks=["127.0.0.0/8"]), told) as websocket:
        assert Screen(websocket).ask() == 0x2040FF
    with opened(proxy(guest_networks=["10.9.0.0/16"]), told) as websocket:
        assert ended(websocket) == (1011, "The console cannot be reached.")


def test_invalid_console_host_name_closes_the_connection(proxy, token, suite, monkeypatch):
    """The host reports the console address, and the proxy must not trust it."""
    driver = suite.compute.machine.driver
    real = driver.consoles.address
    monkeypatch.setattr(driver.consoles, "address", lambda *asked: msgspec.structs.replace(
        real(*asked), host="x" * 64 + ".example"))
    with opened(proxy(), token()) as websocket:
        assert ended(websocket) == (1011, "The console cannot be reached.")


def test_connections_above_max_connections_are_closed_at_once(proxy, token):
    port, told = proxy(max_connections=2), token()
    refusals = (ConnectionClosed, InvalidHandshake, OSError, EOFError)
    with contextlib.ExitStack() as both:
        for _each in range(2):
            Screen(both.enter_context(opened(port, told)))
        with pytest.raises(refusals):
            opened(port, told)

    def again():
        with contextlib.suppress(*refusals), opened(port, told) as websocket:
            return Screen(websocket).width

    assert wait_for(again, reason="the proxy accepts connections after the others are closed") == 64


def test_connections_without_tls_handshake_count_towards_the_limits(proxy, token, tmp_path):
    """Silent clients do not exhaust the proxy, and connections per client address are limited."""
    authority = Authority(tmp_path)
    pair = authority.issue("proxy")
    trusting, told = ssl.create_default_context(cafile=authority.file), token("https")
    for most, options in ((3, {"max_connections": 4}), (64, {"max_connections": 1000})):
        port = proxy({"cert": pair.certificate, "key": pair.key}, **options)
        with contextlib.ExitStack() as stack:
            screen = Screen(stack.enter_context(opened(port, told, scheme="wss", ssl=trusting)))
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _each in range(80)]
            wait_for(lambda: sum(not is_closed(one) for one in silent) == most)  # noqa: B023
            assert screen.ask() == 0x2040FF


def test_rate_limited_client_gets_429_with_retry_after(proxy, tmp_path):
    """The limit covers static pages and token checks."""
    port = proxy(rate_limit_address="3/600")
    (tmp_path / "hello.html").write_text("<p>hello</p>")
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    asked = [requests.get(f"http://127.0.0.1:{port}/hello.html", headers=headers, timeout=10)
             for headers in ({}, upgrade, {}, {}, upgrade)]
    assert [answer.status_code for answer in asked] == [200, 403, 200, 429, 429]
    assert 0 < int(asked[-1].headers["Retry-After"]) <= 200


def test_invalid_rate_limit_is_refused_at_start(proxy):
    with pytest.raises(exception.InvalidInput, match="rate_limit_address"):
        proxy(rate_limit_address="often")


def test_proxy_disconnects_client_that_leaves_pongs_unread(suite, member, flavor, image_id):
    uuid = member.boot(flavor, image_id)
    member.wait(uuid, "ACTIVE")
    asked = {"remote_console": {"protocol": "serial", "type": "serial"}}
    told = token_of(member.post(f"/servers/{uuid}/remote-consoles", asked)["remote_console"]["url"])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", suite.consoles["nova-serialproxy"].port))
        client.sendall(f"GET /?token={told} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 101"
        with pytest.raises(OSError):
            client.sendall((b"\x89\xfd\0\0\0\0" + b"x" * 125) * 300_000)


def test_request_with_two_upgrade_headers_is_served_as_http(proxy):
    with socket.create_connection(("127.0.0.1", proxy()), 10) as client:
        client.sendall(b"GET /none.html HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nUpgrade: other\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 404"


# Requests of load balancers and simple clients -> status and body of the response, with and without web pages.
_FRONT_ENDS = {
    "OPTIONS / HTTP/1.0": (200, b""), "OPTIONS * HTTP/1.1": (200, b""), "OPTIONS /vnc.html HTTP/1.1": (200, b""),
    "GET /healthcheck HTTP/1.0": (200, b"OK"), "GET /healthcheck?detailed HTTP/1.1": (200, b"OK"),
    "HEAD /healthcheck HTTP/1.0": (200, b"")}
_PAGES = {"GET /vnc.html HTTP/1.0": (200, b"page"), "HEAD /vnc.html HTTP/1.1": (200, b""),
          "GET http://cloud:6080/vnc.html?x=http://y/ HTTP/1.1": (200, b"page"), "HEAD /none.html HTTP/1.0": (404, b"")}


@pytest.mark.parametrize("web", [True, False], ids=["web pages", "no web pages"])
def test_requests_of_load_balancers_to_a_console_proxy_are_answered(proxy, tmp_path, web):
    (tmp_path / "vnc.html").write_text("page")
    port = proxy(top=None if web else {"web": str(tmp_path / "none")})
    found, wanted = {}, {**_FRONT_ENDS, **(_PAGES if web else {})}
    for line in wanted:
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            host = "" if line.endswith("1.0") else "Host: x\r\n"
            client.sendall(f"{line}\r\n{host}\r\n".encode())
            head, _blank, body = b"".join(iter(lambda client=client: client.recv(65536), b"")).partition(b"\r\n\r\n")
            found[line] = int(head.split()[1]), body
            assert b"\r\nAllow: GET, HEAD, OPTIONS" in head or not line.startswith("OPTIONS")
    print(f"answered: {', '.join(found)}")
    assert found == wanted


def test_pending_token_checks_of_a_client_do_not_block_other_clients(proxy, monkeypatch, tmp_path):
    port, answers, asked = proxy(), threading.Event(), []
    (tmp_path / "hello.html").write_text("<p>hello</p>")

    def authorize(_authorizer, token):
        asked.append(token)
        answers.wait(60)
        raise ConnectionDenied("The token is not valid.")

    monkeypatch.setattr(TokenAuthorizer, "authorize", authorize)
    many, one = new_uuid(), new_uuid()
    with contextlib.ExitStack() as stack:
        stack.callback(answers.set)

        def ask(token, address):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30, (address, 0)))
            client.sendall(f"GET /?token={token} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n".encode())
            return client

        for _time in range(40):
            ask(many, "127.0.0.2")
        wait_for(lambda: len(asked) == 8, reason="all threads are waiting")
        assert requests.get(f"http://127.0.0.1:{port}/hello.html", timeout=30).text == "<p>hello</p>"
        other = ask(one, "127.0.0.3")
        assert requests.get(f"http://127.0.0.1:{port}/hello.html", timeout=30).text == "<p>hello</p>"  # queued
        answers.set()
        assert other.recv(12) == b"HTTP/1.1 403"
    assert asked.index(one) < 20


@pytest.fixture
def serial(suite, member, flavor, image_id):
    """Yield a raw WebSocket connection to the serial port of a running server; the client never sends a pong."""
    uuid = member.boot(flavor, image_id)
    member.wait(uuid, "ACTIVE")
    asked = {"remote_console": {"protocol": "serial", "type": "serial"}}
    token = token_of(member.post(f"/servers/{uuid}/remote-consoles", asked)["remote_console"]["url"])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", suite.consoles["nova-serialproxy"].port))
        client.sendall(f"GET /?token={token} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1)
        assert head.startswith(b"HTTP/1.1 101")
        yield client


# A masked binary message of 125 bytes (the mask is zero). A guest's serial port echoes it.
_TYPED = b"\x82\xfd\0\0\0\0" + b"x" * 124 + b"\n"
_HEARTBEAT = b"\x8a\x00"


@pytest.fixture
def quick_heartbeat(monkeypatch):
    """Send a heartbeat every 0.05 s and disconnect clients that read nothing for a second."""
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL", 0.05)
    monkeypatch.setattr(streams, "READ_TIMEOUT", 1.0)


def test_a_client_that_sends_no_pongs_stays_connected(quick_heartbeat, serial):
    """Heartbeats are empty pongs, because simple clients treat every frame as data and do not answer pings."""
    heard = b""
    while heard.count(_HEARTBEAT) < 40:
        heard += serial.recv(4096)
    assert b"\x89" not in heard, "the proxy sent a ping"
    serial.sendall(_TYPED)
    while b"x" * 100 not in heard:
        heard += serial.recv(4096)


def test_client_that_does_not_read_is_disconnected(quick_heartbeat, serial):
    def send_until(end):
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                serial.sendall(_TYPED * 200)

    serial.settimeout(0.5)
    with pytest.raises(ConnectionError):
        send_until(time.monotonic() + 20)


def test_client_connections_have_tcp_keepalive(serial):
    port = serial.getsockname()[1]
    shown = subprocess.run(["ss", "-Htno", "state", "established", "dport", "=", f":{port}"],
                           check=True, capture_output=True, text=True).stdout
    assert "timer:(keepalive," in shown
