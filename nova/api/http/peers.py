"""Who is connected: addresses, those of our own proxies, and how many connections each client has."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@functools.lru_cache(4096)
def client_of(address: str) -> str:
    """What counts as one client: an IPv4 address; of IPv6 the /64, whose addresses one client takes as it likes."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(found) >> 64 << 64)) + "/64"
    return str(found)


def among(texts: Sequence[str]) -> Callable[[str], bool]:
    """A function that says whether an address is in one of these addresses and networks. Raises ValueError."""
    known = [ipaddress.ip_network(text.strip(), strict=False) for text in texts if text.strip()]
    if not known:
        return lambda address: False

    @functools.lru_cache(4096)
    def trusted(address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in known)

    return trusted
