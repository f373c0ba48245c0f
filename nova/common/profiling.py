"""Profiles of a running daemon over HTTP for ``pprof`` and speedscope (``novad serve --pprof-addr 127.0.0.1:6060``).

    GET /debug/pprof/profile?seconds=10     CPU time by stack during these seconds
    GET /debug/pprof/heap                   objects by type
    GET /debug/pprof/heap?seconds=10        memory allocated during these seconds and not freed, by stack

Responses are gzipped profile.proto, or with ``&format=speedscope`` JSON for https://speedscope.app. Requests need a
token ("Authorization: Bearer TOKEN") and are served one at a time, on loopback only. Another program may listen on the
port while the daemon is down, so the token must open nothing but profiles. The number of connections and the duration
of each are bounded: idle clients and slow readers are disconnected.
"""

import collections
import contextlib
import gc
import gzip
import hmac
import http.server
import json
import logging
import pathlib
import socket
import sys
import threading
import time
import tracemalloc
import types
import urllib.parse
from typing import Any

from nova.common.errors import Invalid, Refused
from nova.common.plain_ip import on_loopback

LOG = logging.getLogger(__name__)

_CONNECTIONS = 32  # Maximum number of open connections; a new one replaces the oldest one without a valid request.
_REQUEST_TIMEOUT = 10.0  # Seconds within which a whole request must arrive.
_MAKING_TIMEOUT = 60.0  # Seconds to make a response, in addition to the duration of the profile.
_RESPONSE_TIMEOUT = 60.0  # Seconds within which a client must have read a response.
_INTERVAL = 0.01  # seconds between two samples
_DEFAULT, _LONGEST = 10.0, 300.0  # duration of a profile in seconds
_DEPTH = 64  # maximum number of frames of a stack
_NATIVE = ("threads that are not Python's", "", 0)

Frame = tuple[str, str, int]  # function, file, line
Stacks = collections.Counter[tuple[Frame, ...]]  # values by stack, the outermost frame first


class _Server(http.server.ThreadingHTTPServer):
    """A server with a thread for each connection. The number and the duration of connections are bounded."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self.expected = f"Bearer {token}".encode()  # The header of a client with the token.
        # The monotonic time at which each client is disconnected, and True if the client sent the token; oldest first.
        self._connections: dict[socket.socket, tuple[float, bool]] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = time.monotonic() + _REQUEST_TIMEOUT, False
            if len(self._connections) > _CONNECTIONS:  # disconnects the new connection if all others are authorized
                self._disconnect(next(sock for sock, (_end, authorized) in self._connections.items() if not authorized))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect clients at their deadline. Called twice a second, and after each new connection."""
        now = time.monotonic()
        with self._lock:
            for sock in [sock for sock, (end, _authorized) in self._connections.items() if now > end]:
                self._disconnect(sock)

    def authorize(self, request: socket.socket, seconds: float) -> None:
        """Mark a connection as authorized, and disconnect it in ``seconds`` seconds."""
        with self._lock:
            if request in self._connections:
                self._connections[request] = time.monotonic() + seconds, True

    def _disconnect(self, sock: socket.socket) -> None:
        """Shut a connection down, which ends its thread. The caller holds the lock."""
        del self._connections[sock]
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # A disconnect of the client is not an error.
            LOG.exception("The request for a profile failed")


