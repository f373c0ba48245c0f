"""Output of containers from the podman service, with bounded memory and a way to stop reading.

The client library collects all output and blocks until more arrives. HTTP 1.0 on a unix socket: a response ends with
the connection and has no chunks.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from nova.novad.errors import RuntimeFault

OUT, ERR = 1, 2
_HEADER = struct.Struct(">BxxxL")  # Header of a frame: number of the stream, number of bytes.
_API = "/v4.0.0/libpod"
_TIMEOUT = 30.0  # Timeout in seconds of a response that is not a stream.
_POLL_INTERVAL = 0.2  # Seconds between two calls of a function that may end a response.
_AT_ONCE = 1 << 18  # Maximum number of bytes of a read.
_HEAD = 1 << 16  # Maximum number of bytes of a response's head.
_MOST = 1 << 20  # Maximum number of bytes of a response that is not a stream.
EXPIRED = 124  # exit code of a command that timed out

Line = tuple[int, bytes]  # Number of the output stream, and the line without its end.


class PodmanStream:
    """A request and its response. Raises RuntimeFault for the failure ``what``, ``refused`` for unexpected statuses."""

    def __init__(self, path: str, what: str, method: str, url: str, body: Any = None, timeout: float | None = _TIMEOUT,
                 codes: tuple[int, ...] = (200,), refused: type[RuntimeFault] = RuntimeFault) -> None:
        self._what = what
        self._closed = False
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(_TIMEOUT if timeout is None else timeout)
        self._buffer = b""
        content = b"" if body is None else json.dumps(body).encode()
        try:
            self._sock.connect(path)
            self._sock.sendall(
                f"{method} {_API}{url} HTTP/1.0\r\nHost: d\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
            status = self._head()
        except (OSError, ValueError, IndexError) as error:
            self._sock.close()
            raise self.fault(error) from error
        if status not in codes:
            why = _why(self.read())
            self.free()
            raise refused(f"podman: {what}: {why}")
        if timeout is None:
            self._sock.settimeout(None)

    def _head(self) -> int:
        while b"\r\n\r\n" not in self._buffer:
            piece = self._sock.recv(_AT_ONCE)
            if not piece or len(self._buffer) > _HEAD:
                raise ValueError("the response is not HTTP")
            self._buffer += piece
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        return int(head.split(None, 2)[1])

    def fault(self, why: object) -> RuntimeFault:
        return RuntimeFault(f"podman: {self._what}: {why}")

    def read(self) -> bytes:
        """Return the rest of a response that is not a stream."""
        content = b""
        for piece in self._pieces():
            content += piece
            if len(content) > _MOST:
                break
        return content

    def document(self) -> dict[str, Any]:
        """Return the JSON object that is the response."""
        try:
            document = json.loads(self.read())
        except (ValueError, RecursionError) as error:
            raise self.fault(error) from None
        finally:
            self.free()
        if not isinstance(document, dict):
            raise self.fault("its response is not a JSON object")
        return document

    def documents(self, poll: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a response with one per line. ``poll`` is called every 0.2 seconds; may raise."""
        left = b""
        for piece in itertools.chain(self._pieces(poll), [b"\n"]):
            *lines, left = (left + piece).split(b"\n")
            if len(left) > _MOST:
                raise self.fault("a line of the response is too long")
            for line in filter(bytes.strip, lines):
                try:
                    document = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if self._closed:  # close() cut the connection within a line
                        return
                    raise self.fault(error) from None
                if isinstance(document, dict):
                    yield document

    def readable(self, timeout: float | None) -> bool:
        """Return True if data, or the end of the response, arrive within ``timeout`` seconds."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def frames(self, poll: Callable[[], None] | None = None) -> Iterator[list[tuple[int, bytes]]]:
        """Yield lists of (stream, bytes) that arrived together. ``poll``: as of documents()."""
        left = b""
        for piece in self._pieces(poll):
            data, at, parts = left + piece, 0, []
            while (begin := at + _HEADER.size) <= len(data):
                stream, length = _HEADER.unpack_from(data, at)
                if length > _AT_ONCE * 16:
                    raise self.fault("the response is not a log stream")
                if begin + length > len(data):
                    break
                at = begin + length
                parts.append((stream, data[begin:at]))
            left = data[at:]
            if parts:
                yield parts
        if left and not self._closed:
            raise self.fault("the response ended early")

    def _pieces(self, poll: Callable[[], None] | None = None) -> Iterator[bytes]:
        if self._buffer:
            yield self._buffer
        timeout = self._sock.gettimeout()
        while True:
            end = float("inf") if timeout is None else time.monotonic() + timeout
            if poll is not None:
                poll()
            while not self.readable(timeout if poll is None else _POLL_INTERVAL):
                if time.monotonic() >= end:
                    raise self.fault("no response within the timeout")
                if poll is not None:
                    poll()
            try:
                piece = self._sock.recv(_AT_ONCE)
            except OSError as error:
                if self._closed:
                    return
                raise self.fault(f"the response ended early: {error}") from error
            if not piece:
                return
            yield piece

    def feed(self, source: BinaryIO) -> None:
        """Send a whole file as the input of a command, then its end. A command may exit without reading it."""
        with contextlib.suppress(OSError, ValueError):
            while piece := source.read(_AT_ONCE):
                self._sock.sendall(piece)
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the stream for its reader. May be called from any thread."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Close the stream and its socket. Called by the reader."""
        self.close()
        self._sock.close()


