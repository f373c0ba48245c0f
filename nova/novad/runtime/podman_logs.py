"""A log of podman's service, read so that it can be given up: the client library would wait for the next line."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import urllib.parse
from collections.abc import Iterator

from nova.novad.errors import RuntimeFault

_HEADER = struct.Struct(">BxxxL")  # of each piece: which stream, how many bytes
_TIMEOUT = 60.0


class PodmanLines:
    """Lines of a container's standard output and error. Raises RuntimeFault."""

    def __init__(self, path: str, container: str, follow: bool, tail: int) -> None:
        self._closed = False
        self._connection = _Local(path, timeout=_TIMEOUT)
        query = urllib.parse.urlencode({"stdout": "true", "stderr": "true", "follow": str(follow).lower(),
                                        "tail": tail})
        try:
            self._connection.request("GET", f"/v4.0.0/libpod/containers/{urllib.parse.quote(container)}/logs?{query}")
            self._answer = self._connection.getresponse()
            if self._answer.status != 200:
                raise RuntimeFault(f"podman: there is no log of container {container}: {_why(self._answer.read())}")
            if follow and self._connection.sock is not None:
                self._connection.sock.settimeout(None)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RuntimeFault(f"podman: there is no log of container {container}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        rest = b""
        try:
            for piece in self._pieces():
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if rest:
                yield rest.decode(errors="replace")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._closed:
                raise RuntimeFault(f"podman: the log broke off: {error}") from error
        finally:
            self._connection.close()

    def _pieces(self) -> Iterator[bytes]:
        while len(header := self._answer.read(_HEADER.size)) == _HEADER.size:
            yield self._answer.read(_HEADER.unpack(header)[1])

    def close(self) -> None:
        self._closed = True
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Local(http.client.HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("d", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _why(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
