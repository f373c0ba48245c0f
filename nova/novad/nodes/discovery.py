"""Discovery of nodes by mDNS: a bounded table of announced novad instances, and the announcement of this novad.

The table is maintained in the background: commands read it without waiting. Announcements are not trusted. Each
instance is tried without any secret and is confirmed once it has presented a certificate of the authority of nodes,
for its address and for the node name that it announces.
"""

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from nova import __version__
from nova.common import plain_ip
from nova.common.plain_ip import on_loopback
from nova.novad.mdns import Announcement, Instance, Watch
from nova.novad.options import Options

LOG = logging.getLogger(__name__)

LIMIT = 2.0  # Timeout of a connection and its TLS handshake in seconds.
MOST = 64  # Maximum number of instances in the table.
_RETRY_AFTER = 60.0  # Seconds until a confirmed instance is tried again.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 120.0  # Seconds between attempts at a failing instance.
_FORGOTTEN = 600.0  # Seconds of failures after which an instance is removed from the table.
_BROWSE = 300.0  # Seconds until a new watch replaces the current one, to find dropped instances again.
_RETRY = 10.0  # Seconds until browsing is restarted after a network error.
_CHECK_INTERVAL = 30.0  # Seconds between two checks of the addresses of the machine.


class Entry(msgspec.Struct):
    """An announced novad. ``failing``: time since which it is unconfirmed (monotonic, or None); ``due``: next try."""

    instance: Instance
    failing: float | None
    due: float
    turn: int = 0  # Number of failures; modulo the number of addresses, it selects the address to try.
    address: str = ""  # The address that presented a certificate.
    announced: Instance | None = None  # The latest announcement, if ``address`` was confirmed before.


class Discovery:
    """Browses by mDNS and tries one address of one instance at a time, first those with the name of a node of the
    platform. ``files``: NOVA_CACERT (the authority of nodes), NOVA_CERT and NOVA_KEY; ``ended``: set when novad stops;
    ``expected``: returns the names of configured and accepted nodes."""

    def __init__(self, files: Mapping[str, str], ended: threading.Event,
                 names: Callable[[str, Mapping[str, str]], Collection[str]] | None = None,
                 expected: Callable[[], Collection[str]] = tuple) -> None:
        self._files, self._expected = files, expected
        self._ended = ended
        self._names = names or certificate_names
        self._entries: dict[str, Entry] = {}
        self._lock, self._news = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=work, name=f"discovery-{work.__name__.strip('_')}", daemon=True)
                         for work in (self._browse, self._try_all)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the threads. Called after ``ended`` was set."""
        self._news.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5)

    def trusted(self) -> list[tuple[str, str]]:
        """Return (name, address) of each instance that presented a certificate for both."""
        with self._lock:
            return [(entry.instance.node, entry.address) for entry in self._entries.values() if entry.address]

    def add(self, instance: Instance) -> None:
        """Add an instance or its new addresses, which are used once a confirmed address of the instance fails. A full
        table drops the instance that failed for the longest time."""
        urls = tuple(url for url in instance.addresses if url.startswith("tls://"))
        if not urls:
            self.remove(instance.name)
            return
        instance = msgspec.structs.replace(instance, addresses=urls)
        now = time.monotonic()
        with self._lock:
            previous = self._entries.get(instance.name)
            if previous is not None and previous.address:  # Anybody may announce another address for the name.
                previous.announced, previous.failing = instance, None
                return
            if previous is not None and previous.instance == instance:
                return
            if previous is None and len(self._entries) >= MOST:
                expected = self._expected()
                failing = {name: (entry.instance.node in expected, entry.failing) for name, entry
                           in self._entries.items() if entry.failing is not None and not entry.address}
                if not failing:
                    return
                del self._entries[min(failing, key=lambda name: failing[name])]
            self._entries[instance.name] = Entry(instance, failing=now, due=now)
        self._news.set()

    def remove(self, name: str) -> None:
        """Remove an instance. A confirmed address is kept while it works: anybody may withdraw an announcement."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and entry.address:
                entry.failing, entry.due = float("-inf"), min(entry.due, time.monotonic() + _FIRST_PAUSE)
            else:
                self._entries.pop(name, None)

    def _browse(self) -> None:
        while not self._ended.is_set():
            try:
                end = time.monotonic() + _BROWSE
                with contextlib.closing(Watch()) as watch:
                    while not self._ended.is_set() and time.monotonic() < end:
                        for there, instance in watch.events(1.0):
                            self.add(instance) if there else self.remove(instance.name)
            except Exception as error:  # The network may return.
                LOG.warning("Browsing for nodes by mDNS failed, retrying in %d s: %s", _RETRY,
                            error or type(error).__name__)
                self._ended.wait(_RETRY)

    def _try_all(self) -> None:
        while not self._ended.is_set():
            self._news.clear()
            entry = self._next()
            now = time.monotonic()
            if entry is None or entry.due > now:
                self._news.wait(min(_FIRST_PAUSE, entry.due - now) if entry is not None else _FIRST_PAUSE)
                continue
            try:
                self._try(entry)
            except Exception:  # An announcement must not end the thread.
                LOG.debug("Ignoring the announced novad %s: cannot query it", entry.instance.name, exc_info=True)
                self.remove(entry.instance.name)

    def _next(self) -> Entry | None:
        """Return the instance to try next: of those that are due, expected nodes first, then new and confirmed ones."""
        now, expected = time.monotonic(), self._expected()
        with self._lock:
            return min(self._entries.values(), default=None, key=lambda entry: (
                max(entry.due, now), entry.instance.node not in expected, entry.turn > 0 and not entry.address,
                entry.due))

    def _try(self, entry: Entry) -> None:
        addresses = entry.instance.addresses
        url = entry.address or addresses[entry.turn % len(addresses)]
        connected = entry.instance.node in self._names(url, self._files)
        now = time.monotonic()
        with self._lock:
            if connected:
                entry.address, entry.failing, entry.turn, entry.due = url, None, 0, now + _RETRY_AFTER
                return
            entry.address, entry.turn = "", entry.turn + 1
            entry.instance, entry.announced = entry.announced or entry.instance, None
            entry.failing = now if entry.failing is None else entry.failing
            rounds, rest = divmod(entry.turn, len(entry.instance.addresses))
            entry.due = now + (1.0 if rest else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (rounds - 1)))
            if now > entry.failing + _FORGOTTEN and self._entries.get(entry.instance.name) is entry:
                del self._entries[entry.instance.name]


