"""Clients of console proxies: WebSockets, RFB and SPICE."""

import contextlib
import struct
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

RUNNING = struct.pack("!I", 0)


def token_of(url):
    """Return the token in the URL of a console, also if it is inside the path parameter of noVNC."""
    query = parse_qs(urlsplit(url).query)
    tokens = query.get("token") or parse_qs(urlsplit(query["path"][0]).query)["token"]
    return tokens[0]


def opened(port, token, origin=None, headers=None, path="/", scheme="ws", **options):
    """Open a WebSocket. Raises InvalidStatus."""
    return connect(f"{scheme}://127.0.0.1:{port}{path}?token={token}", origin=origin, additional_headers=headers,
                   compression=None, open_timeout=10, close_timeout=2, proxy=None, **options)


def status_of(port, token, **options):
    """Return the HTTP status of the handshake: 101 for an open console."""
    try:
        opened(port, token, **options).close()
    except InvalidStatus as error:
        return error.response.status_code
    return 101


class Screen:
    """A VNC console after the RFB handshake."""

    def __init__(self, websocket):
        self.websocket = websocket
        self._left = b""
        assert self.read(12) == b"RFB 003.008\n"
        websocket.send(b"RFB 003.008\n")
        assert self.read(2) == b"\x01\x01"  # one security type: none
        websocket.send(b"\x01")
        assert self.read(4) == RUNNING
        websocket.send(b"\x01")
        self.width, self.height = struct.unpack("!HH", self.read(4))
        self.read(16)
        [length] = struct.unpack("!I", self.read(4))
        self.name = self.read(length).decode()

    def read(self, size):
        while len(self._left) < size:
            self._left += self.websocket.recv(timeout=10)
        data, self._left = self._left[:size], self._left[size:]
        return data

    def ask(self):
        self.websocket.send(struct.pack("!BBHHHH", 3, 0, 0, 0, self.width, self.height))
        return self.picture()

    def press(self, key):
        self.websocket.send(struct.pack("!BBxxI", 4, 1, key))
        return self.picture()

    def picture(self):
        """Return the colour of a screen with a single colour."""
        kind, count, left, top, width, height, encoding = struct.unpack("!BxHHHHHi", self.read(16))
        assert (kind, count, left, top, width, height, encoding) == (0, 1, 0, 0, self.width, self.height, 0)
        [colour] = set(struct.unpack(f"<{width * height}I", self.read(4 * width * height)))
        return colour


def linked(websocket):
    """Link the main channel of SPICE; return the error code of the server (0: none)."""
    body = struct.pack("<IBBIII", 0, 1, 0, 0, 0, 18)
    websocket.send(struct.pack("<4sIII", b"REDQ", 2, 2, len(body)) + body)
    received = b""
    while len(received) < 20:
        received += websocket.recv(timeout=10)
    magic, major, _minor, _size, error = struct.unpack("<4sIIII", received[:20])
    assert (magic, major) == (b"REDQ", 2)
    return error


def ended(websocket, seconds=10):
    """Wait until the proxy closes the connection; return (code, reason)."""
    with contextlib.suppress(TimeoutError):
        while True:
            try:
                websocket.recv(timeout=seconds)
            except ConnectionClosed as closed:
                return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")
    raise AssertionError("the connection is still open")


def is_closed(connection):
    """Return True if the peer has closed the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
