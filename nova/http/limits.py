"""Limits of clients of the API, and addresses of trusted proxies."""

import dataclasses
import functools
import ipaddress
from collections.abc import Callable, Sequence

from nova.common import plain_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of clients: bytes of the request line and headers, bytes of a body, seconds for a whole request,
    connections of one client and in total. ``trusted``: returns True for addresses (proxies) without a limit."""

    header_size: int = 32 * 1024
    body_size: int = 112 * 1024
    receive: float = 30.0
    per_client: int = 256
    total: int = 1000
    trusted: Callable[[str], bool] = lambda address: False


def among(texts: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tests whether an address is one of, or in one of, these addresses and networks. Raises
    ValueError if a text is neither."""
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