def certificate_names(url: str, files: Mapping[str, str]) -> list[str]:
    """Return the names in the certificate that a server presents, or none if the authority of nodes did not issue it
    for the address of the server."""
    host, _colon, port = url.removeprefix("tls://").rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # gRPC accepts an intermediate authority, too.
    try:
        context.load_verify_locations(files["NOVA_CACERT"])
        if files.get("NOVA_CERT"):
            context.load_cert_chain(files["NOVA_CERT"], files["NOVA_KEY"])
        with socket.create_connection((host.strip("[]"), int(port)), LIMIT / 2) as plain, context.wrap_socket(
                plain, server_hostname=host.strip("[]")) as connection:
            presented: Any = connection.getpeercert() or {}
    except (OSError, ValueError) as error:
        LOG.debug("Cannot verify the certificate of the novad at %s: %s", url, error)
        return []
    names = [value for kind, value in presented.get("subjectAltName", ()) if kind == "DNS"]
    return names or [value for part in presented.get("subject", ()) for kind, value in part if kind == "commonName"]


class Announcer:
    """Announces the addresses on which novad listens, including later ones. Failures do not stop novad."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._ending = threading.Event()
        self._made: Announcement | None = None
        self._said: list[str] = []
        self._thread = threading.Thread(target=self._keep, name="announce", daemon=True)

    def start(self) -> None:
        if self.options.announce:
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _keep(self) -> None:
        while True:
            try:
                self._update_announcement()
            except Exception as error:  # The next check may succeed.
                LOG.warning("Not announcing novad by mDNS: %s", error or type(error).__name__)
            if self._ending.wait(_CHECK_INTERVAL):
                break
        if self._made is not None:
            self._made.withdraw()

    def _update_announcement(self) -> None:
        addresses = announced(self.options)
        if addresses == self._said:
            return
        if self._made is not None:
            self._made.withdraw()
        self._made, self._said = None, []
        if not addresses:
            LOG.warning("Not announcing novad by mDNS: novad listens on none of the addresses of the option announce")
            return
        options, name = self.options, self.options.name
        instance = Instance(name=name, node=name, version=__version__, roles=options.roles, addresses=())
        self._made = Announcement(instance, addresses, options.address[1], bool(options.tls_cert))
        self._said = addresses
        LOG.info("Announcing novad by mDNS at %s", ", ".join(addresses))


def announced(options: Options) -> list[str]:
    """Return the listening addresses that the option ``announce`` selects, in a stable order. If novad listens on all
    addresses, loopback is selected only if there is no other address."""
    import ifaddr

    host, wanted = options.address[0], options.announce
    ours = {ip.ip if isinstance(ip.ip, str) else ip.ip[0]: adapter.name
            for adapter in ifaddr.get_adapters() for ip in adapter.ips}
    usable = {address: name for address, name in ours.items() if not plain_ip.address(address).is_link_local}
    if host in ("0.0.0.0", "::"):
        usable = {address: name for address, name in usable.items() if host == "::" or ":" not in address}
        usable = {address: name for address, name in usable.items() if not on_loopback(address)} or usable
    else:
        named = set()
        with contextlib.suppress(OSError):
            named = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        usable = {address: name for address, name in usable.items() if address in named}
    return sorted(address for address, name in usable.items()
                  if not isinstance(wanted, tuple) or address in wanted or name in wanted)
