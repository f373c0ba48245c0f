"""Netlink queries about the packet filters in the kernel. A query takes microseconds and starts no process."""

import os
import socket
import struct
from collections.abc import Iterator

# Constants of linux/netfilter/nfnetlink.h and nf_tables.h.
_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10 << 8
_GET_TABLE, _GET_CHAIN, _GET_GENERATION = 1, 4, 16
_GENERATION_ID = 1
_TABLE_NAME, _TABLE_HANDLE = 1, 4
_CHAIN_TABLE, _CHAIN_HANDLE, _CHAIN_NAME, _CHAIN_USE = 1, 2, 3, 6
_REQUEST, _DUMP, _DUMP_INTERRUPTED = 0x1, 0x300, 0x10
_ERROR, _DONE = 2, 3
_ENOENT = 2
FAMILIES = {"ip": 2, "bridge": 7, "ip6": 10}
# Timeout of a query in seconds, and maximum number of dumps until one is not interrupted by a concurrent change.
_TIMEOUT = 10
_TRIES = 20

# Name of a chain ("": the table) -> values that change when it is replaced: its handle, and the references to a chain.
Marks = dict[str, tuple[int, ...]]


class PacketFilters:
    """The packet filters of the network namespace in which this object is created. Not thread-safe. All methods raise
    OSError if a query fails."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self._socket.settimeout(_TIMEOUT)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def generation(self) -> int:
        """Return the generation, a number that grows with every change by any program."""
        generations = self._query(_GET_GENERATION, 0, _REQUEST)
        if not generations:
            raise OSError("the kernel returned no generation of its packet filters")
        return _number(generations[0][_GENERATION_ID])

    def table(self, family: str, table: str) -> tuple[int, ...] | None:
        """Return the handle of a table, which is never reused, or None if the table is missing."""
        tables = self._query(_GET_TABLE, FAMILIES[family], _REQUEST, {_TABLE_NAME: table})
        return (_number(tables[0][_TABLE_HANDLE]),) if tables else None

    def chain(self, family: str, table: str, chain: str) -> tuple[int, ...] | None:
        chains = self._query(_GET_CHAIN, FAMILIES[family], _REQUEST, {_CHAIN_TABLE: table, _CHAIN_NAME: chain})
        return _chain(chains[0]) if chains else None

    def marks(self, family: str, table: str) -> Marks:
        """Return the marks of a table and its chains; empty if the table is missing."""
        handle = self.table(family, table)
        if handle is None:
            return {}
        for _try in range(_TRIES):
            try:
                chains = {_text(attributes[_CHAIN_NAME]): _chain(attributes)
                          for attributes in self._query(_GET_CHAIN, FAMILIES[family], _REQUEST | _DUMP)
                          if _text(attributes[_CHAIN_TABLE]) == table}
            except InterruptedError:
                continue
            return {"": handle, **chains}
        raise OSError(f"the packet filters changed during each of {_TRIES} reads")

    def _query(self, kind: int, family: int, flags: int, names: dict[int, str] | None = None,
               ) -> list[dict[int, bytes]]:
        """Return the attributes of the objects that match a query."""
        self._sequence += 1
        body = struct.pack("=BBH", family, 0, 0) + b"".join(
            _attribute(number, name.encode() + b"\0") for number, name in (names or {}).items())
        self._socket.send(struct.pack("=IHHII", 16 + len(body), _SUBSYSTEM | kind, flags, self._sequence, 0) + body)
        objects: list[dict[int, bytes]] = []
        interrupted = False
        while True:
            data = self._socket.recv(1 << 17)
            for received, received_flags, sequence, payload in _messages(data):
                if sequence != self._sequence:
                    continue  # a late response to an earlier query
                interrupted = interrupted or bool(received_flags & _DUMP_INTERRUPTED)
                if received == _ERROR:
                    number = -struct.unpack_from("=i", payload)[0]
                    if number not in (0, _ENOENT):
                        raise OSError(number, os.strerror(number))
                    return objects
                if received == _DONE:
                    if interrupted:
                        raise InterruptedError
                    return objects
                objects.append(_attributes(payload[4:]))
                if not flags & _DUMP:
                    return objects


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, sequence number and payload of each netlink message in ``data``."""
    while len(data) >= 16:
        length, kind, flags, sequence, _port = struct.unpack_from("=IHHII", data)
        if length < 16:
            return
        yield kind, flags, sequence, data[16:length]
        data = data[length + 3 & ~3:]


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes = {}
    while len(data) >= 4:
        length, number = struct.unpack_from("=HH", data)
        if length < 4:
            break
        attributes[number & 0x3FFF] = data[4:length]
        data = data[length + 3 & ~3:]
    return attributes


def _attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


def _chain(attributes: dict[int, bytes]) -> tuple[int, ...]:
    return _number(attributes[_CHAIN_HANDLE]), _number(attributes.get(_CHAIN_USE, b""))


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
