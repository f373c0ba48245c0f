"""Tokens in requests, and the check of origins of web pages."""

import pytest

from nova.console.authorization import ConnectionDenied, ConnectionRequest, check_origin

TOKEN = "0a1b2c3d-1111-4222-8333-444455556666"


def request_of(path="/", **headers):
    return ConnectionRequest(path, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(("path", "cookie"), [
    (f"/?token={TOKEN}", ""), (f"/websockify?a=b&token={TOKEN}", ""), ("/", f"token={TOKEN}"),
    ("/", f"theme=dark; token={TOKEN}"), (f"/?token={TOKEN}", "token=x"),
])
def test_token_is_read_from_the_query_or_a_cookie(path, cookie):
    assert request_of(path, cookie=cookie).token == TOKEN


@pytest.mark.parametrize(("path", "cookie"), [
    ("/", ""), ("/?token=", ""), (f"/?token={TOKEN}x", ""), (f"/?token={TOKEN.upper()}", ""),
    (f"/?token={{{TOKEN}}}", ""), (f"/?token={TOKEN}&token={TOKEN}", ""), ("/?token=x", f"token={TOKEN}"),
    (f"/token/{TOKEN}", ""), ("/", "token"), ("/", "\x00;=;token=;"), ("http://[/?token=", ""),
])
def test_malformed_token_is_refused(path, cookie):
    with pytest.raises(ConnectionDenied):
        assert request_of(path, cookie=cookie).token


@pytest.mark.parametrize(("origin", "host", "url"), [
    ("http://consoles.example", "consoles.example", "http://consoles.example:6080/vnc_auto.html"),
    ("http://consoles.example:6080", "Consoles.example:443", "http://x/"),
    ("https://[2001:db8::1]:6080", "[2001:db8::1]:6080", "https://x/"),
    ("https://dashboard.example", "consoles.example", "https://x/"),
    ("http://consoles.example", "consoles.example", "ws://x/"),
    ("https://consoles.example", "consoles.example", "wss://x/"),
])
def test_own_pages_and_allowed_origins_can_connect(origin, host, url):
    check_origin(request_of(origin=origin, host=host), ["dashboard.example"], url)


@pytest.mark.parametrize(("origin", "host", "url"), [
    ("http://evil.example", "consoles.example", "http://x/"),
    ("http://consoles.example.evil.example", "consoles.example", "http://x/"),
    ("http://consoles.example@evil.example", "consoles.example", "http://x/"),
    ("http://consoles.example", "consoles.example", "https://x/"),
    ("http://consoles.example", "consoles.example", "wss://x/"),
    ("file://", "", "http://x/"), ("null", "consoles.example", "http://x/"), ("", "", "http://x/"),
    ("http://[", "consoles.example", "http://x/"), ("http://consoles.example", "[", "http://x/"),
    ("http://consoles.example", "consoles.example", "ftp://x/"),
])
def test_other_origins_are_refused(origin, host, url):
    with pytest.raises(ConnectionDenied):
        check_origin(request_of(origin=origin, host=host), [], url)


def test_x_forwarded_proto_determines_the_scheme():
    request = request_of(origin="http://consoles.example", host="consoles.example", x_forwarded_proto="https")
    check_origin(request, [], "https://x/")
