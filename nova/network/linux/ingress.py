"""Security group rules as nftables rules, for one version of IP at a time."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from nova.common import plain_ip
from nova.objects.networks.network import FilterRule

LOG = logging.getLogger(__name__)

# IP version -> nftables expressions of the header, of the protocol field, of ICMP and of ICMP as a protocol.
_HEADER = {4: "ip", 6: "ip6"}
_PROTOCOL = {4: "ip protocol", 6: "meta l4proto"}
_ICMP = {4: "icmp", 6: "icmpv6"}
_ICMP_NAME = {4: "icmp", 6: "ipv6-icmp"}


def accepted(rules: Iterable[FilterRule], version: int) -> list[str]:
    """Return nftables rules that accept the traffic that these rules allow. A rule without sources allows all senders.
    A rule that nftables cannot express is left out (dropped)."""
    lines: list[str] = []
    for rule in rules:
        sources = _sources(rule.sources, version) if rule.group is None else (
            f"ether saddr . {_HEADER[version]} saddr @{members(rule.group, version)}")
        match = _match(rule, version)
        if match is None:
            LOG.warning("Ignoring an ingress rule that packet filters cannot express, its traffic is dropped: %s", rule)
        elif sources is not None:
            lines.append(" ".join(filter(None, (sources, match, "accept"))))
    return list(dict.fromkeys(lines))


def members(group_id: int, version: int) -> str:
    """Return the name of the set of a security group's interfaces: MAC address and IP address of one version. The MAC
    address is included because networks may have the same IP addresses. MAC addresses are unique, and a guest cannot
    forge its own."""
    return f"interfaces{'' if version == 4 else version}_{group_id:d}"


def _sources(sources: Sequence[str], version: int) -> str | None:
    """Return a match of the sender: "" for all senders, None if no source has this IP version."""
    if not sources:
        return ""
    try:
        parsed = [plain_ip.network(source, strict=False) for source in sources]
    except ValueError:
        LOG.warning("Ignoring an ingress rule with invalid sources, its traffic is dropped: %s", sources)
        return None
    networks: list[Any] = list(ipaddress.collapse_addresses(
        [net for net in parsed if net.version == version]))  # type: ignore[type-var]
    if not networks:
        return None
    if networks[0].prefixlen == 0:
        return ""
    return f"{_HEADER[version]} saddr {{ {', '.join(map(str, networks))} }}"


def _match(rule: FilterRule, version: int) -> str | None:
    """Return a match of protocol and ports (ICMP: type and code), or None if the rule is invalid."""
    first = rule.from_port if rule.from_port is not None and rule.from_port >= 0 else None
    last = rule.to_port if rule.to_port is not None and rule.to_port >= 0 else None
    protocol = (rule.protocol or "").lower()
    if protocol in ("", "any", "-1"):
        return ""
    if protocol in ("icmp", "icmpv6", "ipv6-icmp"):
        if max(first or 0, last or 0) > 255:
            return None
        icmp = _ICMP[version]
        kind = f"{icmp} type {first}" if first is not None else f"{_PROTOCOL[version]} {_ICMP_NAME[version]}"
        return f"{kind} {icmp} code {last}" if first is not None and last is not None else kind
    if protocol in ("tcp", "udp"):
        if first is None:
            return f"{_PROTOCOL[version]} {protocol}"
        last = first if last is None else last
        if not first <= last <= 65535:
            return None
        return f"{protocol} dport {first}-{last}" if last > first else f"{protocol} dport {first}"
    if protocol.isdecimal() and int(protocol) <= 255:
        return f"{_PROTOCOL[version]} {int(protocol)}"
    return None
