"""Announcement and discovery of novad instances by mDNS.

Data from the network are not trusted: they are limited in length and to printable characters, and an instance must
prove that it knows the shared secret or has a certificate before it is used.
"""

import concurrent.futures
import contextlib
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

TYPE = "_nova._tcp.local."

_ROLE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST_INSTANCES, _MOST_ROLES, _MOST_ADDRESSES = 500, 16, 16
_RESOLVERS = 8  # Number of concurrent resolvers, so that a silent instance delays no other.
_ANSWER = 2.0  # timeout in seconds of a query for the address of an instance
_TTL = 120  # Seconds after which the announcement of a killed novad expires.


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An announced novad. ``addresses``: tcp://HOST:PORT or tls://HOST:PORT."""

    name: str
    node: str
    version: str
    roles: tuple[str, ...]
    addresses: tuple[str, ...]


def printable(value: bytes | str | None, most: int) -> str:
    """Return the printable characters of a value from the network."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
    return "".join(letter for letter in text if letter.isprintable())[:most].strip()


def instance(name: str, properties: Mapping[bytes, bytes | None], addresses: Sequence[bytes], port: int) -> Instance:
    """Build an instance from data of the network. Never raises."""
    label = printable(name.removesuffix(f".{TYPE}"), 63)
    scheme = "tls" if properties.get(b"tls") == b"1" else "tcp"
    usable: list[str] = []
    for address in addresses[:_MOST_ADDRESSES]:
        with contextlib.suppress(ValueError):
            host = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
            usable.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    roles = printable(properties.get(b"roles"), 255).split(",")[:_MOST_ROLES]
    return Instance(name=label, node=printable(properties.get(b"node"), 63) or label,
                    version=printable(properties.get(b"version"), 40),
                    roles=tuple(role for role in roles if _ROLE.fullmatch(role)), addresses=tuple(usable))


class Watch:
    """A watch of instances on the network. Raises OSError if there is no network to listen on. A full table drops
    instances silently. zeroconf reports only changes, so only a new watch finds dropped instances again."""

    def __init__(self, interfaces: Sequence[str] | None = None) -> None:
        from zeroconf import InterfaceChoice, ServiceBrowser, Zeroconf

        logging.getLogger("zeroconf").setLevel(logging.CRITICAL + 1)  # It logs unverified data from the network.
        self._instances: dict[str, Instance | None] = {}  # An instance is None until its address is resolved.
        self._queued: set[str] = set()  # Names that no resolver has processed yet.
        self._events: queue.SimpleQueue[tuple[str, Instance | None]] = queue.SimpleQueue()  # None: disappeared.
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="mdns")
        self._zeroconf = Zeroconf(interfaces=list(interfaces) if interfaces else InterfaceChoice.All)
        self._browser = ServiceBrowser(self._zeroconf, TYPE, handlers=[self._changed])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._zeroconf.close()

    def events(self, seconds: float | None = None) -> Iterator[tuple[bool, Instance]]:
        """Yield (present, instance) for ``seconds`` seconds; None: for ever."""
        end = time.monotonic() + (float("inf") if seconds is None else seconds)
        while (left := min(0.5, end - time.monotonic())) > 0:
            with contextlib.suppress(queue.Empty):
                name, instance = self._events.get(timeout=left)
                with self._lock:
                    before = self._instances.get(name)
                    if instance is None:
                        self._instances.pop(name, None)
                    elif name in self._instances:
                        self._instances[name] = instance
                if instance != before and (shown := instance or before) is not None:
                    yield instance is not None, shown

    def _changed(self, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        """Queue a change. Called in zeroconf's own thread, which must not block."""
        from zeroconf import ServiceInfo, ServiceStateChange

        if state_change is ServiceStateChange.Removed:
            self._events.put((name, None))
            return
        if self._events.qsize() < _MOST_INSTANCES:
            info = ServiceInfo(TYPE, name)
            with contextlib.suppress(Exception):  # A malformed record is left to the resolver.
                if info.load_from_cache(self._zeroconf):  # A complete announcement needs no resolver.
                    with self._lock:
                        self._admit(name)
                    self._report(name, info)
                    return
        with self._lock, contextlib.suppress(RuntimeError):  # The watch is already closed.
            if name not in self._queued and self._admit(name):
                self._queued.add(name)
                self._pool.submit(self._resolve, name)

    def _admit(self, name: str) -> bool:
        """Add a name if there is room. A full table drops the oldest resolved name, names without address first."""
        if name not in self._instances and len(self._instances) >= _MOST_INSTANCES:
            resolved = [candidate for candidate in self._instances if candidate not in self._queued]
            if not resolved:
                return False
            del self._instances[min(resolved, key=lambda candidate: self._instances[candidate] is not None)]
        self._instances.setdefault(name, None)
        return True

    def _report(self, name: str, info: Any) -> None:
        from zeroconf import IPVersion

        if info is not None and info.port and (addresses := info.addresses_by_version(IPVersion.All)):
            self._events.put((name, instance(name, info.properties, addresses, info.port)))

    def _resolve(self, name: str) -> None:
        with self._lock:
            self._queued.discard(name)
        try:
            self._report(name, self._zeroconf.get_service_info(TYPE, name, int(_ANSWER * 1000)))
        except Exception:  # Invalid announcement: the instance cannot be reached.
            logging.getLogger(__name__).debug("Cannot resolve the announcement of an instance", exc_info=True)


class Announcement:
    """The announcement of a novad on the interfaces with ``addresses``. Raises OSError and errors of zeroconf."""

    def __init__(self, announced: Instance, addresses: Sequence[str], port: int, tls: bool) -> None:
        from zeroconf import ServiceInfo, Zeroconf

        logging.getLogger("zeroconf").setLevel(logging.CRITICAL + 1)  # It logs unverified data from the network.
        label = printable(announced.node, 63).encode()[:60].decode("utf-8", "ignore") or "novad"
        host = re.sub(r"[^a-z0-9-]", "-", label.lower())[:50]
        properties = {"version": announced.version, "node": label, "roles": ",".join(announced.roles)[:200],
                      "tls": "1" if tls else "0"}
        info = ServiceInfo(TYPE, f"{label}.{TYPE}", port=port, server=f"{host}-novad.local.", host_ttl=_TTL,
                           other_ttl=_TTL, parsed_addresses=list(addresses), properties=properties)
        self._zeroconf = Zeroconf(interfaces=list(addresses))
        try:
            self._zeroconf.register_service(info, allow_name_change=True)
        except BaseException:
            self._zeroconf.close()
            raise

    def withdraw(self) -> None:
        with contextlib.suppress(Exception):
            self._zeroconf.unregister_all_services()
        self._zeroconf.close()
