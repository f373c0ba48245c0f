"""Addresses as text, which become what they are here alone, and which of them are this machine itself."""

from __future__ import annotations

import ipaddress
import re


def is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def shown(packed: bytes) -> str:
    """An address of 4 or 16 bytes, in brackets where a port may follow. Raises ValueError."""
    address = ipaddress.ip_address(packed)
    return f"[{address}]" if address.version == 6 else str(address)


def is_link_local(address: str) -> bool:
    """Raises ValueError."""
    return ipaddress.ip_address(address).is_link_local


def on_loopback(host: str) -> bool:
    """Return True if ``host`` (an address, in brackets or not, or a name) is reachable from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return True if ``host`` (in brackets or not) stands for all addresses of a machine (0.0.0.0, ::)."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def registry_on_loopback(reference: str) -> bool:
    """Return True if an image's registry is on this machine; such a registry speaks no TLS."""
    host, slash, _rest = reference.partition("/")
    return bool(slash) and on_loopback(re.sub(r":\d+$", "", host))
