"""Names of floating addresses that guests on this host may ask for: one file that all of its dnsmasqs read.

What was told is kept in state_path/names, a file for each domain, for the next start. The file of dnsmasq lives below
/run, since dnsmasq gives up root.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator

from nova.conf import CONF
from nova.network import dhcp, records
from nova.objects.floating_ip_dns import ServedDomain

LOG = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?")


class Names:
    def __init__(self, state_path: str, tag: str) -> None:
        self._folder = os.path.join(state_path, "names")
        self._path = dhcp.names_file(tag)
        self._domains: dict[str, ServedDomain] | None = None
        # Held until the file is as was heard, so that what is older never overtakes.
        self._lock = threading.RLock()

    def known(self) -> dict[str, int]:
        """The domains that are answered for, and the versions of what is known."""
        with self._lock:
            return {domain: told.version for domain, told in self._heard().items() if not told.gone}

    def ask(self, question: Callable[[dict[str, int]], Iterable[ServedDomain]], apply: Callable[[], None]) -> None:
        """Hear what ``question`` answers to what is known, some domains at a time, until it is no news.

        A domain that went may be here again though it is as old as it was: the host came back to its zone, or the
        database was restored. So what was said of its end counts against older words that are on their way, and not
        against an answer.
        """
        news = True
        while news:
            self._forget_gone()
            news = self.hear(question(self.known()), apply)

    def _forget_gone(self) -> None:
        with self._lock:
            heard = self._heard()
            for domain in [domain for domain, told in heard.items() if told.gone]:
                del heard[domain]

    def hear(self, told: Iterable[ServedDomain], apply: Callable[[], None]) -> bool:
        """If anything is news the file has it, if it is needed on this host, and ``apply`` has dnsmasq read it.

        It counts as known only then: a process that dies before asks for it again. Returns whether anything was.
        """
        with self._lock:
            heard = self._heard()
            news = [each for each in told if each.domain not in heard or each.version > heard[each.domain].version
                    or (each.gone and not heard[each.domain].gone and each.version == heard[each.domain].version)]
            for each in news:
                heard[each.domain] = each
            if news and os.path.exists(self._path):
                self.make()
                apply()
            for each in news:
                if each.gone:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._record(each.domain))
                else:
                    records.write(self._record(each.domain), each)
            return bool(news)

    def make(self) -> None:
        """The file is there, with all names."""
        with self._lock:
            text = "".join(sorted(self._lines()))
            if dhcp.read(self._path) != text:
                os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
                os.chmod(os.path.dirname(self._path), 0o755)  # noqa: S103
                dhcp.write(self._path, text)

    def unmake(self) -> None:
        """The last network of the host goes."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _lines(self) -> Iterator[str]:
        own = (CONF.network.dhcp_domain or "").lower()
        for domain, told in self._heard().items():
            for name, address in told.names.items():
                full = f"{name}.{domain}"
                # What the host itself says of the gateway, the metadata service and guests is nobody else's to say.
                if _NAME.fullmatch(full) and _is_address(address) and not (own and f".{full}".endswith(f".{own}")):
                    yield f"{address} {full}\n"

    def _heard(self) -> dict[str, ServedDomain]:
        if self._domains is None:
            names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
            found = (records.read(os.path.join(self._folder, name), ServedDomain) for name in names
                     if name.endswith(".json"))
            self._domains = {told.domain: told for told in found if told is not None}
        return self._domains

    def _record(self, domain: str) -> str:
        # A domain may be as long as a file's name, without what comes after it.
        return os.path.join(self._folder, hashlib.sha256(domain.encode()).hexdigest() + ".json")


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
