"""DNS records of floating addresses for the guests on this host: one hosts file that all its dnsmasq processes read.

The records are stored in state_path/names, one file per domain, for the next start. The hosts file is below /run, where
dnsmasq can read it after it drops root privileges."""

import hashlib
import ipaddress
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator

from nova.common import files
from nova.conf import CONF
from nova.network.linux import dhcp, state_files
from nova.objects.networks.floating_ip_dns import ServedDomain

LOG = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?")


class DnsRecords:
    """The DNS records of this host, by domain. Thread-safe."""

    def __init__(self, state_path: str, tag: str) -> None:
        self._state_folder = os.path.join(state_path, "names")
        self._path = dhcp.names_file(tag)
        self._domains: dict[str, ServedDomain] | None = None
        # Held until the file is written, so that an older update never overwrites a newer one.
        self._lock = threading.RLock()

    def versions(self) -> dict[str, int]:
        """Return the versions of the served domains, by domain."""
        with self._lock:
            return {name: domain.version for name, domain in self._all().items() if not domain.removed}

    def poll(self, query: Callable[[dict[str, int]], Iterable[ServedDomain]], apply: Callable[[], None]) -> None:
        """Call ``query`` with the present versions and apply its updates, until it returns no more updates. A deleted
        domain may return with the same version: the host returned to its zone, or the database was restored. So the
        record of a deletion is only compared with messages, which may be late, and not with results of a query."""
        updated = True
        while updated:
            with self._lock:
                self._domains = {name: domain for name, domain in self._all().items() if not domain.removed}
            updated = self.update(query(self.versions()), apply)

    def update(self, domains: Iterable[ServedDomain], apply: Callable[[], None]) -> bool:
        """Store the newer ones of these domains and return True if there were any. If this host has networks, the hosts
        file is written and ``apply`` called, which makes dnsmasq read the file. The state files are written last: a
        process that dies before requests the domains again."""
        with self._lock:
            present = self._all()
            newer = [domain for domain in domains
                     if (old := present.get(domain.domain)) is None or domain.version > old.version
                     or (domain.removed and not old.removed and domain.version == old.version)]
            for domain in newer:
                present[domain.domain] = domain
            if newer and os.path.exists(self._path):
                self.write_hosts_file()
                apply()
            for domain in newer:
                if domain.removed:
                    files.remove(self._state_file(domain.domain))
                else:
                    state_files.write(self._state_file(domain.domain), domain)
            return bool(newer)

    def write_hosts_file(self) -> None:
        """Write the hosts file, if its content has changed."""
        with self._lock:
            text = "".join(sorted(self._lines()))
            if dhcp.read(self._path) != text:
                os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
                os.chmod(os.path.dirname(self._path), 0o755)  # noqa: S103
                files.replace(self._path, text, mode=0o644)

    def remove_hosts_file(self) -> None:
        """Remove the hosts file, when the last network of the host is removed."""
        with self._lock:
            files.remove(self._path)

    def _lines(self) -> Iterator[str]:
        own = (CONF.network.dhcp_domain or "").lower()
        for domain in self._all().values():
            for name, address in domain.names.items():
                full = f"{name}.{domain.domain}"
                # Names in the host's own domain (gateway, metadata service, guests) must not be overridden.
                if _NAME.fullmatch(full) and _is_address(address) and not (own and f".{full}".endswith(f".{own}")):
                    yield f"{address} {full}\n"

    def _all(self) -> dict[str, ServedDomain]:
        """Return the domains by name, read from the state files at the first call."""
        if self._domains is None:
            names = os.listdir(self._state_folder) if os.path.isdir(self._state_folder) else []
            domains = (state_files.read(os.path.join(self._state_folder, name), ServedDomain) for name in names
                       if name.endswith(".json"))
            self._domains = {domain.domain: domain for domain in domains if domain is not None}
        return self._domains

    def _state_file(self, domain: str) -> str:
        # A hash, since a domain may be as long as a file name without the suffix.
        return os.path.join(self._state_folder, hashlib.sha256(domain.encode()).hexdigest() + ".json")


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
