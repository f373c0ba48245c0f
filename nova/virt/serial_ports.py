"""TCP ports for the serial consoles of guests."""

import random
import socket
import threading
import time
from collections.abc import Collection

from nova import exception
from nova.conf import CONF

# Seconds that an allocated port is reserved: until then its guest must listen on it, or the port is allocated again.
_RESERVED_TIME = 120.0


class SerialPorts:
    """An allocator of TCP ports for the serial ports of guests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved: dict[int, float] = {}

    def take(self, count: int, taken: Collection[int]) -> tuple[int, ...]:
        """Allocate ``count`` ports of [serial_console]port_range not in ``taken``. Raises SocketPortRangeExhausted."""
        with self._lock:
            now = time.monotonic()
            self._reserved = {port: start for port, start in self._reserved.items() if now - start < _RESERVED_TIME}
            ports: list[int] = []
            low, high = (int(number) for number in CONF.serial_console.port_range.split(":"))
            size = max(high - low, 0)
            start = random.randrange(max(size, 1))  # noqa: S311 - a released port is not reused soon
            for number in range(size):
                port = low + (start + number) % size
                if len(ports) == count:
                    break
                if port not in taken and port not in self._reserved and _is_free(port):
                    ports.append(port)
            if len(ports) < count:
                raise exception.SocketPortRangeExhausted(host=CONF.host)
            self._reserved.update(dict.fromkeys(ports, now))
            return tuple(ports)


def _is_free(port: int) -> bool:
    try:
        socket.create_server((CONF.serial_console.proxyclient_address, port)).close()
    except OSError:
        return False
    return True
