"""What the kernel says of its packet filters, by netlink: a question costs microseconds and no process."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

# Of linux/netfilter/nfnetlink.h and nf_tables.h.
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
# Seconds that the kernel may take, and how often it is asked again while others change what is being read.
_TIMEOUT = 10
_TRIES = 20

# What tells a chain (name) or a table ("") from what it was before: its handle, and of chains the number of rules and
# references.
Marks = dict[str, tuple[int, ...]]


class PacketFilters:
    """The packet filters of the network namespace in which this is made. One thread at a time.

    Raises OSError when the kernel does not answer.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self._socket.settimeout(_TIMEOUT)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def generation(self) -> int:
        """A number that grows with every change of anybody."""
        for attributes in self._ask(_GET_GENERATION, 0, _REQUEST):
            return _number(attributes[_GENERATION_ID])
        raise OSError("the kernel does not tell the generation of its packet filters")

    def table(self, family: str, table: str) -> tuple[int, ...] | None:
        """The handle of a table, which no two tables ever share; None: there is no such table."""
        for attributes in self._ask(_GET_TABLE, FAMILIES[family], _REQUEST, {_TABLE_NAME: table}):
            return (_number(attributes[_TABLE_HANDLE]),)
        return None

    def chain(self, family: str, table: str, chain: str) -> tuple[int, ...] | None:
        for attributes in self._ask(_GET_CHAIN, FAMILIES[family], _REQUEST, {_CHAIN_TABLE: table, _CHAIN_NAME: chain}):
            return _chain(attributes)
        return None

    def marks(self, family: str, table: str) -> Marks:
        """All chains of a table, and the table itself; empty without it."""
        handle = self.table(family, table)
        if handle is None:
            return {}
        for _try in range(_TRIES):
            try:
                found = {_text(attributes[_CHAIN_NAME]): _chain(attributes)
                         for attributes in self._ask(_GET_CHAIN, FAMILIES[family], _REQUEST | _DUMP)
                         if _text(attributes[_CHAIN_TABLE]) == table}
            except InterruptedError:
                continue
            return {"": handle, **found}
        raise OSError("others change the packet filters all the time")

    def _ask(self, kind: int, family: int, flags: int, names: dict[int, str] | None = None,
             ) -> Iterator[dict[int, bytes]]:
        """The attributes of each object that is told; nothing for what is not there."""
        self._sequence += 1
        body = struct.pack("=BBH", family, 0, 0) + b"".join(
            _attribute(number, name.encode() + b"\0") for number, name in (names or {}).items())
        self._socket.send(struct.pack("=IHHII", 16 + len(body), _SUBSYSTEM | kind, flags, self._sequence, 0) + body)
        found: list[dict[int, bytes]] = []
        interrupted = False
        while True:
            data = self._socket.recv(1 << 17)
            for said, said_flags, sequence, payload in _messages(data):
                if sequence != self._sequence:
                    continue  # an answer that an earlier question did not wait for
                interrupted = interrupted or bool(said_flags & _DUMP_INTERRUPTED)
                if said == _ERROR:
                    number = -struct.unpack_from("=i", payload)[0]
                    if number not in (0, _ENOENT):
                        raise OSError(number, os.strerror(number))
                    return iter(found)
                if said == _DONE:
                    if interrupted:
                        raise InterruptedError
                    return iter(found)
                found.append(_attributes(payload[4:]))
                if not flags & _DUMP:
                    return iter(found)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, sequence number and payload of each message."""
    while len(data) >= 16:
        length, kind, flags, sequence, _port = struct.unpack_from("=IHHII", data)
        if length < 16:
            return
        yield kind, flags, sequence, data[16:length]
        data = data[length + 3 & ~3:]


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, number = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[number & 0x3FFF] = data[4:length]
        data = data[length + 3 & ~3:]
    return found


def _attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


def _chain(attributes: dict[int, bytes]) -> tuple[int, ...]:
    return _number(attributes[_CHAIN_HANDLE]), _number(attributes.get(_CHAIN_USE, b""))


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
