"""The announcement of a serving novad by mDNS."""

from __future__ import annotations

import logging
import socket
import threading

from nova import __version__
from nova.common import plain_ip
from nova.common.plain_ip import on_loopback
from nova.novad.mdns import Announcement, Instance
from nova.novad.options import Options

LOG = logging.getLogger(__name__)

_CHECK_INTERVAL = 30.0  # Seconds between two checks of the addresses of the machine.


class Announcer:
    """Announces the addresses that novad listens on, also later ones. Failures do not stop novad."""

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
    """Return the listening addresses that the option ``announce`` selects, in a stable order."""
    addresses = _listening(options.address[0])
    if isinstance(options.announce, tuple):
        wanted = set(options.announce)
        addresses = {address: name for address, name in addresses.items() if wanted & {address, name}}
    return sorted(addresses)


def _listening(host: str) -> dict[str, str]:
    """Return {address: interface} of the addresses of novad; with a wildcard, loopback only if there is no other."""
    import ifaddr

    ours: dict[str, str] = {}
    for adapter in ifaddr.get_adapters():
        for adapter_address in adapter.ips:
            ours[adapter_address.ip if isinstance(adapter_address.ip, str) else adapter_address.ip[0]] = adapter.name
    usable = {address: name for address, name in ours.items() if not plain_ip.address(address).is_link_local}
    if host in ("0.0.0.0", "::"):
        usable = {address: name for address, name in usable.items() if host == "::" or ":" not in address}
        return {address: name for address, name in usable.items() if not on_loopback(address)} or usable
    try:
        named = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {}
    return {address: name for address, name in usable.items() if address in named}