def serve(address: str, token: str) -> http.server.ThreadingHTTPServer:
    """Serve profiles in a thread. Raises Invalid (not a loopback address), Refused (the address is in use)."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not on_loopback(host):
        raise Invalid(f"--pprof-addr: {address} is not HOST:PORT of loopback; profiles are served on loopback only.")
    try:
        server = _Server((host.strip("[]"), int(port)), token)
    except (OSError, OverflowError) as error:
        raise Refused(f"--pprof-addr: {address}: {error}") from None
    threading.Thread(target=server.serve_forever, name="pprof", daemon=True).start()
    return server


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    turn = threading.Lock()

    def do_GET(self) -> None:
        status, body, kind = self._answer()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[int, bytes, str]:
        if not on_loopback(self.headers.get("Host", "").rpartition(":")[0]):
            return self._say(403, "Profiles are for this machine only.")  # a request from a web page of another site
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, self.server.expected):
            return self._say(401, "The token for profiles is missing or wrong: Authorization: Bearer TOKEN.")
        try:
            url = urllib.parse.urlsplit(self.path)
        except ValueError as error:
            return self._say(400, f"{error}")
        query, what = dict(urllib.parse.parse_qsl(url.query)), url.path.removeprefix("/debug/pprof/")
        if what not in ("profile", "heap"):
            return self._say(404, __doc__ or "")
        try:
            seconds = float(query["seconds"]) if "seconds" in query else None if what == "heap" else _DEFAULT
        except ValueError:
            seconds = -1.0
        if seconds is not None and not 0 < seconds <= _LONGEST:
            return self._say(400, f"seconds: a number up to {_LONGEST:g}")
        if query.get("format", "pprof") not in ("pprof", "speedscope"):
            return self._say(400, "format: pprof or speedscope")
        if not self.turn.acquire(blocking=False):
            return self._say(429, "Another profile is being taken.")
        try:
            self.server.authorize(self.connection, (seconds or 0.0) + _MAKING_TIMEOUT)
            stacks, unit = (cpu(seconds or _DEFAULT), "nanoseconds") if what == "profile" else (heap(seconds), "bytes")
        finally:
            self.turn.release()
        self.server.authorize(self.connection, _RESPONSE_TIMEOUT)
        name = "cpu" if what == "profile" else "inuse_space"
        if query.get("format") == "speedscope":
            return self._say(200, json.dumps(speedscope(stacks, name, unit)), "application/json")
        return 200, gzip.compress(pprof(stacks, name, unit, seconds or 0.0)), "application/octet-stream"

    @staticmethod
    def _say(status: int, text: str, kind: str = "text/plain; charset=utf-8") -> tuple[int, bytes, str]:
        return status, f"{text}\n".encode(), kind

    def log_message(self, *_args: Any) -> None:
        """Log no request."""


def cpu(seconds: float) -> Stacks:
    """Return CPU time in nanoseconds by stack. Each sample adds the time that a thread used since the previous one."""
    stacks: Stacks = collections.Counter()
    before = {thread.native_id: _on_cpu(thread.native_id) for thread in threading.enumerate()}
    total, mine, end = time.process_time_ns(), time.thread_time_ns(), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_INTERVAL)
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if (frame := frames.get(thread.ident or 0)) is None or thread is threading.current_thread():
                continue
            now = _on_cpu(thread.native_id)
            if (spent := now - before.get(thread.native_id, now)) > 0:
                stacks[_stack(frame, thread.name)] += spent
            before[thread.native_id] = now
    rest = time.process_time_ns() - total - (time.thread_time_ns() - mine) - stacks.total()
    if rest > 0:
        stacks[(_NATIVE,)] += rest
    return stacks


def _on_cpu(tid: int | None) -> int:
    """Return the CPU time of a thread in nanoseconds."""
    try:
        return int(pathlib.Path(f"/proc/self/task/{tid}/schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _stack(frame: types.FrameType | None, thread: str) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    while frame is not None and len(frames) < _DEPTH:
        code = frame.f_code
        frames.append((code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return ((f"thread {thread.rstrip('0123456789_')}", "", 0), *reversed(frames))


def heap(seconds: float | None) -> Stacks:
    """Return bytes: all objects of the garbage collector by type, or memory allocated in ``seconds`` by stack."""
    stacks: Stacks = collections.Counter()
    if seconds is None:
        for object_ in gc.get_objects():
            kind = type(object_)
            with contextlib.suppress(Exception):  # Some objects have no size or module.
                module = str(kind.__module__)
                stacks[(module, "", 0), (f"{module}.{kind.__qualname__}", "", 0)] += sys.getsizeof(object_)
        return stacks
    tracemalloc.start(_DEPTH)
    try:
        time.sleep(seconds)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    for trace in snapshot.traces:
        stacks[tuple((pathlib.PurePath(place.filename).stem + f":{place.lineno}", place.filename, place.lineno)
                     for place in trace.traceback)] += trace.size
    return stacks


class _Numbers(dict[Any, int]):
    """A mapping that numbers its keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        return self.setdefault(key, len(self))


def speedscope(stacks: Stacks, name: str, unit: str) -> dict[str, Any]:
    """Return a profile in the format https://www.speedscope.app/file-format-schema.json."""
    frames = _Numbers()
    samples = [[frames[frame] for frame in stack] for stack in stacks]
    shown = [{"name": function, **({"file": file, "line": line} if file else {})} for function, file, line in frames]
    return {"$schema": "https://www.speedscope.app/file-format-schema.json", "name": f"novad {name}",
            "shared": {"frames": shown}, "profiles": [{
                "type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": stacks.total(),
                "samples": samples, "weights": list(stacks.values())}]}


def pprof(stacks: Stacks, name: str, unit: str, seconds: float) -> bytes:
    """Return a profile as a message of profile.proto (https://github.com/google/pprof)."""
    texts, functions, places = _Numbers({"": 0}), _Numbers({None: 0}), _Numbers({None: 0})  # Ids begin at 1.
    kind = _number(1, texts[name]) + _number(2, texts[unit])
    parts = [_bytes(1, kind)]
    for stack, value in stacks.items():
        ids = [places[frame] for frame in reversed(stack)]  # the innermost first
        parts.append(_bytes(2, _bytes(1, b"".join(map(_varint, ids))) + _bytes(2, _varint(value))))
    for (function, file, line), ident in [*places.items()][1:]:
        parts.append(_bytes(4, _number(1, ident) + _bytes(4, _number(1, functions[function, file]) + _number(2, line))))
    for (function, file), ident in [*functions.items()][1:]:
        parts.append(_bytes(5, _number(1, ident) + _number(2, texts[function]) + _number(3, texts[function])
                            + _number(4, texts[file])))
    parts += [_bytes(6, word.encode(errors="replace")) for word in texts]
    parts.append(_number(9, time.time_ns()) + _number(10, int(seconds * 1e9)) + _bytes(11, kind) + _number(
        12, int(_INTERVAL * 1e9) if unit == "nanoseconds" else 1))
    return b"".join(parts)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