def run(path: str, container: str, command: tuple[str, ...], timeout: float,
        take: Callable[[int, bytes], None], source: BinaryIO | None = None) -> int:
    """Run a command in a container; return its exit code, or EXPIRED after a timeout, which kills the command. ``take``
    gets its output (stream, bytes). Raises RuntimeFault and the errors of ``take``, which end the command."""
    what, deadline = f"{command[0]} cannot be run in container {container}", time.monotonic() + timeout
    def check_deadline() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
    ident = PodmanStream(path, what, "POST", f"/containers/{urllib.parse.quote(container)}/exec", {
        "Cmd": list(command), "AttachStdin": source is not None, "AttachStdout": True, "AttachStderr": True},
        codes=(201,)).document().get("Id")
    if not isinstance(ident, str) or not ident:
        raise RuntimeFault(f"podman: {what}: no id in the response")
    stream = PodmanStream(path, what, "POST", f"/exec/{ident}/start", {"Detach": False, "Tty": False}, None, (101, 200))
    if source is not None:
        threading.Thread(target=stream.feed, args=(source,), name="feed", daemon=True).start()
    try:
        for frame in stream.frames(check_deadline):
            for which, piece in frame:
                take(which, piece)
    except BaseException as error:
        _kill(path, what, ident)
        if isinstance(error, TimeoutError):
            return EXPIRED
        raise
    finally:
        stream.free()
    for _attempt in range(50):  # the exit code is available shortly after the last output
        state = _state(path, what, ident)
        if state.get("Running") is False and isinstance(code := state.get("ExitCode"), int):
            return code
        time.sleep(0.1)
    _kill(path, what, ident)  # The command has closed its output and still runs.
    return EXPIRED


def _state(path: str, what: str, ident: str) -> dict[str, Any]:
    return PodmanStream(path, what, "GET", f"/exec/{ident}/json").document()


def _kill(path: str, what: str, ident: str) -> None:
    """Kill a command without a client; otherwise such commands would accumulate in the container."""
    with contextlib.suppress(RuntimeFault, OSError, ValueError):
        state = _state(path, what, ident)
        if state.get("Running") and int(state.get("Pid") or 0) > 1:
            os.kill(int(state["Pid"]), signal.SIGKILL)


def _why(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return body.decode(errors="replace")[:200] or "no reason was reported"


# --- logs ------------------------------------------------------------------------------------------
_PAUSE = 0.05  # Seconds in which lines are collected: a busy log may have many readers, and each message has a cost.
_QUIET = 0.2  # Seconds without a line after which a followed log has been read up to its current end.
_READ_TIMEOUT = 10.0  # seconds after which lines of a followed log count as new, even if no pause preceded them
_LONGEST = 1 << 16  # bytes of a line; longer lines are split


class PodmanLines:
    """The last ``tail`` lines of a container's standard output and error, and new ones. Raises RuntimeFault. podman's
    own ``tail`` (4.3.1) reorders and drops parts of long lines, so that secrets in them would not be masked. Therefore
    the last lines are selected here, from the whole log (novad limits it to 50 MiB)."""

    def __init__(self, path: str, container: str, follow: bool, tail: int) -> None:
        query = urllib.parse.urlencode({"stdout": "true", "stderr": "true", "follow": str(follow).lower()})
        self._follow = follow
        self._tail = tail
        self._rests: dict[int, bytes] = {}  # Beginning of an incomplete line, by output stream.
        self._stream = PodmanStream(
            path, f"container {container} has no log", "GET",
            f"/containers/{urllib.parse.quote(container)}/logs?{query}", timeout=None if follow else 60.0)

    def batches(self) -> Iterator[list[Line]]:
        """Yield batches of lines that arrived together, each with the number of its output stream."""
        last: collections.deque[Line] = collections.deque(maxlen=self._tail)
        until = time.monotonic() + _READ_TIMEOUT
        frames = self._stream.frames()
        try:
            for pieces in frames:
                last.extend(self._lines(pieces))
                if self._follow and (time.monotonic() > until or not self._stream.readable(_QUIET)):
                    break
            else:
                last.extend(self._end())
            if last:
                yield list(last)
            for pieces in frames:
                if lines := self._lines(pieces):
                    yield lines
                time.sleep(_PAUSE)
            if lines := self._end():
                yield lines
        finally:
            self._stream.free()

    def _lines(self, pieces: list[tuple[int, bytes]]) -> list[Line]:
        """Return the lines that these pieces complete, and store the beginning of incomplete ones."""
        lines: list[Line] = []
        for which, piece in pieces:
            *whole, rest = (self._rests.get(which, b"") + piece).split(b"\n")
            lines += [(which, line) for line in whole]
            while len(rest) > _LONGEST:
                lines.append((which, rest[:_LONGEST]))
                rest = rest[_LONGEST:]
            self._rests[which] = rest
        return lines

    def _end(self) -> list[Line]:
        return self._lines([(which, b"\n") for which, rest in self._rests.items() if rest])

    def close(self) -> None:
        self._stream.close()
