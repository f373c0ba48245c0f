"""What is this machine itself, of what names a host."""

from __future__ import annotations

import ipaddress


def on_loopback(host: str) -> bool:
    """Whether ``host`` (an address, in brackets or not, or a name) is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
