"""Requests of the usual form have the same results as with h11, which reads all others."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.http import messages
from nova.http.exchange import Exchange

HEADER, BODY = 600, 40
HOST = "Host: nova"
PIECES = ("GET", "POST", "HEAD", "PRI", "get", " ", "  ", "\t", "/", "/a%2Fb?x=%20#y", "*", "http://a/b", "HTTP/1.1",
          "HTTP/1.0", "HTTP/2.0", "\r\n", "\n", "\r", "Host: a", "Host:", "Host : a", "X-A: 1", "X_A: 1", ": x", "é: é",
          "X-B:\té", "X-N:\0", "Content-Length: 3", "Content-Length: +3", "Content-Length: 99", "Content-Length: 3, 3",
          "Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: close", "Connection: Keep-Alive",
          "Connection: x, close", "Upgrade: h2c", "abc", "3\r\nabc\r\n0\r\n\r\n", "x" * 300)


def outcome(data: bytes, usual: bool, piece: int) -> list[object]:
    """Return what an exchange makes of the bytes: the requests with their answers, and the refusal at the end."""
    results: list[object] = []
    exchange = Exchange(HEADER, BODY)
    read = messages.Usual.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages.Usual, "read", read if usual else lambda *_: None)
        received = bytearray()
        for start in range(0, len(data), piece):
            received += data[start:start + piece]
            try:
                while exchange.collect(received):
                    answer = exchange.answer("200 OK", [("Date", "today"), ("X", "ü")], b"body",
                                             keep=not exchange.too_long)
                    results.append((exchange.environ, bytes(exchange.body), exchange.too_long, answer.lower()))
                    if exchange.too_long or not exchange.again():
                        return [*results, "end"]
            except messages.Refused as error:
                return [*results, error.status]
    return results


@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(["", f"GET /a?b=c HTTP/1.1\r\n{HOST}\r\n"]),
       st.sampled_from([1, 7, 10_000]))
def test_usual_requests_are_read_as_h11_reads_them(pieces: list[str], start: str, piece: int) -> None:
    data = (start + "".join(pieces)).encode("latin-1")
    assert outcome(data, True, piece) == outcome(data, False, piece)


@given(st.sampled_from(["GET", "POST", "HEAD", "DELETE", "OPTIONS"]), st.sampled_from(["/", "/a/b?c=d", "/%41%2f"]),
       st.lists(st.sampled_from(["X-A: 1", "X-A:2", "Accept: */*", "Connection: close", "Connection: keep-alive",
                                 "Content-Type: application/json", "X-Odd:  a b\t"]), max_size=5),
       st.integers(0, 45), st.sampled_from([1, 30, 10_000]))
def test_sequence_of_requests_is_read_as_h11_reads_it(method: str, path: str, fields: list[str], size: int,
                                                      piece: int) -> None:
    lines = [f"{method} {path} HTTP/1.1", HOST, *fields, *([f"Content-Length: {size}"] if size else []), "", ""]
    data = "\r\n".join(lines).encode() + b"x" * size
    assert outcome(data * 2, True, piece) == outcome(data * 2, False, piece)


def test_usual_request_is_not_given_to_h11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h11.Connection, "receive_data", lambda *_: pytest.fail("h11 was used"))
    exchange = Exchange(HEADER, BODY)
    for _ in range(3):
        received = bytearray(b"POST /a HTTP/1.1\r\nHost: nova\r\nContent-Length: 3\r\n\r\nabcGET")
        assert exchange.collect(received)
        assert (exchange.body, received) == (b"abc", b"GET")
        assert exchange.answer("204 No Content", [], b"", keep=True).startswith(b"HTTP/1.1 204 No Content\r\n")
        assert exchange.again()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("header", [("X", "a\r\nb: c"), ("X", "a\nb"), ("X ", "a"), ("X", "a\0"), ("", "a"),
                                    ("X", "\u20ac")])
def test_invalid_header_of_a_response_is_refused(header: tuple[str, str], version: str) -> None:
    exchange = Exchange(HEADER, BODY)
    assert exchange.collect(bytearray(f"GET / HTTP/{version}\r\nHost: nova\r\n\r\n".encode()))
    with pytest.raises(h11.LocalProtocolError):
        exchange.answer("200 OK", [header], b"", keep=True)
    assert exchange.answer("500 Internal Server Error", [], b"x", keep=False).endswith(b"\r\n\r\nx")
