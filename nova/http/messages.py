"""Conversion between HTTP messages and WSGI.

This module refuses messages that h11 accepts, but that a proxy in front of the server might interpret differently."""

from __future__ import annotations

import email.utils
import re
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

import h11

Headers = list[tuple[str, str]]
Environ = dict[str, Any]
Wsgi = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
# Returns the body (JSON) of an error response from its status, a message and the seconds until the client may retry.
ErrorBody = Callable[[int, str, int | None], dict[str, Any]]

_METHOD = re.compile(rb"[A-Z]{1,32}")
_SLASH = re.compile("%2f", re.IGNORECASE)
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?#@]+)(?P<rest>([/?].*)?)", re.IGNORECASE | re.DOTALL)
# Lines that end with a bare line feed, and continuation lines.
_STRAY = re.compile(rb"(?<!\r)\n|\n[ \t]")
_LAST_CHUNK = re.compile(rb"0+[ \t]*(;[^\n]*)?")
_MOST_HEADERS = 200
# A request of the usual form: no pattern accepts anything that h11 would refuse.
_USUAL = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[!\"$-~]*) HTTP/1\.1\r\n"
                    rb"((?:[A-Za-z0-9-]+:[\t -~\x80-\xff]*\r\n)*)\r\n")
_LENGTH = re.compile("[0-9]{1,12}")
_SPECIAL = {"TRANSFER-ENCODING", "EXPECT", "UPGRADE", "TE", "TRAILER"}
_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+: (?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_STATUS = re.compile(r"[1-5][0-9]{2} [\t -~]*")

PHRASES = {400: "Bad Request", 408: "Request Timeout", 413: "Content Too Large", 414: "URI Too Long",
           429: "Too Many Requests", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
           501: "Not Implemented", 503: "Service Unavailable", 505: "HTTP Version Not Supported"}


class Refused(Exception):
    """A message that is not accepted as a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def environ_of(request: h11.Request, raw: bytes, lenient: bool = False) -> Environ:
    """Return the WSGI environment of the request line and headers; ``raw`` are their bytes. ``lenient``: accept all
    line ends and continuation lines, for simple clients without a proxy in between. Raises Refused."""
    if not lenient and _STRAY.search(raw):
        raise Refused(400, "A line has an invalid line ending.")
    if len(request.headers) > _MOST_HEADERS:
        raise Refused(431, "There are too many headers.")
    host, environ = request_line(request.method, request.target, request.http_version)
    for name, value in request.headers:
        if b"_" not in name:  # In WSGI, X_Y would look like X-Y, which a proxy may have removed.
            _add(environ, name.decode("ascii"), value.decode("latin-1"))
    if host is not None:
        environ["HTTP_HOST"] = host
    if "HTTP_TRANSFER_ENCODING" in environ and ("CONTENT_LENGTH" in environ or request.http_version == b"1.0"):
        raise Refused(400, "A request must not have both a Content-Length and a Transfer-Encoding.")
    return environ


def check_end(fields: int, raw: bytes) -> None:
    """Check the end of a chunked body: ``raw``, with trailer ``fields``. h11 accepts a bare line feed as a line end
    there. So h11 could take for another request what a proxy takes for a field. Raises Refused."""
    lines = raw.removesuffix(b"\r\n\r\n").rsplit(b"\r\n", fields + 1)[-fields - 1:]
    if not raw.endswith(b"\r\n\r\n") or not _LAST_CHUNK.fullmatch(lines[0]) or _STRAY.search(b"\r\n".join(lines)):
        raise Refused(400, "A line after the last chunk has an invalid line ending.")


def request_line(method: bytes, raw_target: bytes, version: bytes) -> tuple[str | None, Environ]:
    """Return the host of an absolute target, which replaces the Host header (RFC 9112 3.2.2), and WSGI variables.
    Raises Refused."""
    if version not in (b"1.0", b"1.1"):
        raise Refused(505, "Only HTTP/1.0 and HTTP/1.1 are supported.")
    if not _METHOD.fullmatch(method):
        raise Refused(400, "The request's method is malformed.")
    target = raw_target.decode("latin-1")
    absolute = _ABSOLUTE.fullmatch(target)
    host = absolute["host"] if absolute else None
    if absolute:
        target = absolute["rest"] if absolute["rest"].startswith("/") else f"/{absolute['rest']}"
    elif target == "*" and method == b"OPTIONS":  # The server as a whole, RFC 9112 section 3.2.4.
        target = "/"
    if not target.startswith("/") or "#" in target:
        raise Refused(400, "The request's target must be a path.")
    path, _mark, query = target.partition("?")
    # An encoded slash is part of a name, not a separator.
    path = "%2F".join(urllib.parse.unquote(part, "latin-1") for part in _SLASH.split(path)) if "%" in path else path
    return host, {"REQUEST_METHOD": method.decode("ascii"), "SCRIPT_NAME": "", "PATH_INFO": path,
                  "QUERY_STRING": query, "REQUEST_URI": target, "SERVER_PROTOCOL": f"HTTP/{version.decode('ascii')}"}


def _add(environ: Environ, name: str, value: str) -> None:
    key = name.upper().replace("-", "_")
    if key not in ("CONTENT_LENGTH", "CONTENT_TYPE"):
        key = "HTTP_" + key
    environ[key] = f"{environ[key]}, {value}" if key in environ else value


def call(application: Wsgi, environ: Environ) -> tuple[str, Headers, bytes]:
    """Run a WSGI application completely; return status, headers and body."""
    started: list[tuple[str, Headers]] = []
    parts: list[bytes] = []

    def start_response(status: str, headers: Headers, exc_info: object = None) -> Callable[[bytes], None]:
        started.append((status, headers))
        return parts.append

    answer = application(environ, start_response)
    try:
        parts.extend(answer)
    finally:
        if (close := getattr(answer, "close", None)) is not None:
            close()
    status, headers = started[-1]
    return status, headers, parts[0] if len(parts) == 1 else b"".join(parts)


def response(status: str, headers: Headers, body: bytes, keep: bool) -> h11.Response:
    """Return the headers of a response. Raises h11.LocalProtocolError for an invalid one, e.g. with a line break."""
    encoded(status, headers, body, keep)  # check first: h11 raises other types of errors for some headers
    code, _space, phrase = status.partition(" ")
    sent = [(name.encode("latin-1"), value.encode("latin-1"))
            for name, value in _all_headers(code, headers, body, keep)]
    return h11.Response(status_code=int(code), headers=sent, reason=phrase.encode("latin-1"))


def _all_headers(code: str, headers: Headers, body: bytes, keep: bool) -> Headers:
    """Return the headers of a response, including those that the server adds."""
    names = {name.lower() for name, _value in headers}
    sent = [*headers]
    if "content-length" not in names and code not in ("204", "304"):
        sent.append(("Content-Length", str(len(body))))
    if "date" not in names:
        sent.append(("Date", email.utils.formatdate(usegmt=True)))
    sent.append(("Server", "nova"))
    if not keep:
        sent.append(("Connection", "close"))
    return sent


class Usual:
    """A request of the usual form, read by regular expressions. h11, which takes ten times as long, reads all others:
    those of HTTP/1.0, with chunks, with a target other than a path, with unusual headers, or malformed."""

    __slots__ = ("environ", "header_size", "keep", "length")

    def __init__(self, environ: Environ, header_size: int, length: int, keep: bool) -> None:
        self.environ, self.header_size, self.length, self.keep = environ, header_size, length, keep

    @classmethod
    def read(cls, data: bytearray, max_header_size: int) -> Usual | None:
        """Return the request at the start of ``data``, or None if it is not usual or its headers are not complete.
        Raises Refused."""
        match = _USUAL.match(data, 0, max_header_size)
        if match is None:
            return None
        lines = match[3].decode("latin-1").split("\r\n")[:-1]
        fields: dict[str, str] = {}
        for line in lines:
            name, _colon, value = line.partition(":")
            name = name.upper()
            if name in fields or name in _SPECIAL:
                return None
            fields[name] = value.strip(" \t")
        length = fields.get("CONTENT-LENGTH", "0")
        connection = fields.get("CONNECTION", "keep-alive").lower()
        if not _LENGTH.fullmatch(length) or connection not in ("keep-alive", "close") or not fields.get("HOST") or len(
                lines) > _MOST_HEADERS:
            return None
        _host, environ = request_line(match[1], match[2], b"1.1")
        for name, value in fields.items():
            _add(environ, name, value)
        return cls(environ, match.end(), int(length), connection == "keep-alive")


def encoded(status: str, headers: Headers, body: bytes, keep: bool) -> bytes:
    """Return the bytes of a response's headers. Raises h11.LocalProtocolError for an invalid one, as response()."""
    lines = [f"{name}: {value}" for name, value in _all_headers(status[:3], headers, body, keep)]
    for line in lines:
        if not _FIELD.fullmatch(line):
            raise h11.LocalProtocolError(f"Illegal header {line[:60]!r}")
    if not _STATUS.fullmatch(status):
        raise h11.LocalProtocolError(f"Illegal status {status!r}")
    return "\r\n".join((f"HTTP/1.1 {status}", *lines, "\r\n")).encode("latin-1")
