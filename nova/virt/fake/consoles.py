"""Consoles of virtual guests on local sockets: a single-colour screen (RFB), a greeting (SPICE), and a serial port.

A console exists from its first request until the guest is powered off. Each key changes the colour of the screen, so
that users see that the key arrived."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from nova.objects.servers.console import SERIAL, SPICE, VNC, ConsoleAddress

_ADDRESS = "127.0.0.1"
# Size of the screen in pixels.
WIDTH, HEIGHT = 64, 48
# Pixel format: 32 bits per pixel, depth 24, little endian, true colour, 8 bits for red, green, blue at shifts 16, 8, 0.
_FORMAT = struct.pack("!BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
# Bytes of client messages after the type byte. _SET_ENCODINGS, _CUT_TEXT: bytes up to the length of the variable rest.
_SET_PIXEL_FORMAT, _SET_ENCODINGS, _UPDATE_REQUEST, _KEY, _POINTER, _CUT_TEXT = 0, 2, 3, 4, 5, 6
_LENGTHS = {_SET_PIXEL_FORMAT: 19, _SET_ENCODINGS: 3, _UPDATE_REQUEST: 9, _KEY: 7, _POINTER: 5, _CUT_TEXT: 7}
# First bytes of the SPICE messages that link a channel.
_REDQ = b"REDQ"
# Maximum number of bytes of the variable rest of a client message. A client that announces more is disconnected.
_MOST = 1 << 20
# Maximum number of bytes of a line on a serial console, and of a SPICE message.
_LINE = 4096

Speak = Callable[[socket.socket, str], None]


class ConsoleServers:
    """The consoles of one virtual host. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, dict[str, _Listener]] = {}

    def address(self, uuid: str, protocol: str, name: str) -> ConsoleAddress | None:
        """Return the address of the console of a running guest, or None for an unsupported protocol."""
        speak = _SPEAKERS.get(protocol)
        if speak is None:
            return None
        with self._lock:
            listeners = self._open.setdefault(uuid, {})
            if protocol not in listeners:
                listeners[protocol] = _Listener(speak, name)
            return ConsoleAddress(host=_ADDRESS, port=listeners[protocol].port)

    def guest_changed(self, uuid: str, on: bool) -> None:
        """Close the consoles and connections of a guest that is powered off."""
        if on or uuid not in self._open:
            return
        with self._lock:
            listeners = self._open.pop(uuid, {})
        for listener in listeners.values():
            listener.close()


class _Listener:
    """Listener of one console: a thread that accepts connections, and one thread per client."""

    def __init__(self, speak: Speak, name: str) -> None:
        self._speak, self._name = speak, name
        self._socket = socket.create_server((_ADDRESS, 0))
        self.port: int = self._socket.getsockname()[1]
        self._clients: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=f"console-{self.port}", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        for open_socket in (self._socket, *self._clients):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _peer = self._socket.accept()
            except OSError:
                return
            self._clients.add(client)
            if self._closed:
                client.close()
                return
            threading.Thread(target=self._serve, args=(client,), name=f"console-{self.port}", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            self._speak(client, self._name)
        self._clients.discard(client)


def _screen(client: socket.socket, name: str) -> None:
    """Serve RFB 3.8 without authentication. Raises EOFError if the client disconnects or violates the protocol."""
    client.sendall(b"RFB 003.008\n")
    if _read(client, 12) != b"RFB 003.008\n":
        raise EOFError
    client.sendall(b"\x01\x01")
    if _read(client, 1) != b"\x01":
        raise EOFError
    client.sendall(struct.pack("!I", 0))
    _read(client, 1)
    title = name.encode()
    client.sendall(struct.pack("!HH", WIDTH, HEIGHT) + _FORMAT + struct.pack("!I", len(title)) + title)
    colour = 0x2040FF
    while True:
        kind = _read(client, 1)[0]
        if kind not in _LENGTHS:
            raise EOFError
        body = _read(client, _LENGTHS[kind])
        if kind == _SET_ENCODINGS:
            _read(client, 4 * struct.unpack("!xH", body)[0])
        elif kind == _CUT_TEXT:
            _read(client, struct.unpack("!3xI", body)[0])
        elif kind == _KEY:
            colour = struct.unpack("!3xI", body)[0]
        if kind == _KEY or (kind == _UPDATE_REQUEST and not body[0]):
            pixels = struct.pack("<I", colour) * (WIDTH * HEIGHT)
            client.sendall(struct.pack("!BxHHHHHi", 0, 1, 0, 0, WIDTH, HEIGHT, 0) + pixels)


def _read(client: socket.socket, size: int) -> bytes:
    data = client.recv(size, socket.MSG_WAITALL) if size <= _MOST else b""
    if len(data) < size:
        raise EOFError
    return data


def _terminal(client: socket.socket, name: str) -> None:
    """Send a login prompt and echo each line. Raises EOFError if the client disconnects."""
    client.sendall(f"\r\n{name} login: ".encode())
    with client.makefile("rb") as lines:
        while line := lines.readline(_LINE):
            client.sendall(name.encode() + b" heard " + line.strip() + b"\r\n")


def _spice(client: socket.socket, name: str) -> None:
    """Accept the link of a SPICE channel, and send nothing after that. Raises EOFError for an invalid link message."""
    magic, _major, _minor, size = struct.unpack("<4sIII", _read(client, 16))
    if magic != _REDQ or size > _LINE:
        raise EOFError
    _read(client, size)
    # no error, a public key, and no capabilities
    reply = struct.pack("<I162sIII", 0, bytes(162), 0, 0, 178)
    client.sendall(struct.pack("<4sIII", _REDQ, 2, 2, len(reply)) + reply)
    while client.recv(_LINE):
        pass


_SPEAKERS: dict[str, Speak] = {VNC: _screen, SPICE: _spice, SERIAL: _terminal}
