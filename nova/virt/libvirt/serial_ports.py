"""TCP ports for the serial ports of guests: each starting guest gets free ones."""

import random
import socket
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Collection

from nova import exception
from nova.conf import CONF

# Seconds within which a guest begins to listen on an allocated port.
_ON_ITS_WAY = 120.0


class SerialPorts:
    """A thread-safe allocator of ports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[int, float] = {}

    def take(self, count: int, taken: Collection[int]) -> tuple[int, ...]:
        """Allocate ``count`` free ports of [serial_console]port_range that are not in ``taken``. Raises
        SocketPortRangeExhausted."""
        with self._lock:
            now = time.monotonic()
            self._given = {port: moment for port, moment in self._given.items() if now - moment < _ON_ITS_WAY}
            ports: list[int] = []
            low, high = (int(number) for number in CONF.serial_console.port_range.split(":"))
            # In random order, so that a released port is not reused soon.
            for port in random.sample(range(low, high), max(high - low, 0)):
                if len(ports) == count:
                    break
                if port not in taken and port not in self._given and _is_free(port):
                    ports.append(port)
            if len(ports) < count:
                raise exception.SocketPortRangeExhausted(host=CONF.host)
            self._given.update(dict.fromkeys(ports, now))
            return tuple(ports)


def of_definition(text: str) -> tuple[int, ...]:
    """Return the ports that a domain's serial ports listen on."""
    devices = ET.fromstring(text)  # noqa: S314 - libvirt's own output
    sources = devices.iterfind("devices/serial[@type='tcp']/source[@mode='bind']")
    return tuple(int(port) for source in sources if (port := source.get("service", "")).isdecimal())


def _is_free(port: int) -> bool:
    try:
        socket.create_server((CONF.serial_console.proxyclient_address, port)).close()
    except OSError:
        return False
    return True
