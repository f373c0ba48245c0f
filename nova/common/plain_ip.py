"""IP addresses and networks as text from users, operators and other services. Scope ids (zones) are refused.

The ipaddress module accepts "fe80::1%zone" with any zone, even with line breaks, and prints it unchanged. In commands
of packet filters or files of a DHCP server such text would allow injection. Therefore this module alone parses
addresses (checked by tests/unit/test_house.py)."""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def address(text: str) -> Address:
    """Parse an address. Raises ValueError."""
    return ipaddress.ip_address(_plain(text))


def network(text: str, strict: bool = True) -> Network:
    """Parse a network. ``strict``: host bits must be zero. Raises ValueError."""
    return ipaddress.ip_network(_plain(text), strict)


def interface(text: str) -> Interface:
    """Parse an address with its network prefix. Raises ValueError."""
    return ipaddress.ip_interface(_plain(text))


def v6_address(text: str) -> ipaddress.IPv6Address:
    """Parse an IPv6 address. Raises ValueError."""
    return ipaddress.IPv6Address(_plain(text))


def v6_network(text: str) -> ipaddress.IPv6Network:
    """Parse an IPv6 network. Raises ValueError."""
    return ipaddress.IPv6Network(_plain(text))


def _plain(text: str) -> str:
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    return text


def is_address(text: str) -> bool:
    """Return True if the text is an address."""
    return _address_or_none(text) is not None


def on_loopback(host: str) -> bool:
    """Return True if only this machine can reach ``host``, a name or an address, in brackets or not."""
    parsed = _address_or_none(host.strip("[]"))
    return host == "localhost" or (parsed is not None and parsed.is_loopback)


def is_wildcard(host: str) -> bool:
    """Return True if ``host``, in brackets or not, is the unspecified address (0.0.0.0 or ::)."""
    parsed = _address_or_none(host.strip("[]"))
    return parsed is not None and parsed.is_unspecified


def _address_or_none(text: str) -> Address | None:
    try:
        return address(text)
    except ValueError:
        return None
