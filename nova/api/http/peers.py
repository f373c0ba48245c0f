"""Addresses of trusted proxies."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Sequence

from nova.common import plain_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def among(texts: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that returns True for addresses in these addresses and networks. Raises ValueError."""
    networks = [plain_ip.network(text.strip(), strict=False) for text in texts if text.strip()]
    if not networks:
        return lambda address: False

    @functools.lru_cache(4096)
    def trusted(address: str) -> bool:
        try:
            parsed = plain_ip.address(address.partition("%")[0])
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in networks)

    return trusted
