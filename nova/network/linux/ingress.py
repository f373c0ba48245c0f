"""Security groups as nftables commands. All guests of a group on a host share its packet filters: the chains of a guest
jump to the chains of its groups. The members of a group are a set, so that a new or deleted server changes elements of
a set and no rule."""

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from nova.common import plain_ip
from nova.network.linux.filters import mac_address
from nova.objects.networks.network import FilterRule, GroupFilter

LOG = logging.getLogger(__name__)

# IP version -> nftables expressions of the header, of the protocol field, of ICMP and of ICMP as a protocol.
_HEADER = {4: "ip", 6: "ip6"}
_PROTOCOL = {4: "ip protocol", 6: "meta l4proto"}
_ICMP = {4: "icmp", 6: "icmpv6"}
_ICMP_NAME = {4: "icmp", 6: "ipv6-icmp"}
# Prefix of the names of group chains. No other chain has this prefix.
PREFIX = "group"
_CHAINS = {4: PREFIX, 6: f"{PREFIX}6"}


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


# --- the packet filters of a group, shared by its guests on a host ------------------------------------
def jumps(group_ids: Sequence[int], version: int) -> list[str]:
    """Return the rules of a guest that jump to the chains of these groups, for one version of IP."""
    return [f"jump {_CHAINS[version]}_{group_id:d}" for group_id in group_ids]


def ensure_chains(table: str, group_id: int) -> list[str]:
    """Create the chains of a group, empty, unless they exist."""
    return [f"add chain bridge {table} {chain}_{group_id:d}" for chain in _CHAINS.values()]


def replace_group(table: str, group: GroupFilter) -> list[str]:
    """Replace the chains and the members of a group. Raises ValueError for invalid values."""
    t = f"bridge {table}"
    lines = [*ensure_chains(table, group.id), *(f"flush chain {t} {chain}_{group.id:d}" for chain in _CHAINS.values())]
    lines += [line for other in sorted({group.id, *group.named()}) for line in _sets(table, other)]
    interfaces = [(mac_address(mac), plain_ip.address(member))
                  for mac, member in zip(group.macs, group.members, strict=False)]
    for version, chain in _CHAINS.items():
        name = members(group.id, version)
        elements = ", ".join(f"{mac} . {member}" for mac, member in interfaces if member.version == version)
        lines += [f"flush set {t} {name}", *([f"add element {t} {name} {{ {elements} }}"] if elements else [])]
        lines += [f"add rule {t} {chain}_{group.id:d} {rule}" for rule in accepted(group.rules, version)]
    return lines


def remove_groups(table: str, group_ids: Sequence[int]) -> list[str]:
    """Remove the chains and sets of groups that no guest and no other group uses."""
    t = f"bridge {table}"
    chains = [f"{chain}_{group_id:d}" for group_id in group_ids for chain in _CHAINS.values()]
    return [*(line for group_id in group_ids for line in (*ensure_chains(table, group_id), *_sets(table, group_id))),
            *(f"flush chain {t} {chain}" for chain in chains), *(f"delete chain {t} {chain}" for chain in chains),
            *(f"delete set {t} {members(group_id, version)}" for group_id in group_ids for version in _CHAINS)]


def _sets(table: str, group_id: int) -> list[str]:
    return [f"add set bridge {table} {members(group_id, version)} {{ type ether_addr . {kind}; }}"
            for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr"))]
