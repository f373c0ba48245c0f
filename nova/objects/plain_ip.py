"""IP addresses and networks in the text of users, operators and other services: without a zone.

Python takes "fe80::1%zone" with any zone, also one of several lines, and writes it again as it came. Where that goes on
into the commands of packet filters or the files of a DHCP server it would be whatever a user likes. So such text is
read here alone (tests/unit/test_house.py).
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_ZONE = re.compile("%[^/]*")


def address(text: str) -> Address:
    """Raises ValueError."""
    return ipaddress.ip_address(_plain(text))


def network(text: str, strict: bool = True) -> Network:
    """``strict``: without a host's part. Raises ValueError."""
    return ipaddress.ip_network(_plain(text), strict)


def interface(text: str) -> Interface:
    """An address with the network that it is in. Raises ValueError."""
    return ipaddress.ip_interface(_plain(text))


def v6_address(text: str) -> ipaddress.IPv6Address:
    """Raises ValueError."""
    return ipaddress.IPv6Address(_plain(text))


def v6_network(text: str) -> ipaddress.IPv6Network:
    """Raises ValueError."""
    return ipaddress.IPv6Network(_plain(text))


def without_zone(text: str) -> str:
    """What is left of text that may have been taken in an earlier release."""
    return _ZONE.sub("", text)


def _plain(text: str) -> str:
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    return text
