"""Serial ports of guests: their TCP ports on the host, and the logs of consoles."""

import os
import random
import socket
import threading
import time
from collections.abc import Collection, Iterable

from nova import exception
from nova.conf import CONF

# Seconds within which a guest begins to listen on an allocated port.
_ON_ITS_WAY = 120.0


class SerialPorts:
    """An allocator of TCP ports for the serial ports of guests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[int, float] = {}

    def take(self, count: int, taken: Collection[int]) -> tuple[int, ...]:
        """Allocate ``count`` ports of [serial_console]port_range not in ``taken``. Raises SocketPortRangeExhausted."""
        with self._lock:
            now = time.monotonic()
            self._given = {port: moment for port, moment in self._given.items() if now - moment < _ON_ITS_WAY}
            ports: list[int] = []
            low, high = (int(number) for number in CONF.serial_console.port_range.split(":"))
            size = max(high - low, 0)
            start = random.randrange(max(size, 1))  # noqa: S311 - a released port is not reused soon
            for number in range(size):
                port = low + (start + number) % size
                if len(ports) == count:
                    break
                if port not in taken and port not in self._given and _is_free(port):
                    ports.append(port)
            if len(ports) < count:
                raise exception.SocketPortRangeExhausted(host=CONF.host)
            self._given.update(dict.fromkeys(ports, now))
            return tuple(ports)


def _is_free(port: int) -> bool:
    try:
        socket.create_server((CONF.serial_console.proxyclient_address, port)).close()
    except OSError:
        return False
    return True


MAX_BYTES = 100 * 1024  # maximum number of bytes read from the end of a log


def output(paths: Iterable[str], uuid: str, lines: int | None = None) -> bytes:
    """Return the last ``lines`` (None or negative: all) of a guest's log, at most MAX_BYTES. ``paths``: the parts of
    the log, the newest first; parts may be missing. Raises ConsoleLogUnavailable if all are missing."""
    tail, is_complete = b"", False
    for path in paths:
        try:
            with open(path, "rb") as file:
                left = MAX_BYTES - len(tail)
                file.seek(max(0, os.fstat(file.fileno()).st_size - left))
                tail = file.read(left) + tail
            is_complete = True
        except FileNotFoundError:
            continue  # The log is not written yet, or is being rotated.
        if len(tail) >= MAX_BYTES:
            break
    if not is_complete:
        raise exception.ConsoleLogUnavailable(instance_id=uuid)
    return tail if lines is None or lines < 0 else last_lines(tail, lines)


def last_lines(text: bytes, count: int) -> bytes:
    """Return the last ``count`` lines; a newline at the end belongs to the last one."""
    if count <= 0:
        return b""
    body = text.removesuffix(b"\n")
    return b"\n".join(body.split(b"\n")[-count:]) + text[len(body):]
