"""Addresses, and which of them are this machine itself."""

from __future__ import annotations

import ipaddress


def is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def on_loopback(host: str) -> bool:
    """Whether ``host`` (an address, in brackets or not, or a name) is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
