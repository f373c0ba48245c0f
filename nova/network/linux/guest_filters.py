"""The packet filters of guests' tap devices and of security groups, as nftables commands.

Frames between guests of a host never leave the bridge, so they are filtered there. Only some kernels track connections
on bridges (CONFIG_NF_CONNTRACK_BRIDGE), and the tracking of the IP layer (br_netfilter) cannot distinguish overlapping
networks. So each guest has its own sets of flows. Flows that the guest opens are learned with a timeout; replies, and
ICMP errors that quote a learned flow, are accepted. Later fragments, which have no ports, are accepted after the first
fragment. A guest that fills its sets affects only itself.

All guests of a security group on a host share its packet filters: the chains of a guest jump to the chains of its
groups. The members of a group are a set, so that a new or deleted server changes elements of a set and no rule."""

import dataclasses
import ipaddress
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from nova.common import plain_ip
from nova.network.linux.filters import MOVED, hook, mac_address, name_of, port, raw_v6, remove_port, unhook
from nova.network.linux.state_files import HostNet
from nova.objects.networks.network import VIF, FilterRule, GroupFilter, RuleSet, link_local

LOG = logging.getLogger(__name__)

# Maximum number of flows of a guest.
FLOWS = 65535
# Time after the setup of a migrated guest in which unknown flows are accepted as opened on its previous host.
_MOVED_FOR = "4h"
# Timeout in seconds of the later fragments of a packet.
_FRAGMENTS = 30
_SETS = ("flows", "closing", "talks", "echoes", "spoken", "fragments")
_DYNAMIC = "flags dynamic,timeout"
_ICMP_NUMBER = {"icmp": 1, "icmpv6": 58}
# Ethernet type of the frames by which QEMU announces a migrated guest.
_RARP = "0x8035"
# Prefix of the names of group chains. No other chain has this prefix.
GROUP_PREFIX = "group"


@dataclasses.dataclass(frozen=True)
class _Family:
    """The nftables expressions of a version of IP. A TCP or UDP flow from the guest's view is: peer address, protocol,
    own port, peer port. nftables can match a packet that an ICMP error quotes only by bits (header, first bit, number
    of bits), so the sets for errors use bits as well. ``peer`` is the receiver of a packet that the guest sends,
    ``sender`` the sender of a packet that it receives. ``quoted`` has sender, receiver, protocol, ports and ICMP id of
    the quoted packet."""

    suffix: str
    header: str
    protocol: str
    icmp: str
    icmp_name: str
    key: str
    peer: str
    sender: str
    number: str
    quoted: tuple[str, str, str, str, str]
    errors: str
    # Fragments: the key of a packet, a match of later fragments, and a match of the first fragment.
    packet: str
    later: str
    first: str

    def out(self, kind: str) -> str:
        return f"{self.header} daddr . {self.protocol} . {kind} sport . {kind} dport"

    def into(self, kind: str) -> str:
        return f"{self.header} saddr . {self.protocol} . {kind} dport . {kind} sport"

    def set(self, kind: str, name: str) -> str:
        return f"@{kind}{self.suffix}_{name}"


_PORTS, _ICMP_ID = "@th,0,32", "@th,32,16"
_V4 = _Family("", "ip", "ip protocol", "icmp", "icmp", "ipv4_addr",
              "@nh,128,32", "@nh,96,32", "@nh,72,8",
              ("@th,160,32", "@th,192,32", "@th,136,8", "@th,224,32", "@th,256,16"),
              # The ports of a quoted packet are at a fixed offset only if it has no IP options and is not a later
              # fragment.
              "icmp type { destination-unreachable, time-exceeded, parameter-problem } "
              "@th,64,8 0x45 @th,112,16 & 0x1fff == 0",
              "ip saddr . ip protocol . ip id", "ip frag-off & 0x1fff != 0", "ip frag-off & 0x3fff == 0x2000")
_V6 = _Family("6", "ip6", "meta l4proto", "icmpv6", "ipv6-icmp", "ipv6_addr",
              "@nh,192,128", "@nh,64,128", "@nh,48,8",
              ("@th,128,128", "@th,256,128", "@th,112,8", "@th,384,32", "@th,416,16"),
              "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
              "ip6 saddr . frag id", "frag frag-off != 0", "frag frag-off 0 frag more-fragments 1")
_FAMILIES = {4: _V4, 6: _V6}
# IP version -> name of the chain of a group, before the id of the group.
_CHAINS = {version: f"{GROUP_PREFIX}{family.suffix}" for version, family in _FAMILIES.items()}


def guest(table: str, vif: VIF, net: HostNet, rules: RuleSet, moved: bool = False, lost: bool = False) -> list[str]:
    """Replace the filters of a tap device, but keep learned flows. Raises ValueError for invalid values. The flows of
    the guest are unknown if it has ``moved`` from another host, or if they were ``lost`` with the table."""
    if not vif.security:
        return [*remove(table, vif.devname), *port(table, vif.devname)]
    name, mac = name_of(vif.devname), mac_address(vif.mac)
    v4 = [str(ipaddress.IPv4Address(address)) for address in vif.addresses(4)]
    v6 = [str(plain_ip.v6_address(address)) for address in vif.addresses(6)]
    chains = {
        "sent": [f"ether saddr != {mac} drop", *([f"ether type ip6 goto sent6_{name}"] if v6 else []),
                 *_sent_v4(name, mac, v4)],
        # Unicast frames for another MAC address, which the bridge floods before it has learned the port.
        "received": [f"ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether daddr != {mac} drop",
                     *([f"ether type ip6 goto received6_{name}"] if v6 else []),
                     *_received_v4(name, v4, net), *_ingress(rules, 4), *_drop_rest(name, _V4)]}
    families = [_V4]
    if v6:
        families.append(_V6)
        own = [link_local(mac), *v6]
        chains["sent6"] = _sent_v6(name, own)
        chains["received6"] = [*_received_v6(name, own, net), *_ingress(rules, 6), *_drop_rest(name, _V6)]
    return [
        *port(table, vif.devname),
        *(line for group_id in rules.groups for line in _ensure_chains(table, group_id)),
        *(line for family in families for line in _empty(table, name, family)),
        *(f"add rule bridge {table} {chain}_{name} {rule}" for chain, chain_rules in chains.items()
          for rule in chain_rules),
        *hook(table, vif.devname, name),
        *([f'add element bridge {table} {MOVED} {{ "{vif.devname}" timeout {_MOVED_FOR} }}'] if moved or lost else [])]


def _ingress(rules: RuleSet, version: int) -> list[str]:
    return [*accepted(rules.rules, version), *(f"jump {_CHAINS[version]}_{group_id:d}" for group_id in rules.groups)]


def remove(table: str, device: str) -> list[str]:
    """Remove the filters and flows of a tap device."""
    t, name = f"bridge {table}", name_of(device)
    # Objects are created first, since deleting a missing object fails.
    lines = [*_empty(table, name, _V4), *_empty(table, name, _V6), *hook(table, device, name),
             *remove_port(table, device), *unhook(table, device, name)]
    element = f'element {t} {MOVED} {{ "{device}" }}'
    return [*lines, f"add {element}", f"delete {element}",
            f"delete chain {t} sent6_{name}", f"delete chain {t} received6_{name}",
            *(f"delete set {t} {kind}{family.suffix}_{name}" for family in (_V4, _V6) for kind in _SETS)]


def _empty(table: str, name: str, family: _Family) -> list[str]:
    """Create the chains and sets of a version of IP, flush the chains, and keep the elements of the sets."""
    t, suffix = f"bridge {table}", family.suffix
    flow = f"type {family.key} . inet_proto . inet_service . inet_service; {_DYNAMIC}"
    sets = {
        "flows": f"{flow}; size {FLOWS}", "closing": f"{flow}; size {FLOWS}",
        "talks": f"typeof {family.peer} . {family.number} . {_PORTS}; {_DYNAMIC}; size {FLOWS}",
        "echoes": f"typeof {family.peer} . {_ICMP_ID}; {_DYNAMIC}; size 4096",
        "spoken": f"typeof {family.peer} . {family.number}; {_DYNAMIC}; size 4096",
        "fragments": f"typeof {family.packet}; {_DYNAMIC}; size 4096"}
    return [
        f"add chain {t} sent{suffix}_{name}", f"add chain {t} received{suffix}_{name}",
        f"flush chain {t} sent{suffix}_{name}", f"flush chain {t} received{suffix}_{name}",
        *(f"add set {t} {kind}{suffix}_{name} {{ {what}; }}" for kind, what in sets.items())]


# --- sent packets: only from own addresses, and never as a DHCP server or router -------------------
def _sent_v4(name: str, mac: str, addresses: Sequence[str]) -> list[str]:
    own = ", ".join(addresses)
    return [
        f"ether type arp arp saddr ether {mac} arp saddr ip {{ 0.0.0.0, {own} }} accept",
        f"ether type {_RARP} ether daddr ff:ff:ff:ff:ff:ff accept",
        "ether type != ip drop",
        "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
        f"ip saddr != {{ {own} }} drop",
        "udp sport 67 drop",
        *_learned(name, _V4)]


def _sent_v6(name: str, own: Sequence[str]) -> list[str]:
    """Return rules for sent IPv6: neighbor discovery only for own addresses, no hidden upper-layer headers."""
    addresses, targets = ", ".join(own), raw_v6(own)
    return [
        f"ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 {targets} accept",
        "ip6 saddr :: icmpv6 type { nd-router-solicit, mld-listener-report, mld-listener-done, mld2-listener-report } "
        "accept",
        f"ip6 saddr != {{ {addresses} }} drop",
        "icmpv6 type { nd-router-advert, nd-redirect, mld-listener-query, router-renumbering } drop",
        f"icmpv6 type nd-neighbor-advert @th,64,128 != {targets} drop",
        "udp sport 547 drop",
        # Extension headers in a first fragment: hop-by-hop, routing, fragment and destination options.
        "frag nexthdr { 0, 43, 44, 60 } drop",
        *_learned(name, _V6)]


def _learned(name: str, family: _Family) -> list[str]:
    """Return rules that accept sent packets and record their flows, so that replies are accepted."""
    flows, closing = family.set("flows", name), family.set("closing", name)
    tcp, udp, protocol = family.out("tcp"), family.out("udp"), family.protocol
    talk = f"update {family.set('talks', name)} {{ {family.peer} . {family.number} . {_PORTS} timeout"
    return [
        # A TCP reset for an unknown flow does not create a flow.
        f"tcp flags & rst != 0 {tcp} != {flows} accept",
        f"{protocol} tcp {talk} 1d }}",
        f"{protocol} udp {talk} 3m }}",
        # The flow of a closing connection gets a short timeout, whichever side sends the last packet.
        f"tcp flags & (fin|rst) != 0 update {closing} {{ {tcp} timeout 2m }} "
        f"update {flows} {{ {tcp} timeout 2m }} accept",
        f"{tcp} {closing} update {flows} {{ {tcp} timeout 2m }} accept",
        f"tcp flags & (syn|ack) == syn update {flows} {{ {tcp} timeout 2m }} accept",
        f"{protocol} tcp update {flows} {{ {tcp} timeout 1d }} accept",
        f"{protocol} udp update {flows} {{ {udp} timeout 3m }} accept",
        f"{family.icmp} type echo-request "
        f"update {family.set('echoes', name)} {{ {family.peer} . {_ICMP_ID} timeout 1m }} accept",
        f"{protocol} != {{ {family.icmp_name}, tcp, udp }} "
        f"update {family.set('spoken', name)} {{ {family.peer} . {family.number} timeout 10m }} accept",
        "accept"]


# --- received packets, regardless of security groups: neighbor discovery, DHCP, replies, errors ------
def _received_v4(name: str, addresses: Sequence[str], net: HostNet) -> list[str]:
    own = ", ".join(f"{int(ipaddress.IPv4Address(address)):#010x}" for address in addresses)
    return [
        "ether type arp accept",
        "ether type != ip drop",
        f"ip saddr {net.gateway} udp sport 67 udp dport 68 accept",
        # A fragment at this offset would overwrite the TCP flags of the first fragment (an attack).
        "ip protocol tcp ip frag-off & 0x1fff == 1 drop",
        *_fragments(name, _V4),
        *_replies(name, _V4),
        *_errors(name, _V4, f"{{ {own} }}")]


def _received_v6(name: str, own: Sequence[str], net: HostNet) -> list[str]:
    return [
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        f"ip6 saddr {net.router} icmpv6 type {{ nd-router-advert, mld-listener-query }} accept",
        "icmpv6 type { nd-router-advert, nd-redirect, nd-router-solicit } drop",
        f"ip6 saddr {net.router} udp sport 547 udp dport 546 accept",
        *_fragments(name, _V6),
        *_replies(name, _V6),
        *_errors(name, _V6, raw_v6(own))]


def _fragments(name: str, family: _Family) -> list[str]:
    """Return rules that accept later fragments after an accepted first fragment; see ``_drop_rest``."""
    accepted = family.set("fragments", name)
    return [f"{family.later} {family.packet} {accepted} accept", f"{family.later} drop",
            f"{family.first} update {accepted} {{ {family.packet} timeout {_FRAGMENTS}s }}"]


def _drop_rest(name: str, family: _Family) -> list[str]:
    """Return rules that drop all other packets and their later fragments."""
    return [f"{family.first} delete {family.set('fragments', name)} {{ {family.packet} }}", "drop"]


def _errors(name: str, family: _Family, own: str) -> list[str]:
    """Return rules that accept ICMP errors about packets that the guest sent recently."""
    sender, peer, number, ports, icmp_id = family.quoted
    about = f"{family.errors} {sender} {own}"
    rules = [
        f"{about} {peer} . {number} . {ports} {family.set('talks', name)} accept",
        f"{about} {number} {_ICMP_NUMBER[family.icmp]} {peer} . {icmp_id} {family.set('echoes', name)} accept",
        f"{about} {peer} . {number} {family.set('spoken', name)} accept",
        # The packets that a migrated guest sent on its previous host are unknown.
        f"oifname @{MOVED} {about} accept"]
    if family is _V6:
        # A quoted first fragment: its flow was learned with protocol 44 and the ports after the fragment header.
        rules.append(f"{about} {number} 44 {peer} . {number} . @th,448,32 {family.set('talks', name)} accept")
    return rules


def _replies(name: str, family: _Family) -> list[str]:
    flows, tcp, udp = family.set("flows", name), family.into("tcp"), family.into("udp")
    return [
        # Unknown flows of a migrated guest: packets with ACK cannot open a connection, and a guest that only listens
        # might never send a packet by which its flow is learned.
        f"oifname @{MOVED} tcp flags & (syn|ack) == ack accept",
        f"{tcp} {flows} tcp flags & rst != 0 update {flows} {{ {tcp} timeout 2m }} accept",
        f"{tcp} {flows} accept",
        f"{udp} {flows} accept",
        f"{family.icmp} type echo-reply {family.sender} . {_ICMP_ID} {family.set('echoes', name)} accept",
        f"{family.protocol} != {{ {family.icmp_name}, tcp, udp }} "
        f"{family.sender} . {family.number} {family.set('spoken', name)} accept"]


# --- rules and security groups -------------------------------------------------------------------------
def accepted(rules: Iterable[FilterRule], version: int) -> list[str]:
    """Return nftables rules that accept the traffic that these rules allow. A rule without sources allows all senders.
    A rule that nftables cannot express is left out (dropped)."""
    lines: list[str] = []
    for rule in rules:
        sources = _sources(rule.sources, version) if rule.group is None else (
            f"ether saddr . {_FAMILIES[version].header} saddr @{_members(rule.group, version)}")
        match = _match(rule, version)
        if match is None:
            LOG.warning("Ignoring an ingress rule that packet filters cannot express, its traffic is dropped: %s", rule)
        elif sources is not None:
            lines.append(" ".join(filter(None, (sources, match, "accept"))))
    return list(dict.fromkeys(lines))


def _members(group_id: int, version: int) -> str:
    """Return the name of the set of a security group's interfaces: MAC address and IP address of one version. The MAC
    address is included because networks may have the same IP addresses. Guests cannot forge their MAC addresses."""
    return f"interfaces{_FAMILIES[version].suffix}_{group_id:d}"


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
    return f"{_FAMILIES[version].header} saddr {{ {', '.join(map(str, networks))} }}"


def _match(rule: FilterRule, version: int) -> str | None:
    """Return a match of protocol and ports (ICMP: type and code), or None if the rule is invalid."""
    first = rule.from_port if rule.from_port is not None and rule.from_port >= 0 else None
    last = rule.to_port if rule.to_port is not None and rule.to_port >= 0 else None
    protocol, family = (rule.protocol or "").lower(), _FAMILIES[version]
    if protocol in ("", "any", "-1"):
        return ""
    if protocol in ("icmp", "icmpv6", "ipv6-icmp"):
        if max(first or 0, last or 0) > 255:
            return None
        kind = f"{family.icmp} type {first}" if first is not None else f"{family.protocol} {family.icmp_name}"
        return f"{kind} {family.icmp} code {last}" if first is not None and last is not None else kind
    if protocol in ("tcp", "udp"):
        if first is None:
            return f"{family.protocol} {protocol}"
        last = first if last is None else last
        if not first <= last <= 65535:
            return None
        return f"{protocol} dport {first}-{last}" if last > first else f"{protocol} dport {first}"
    if protocol.isdecimal() and int(protocol) <= 255:
        return f"{family.protocol} {int(protocol)}"
    return None


# --- the packet filters of a group, shared by its guests on a host ------------------------------------
def _ensure_chains(table: str, group_id: int) -> list[str]:
    return [f"add chain bridge {table} {chain}_{group_id:d}" for chain in _CHAINS.values()]


def replace_group(table: str, group: GroupFilter) -> list[str]:
    """Replace the chains and the members of a group. Raises ValueError for invalid values."""
    t = f"bridge {table}"
    lines = [*_ensure_chains(table, group.id), *(f"flush chain {t} {chain}_{group.id:d}" for chain in _CHAINS.values())]
    lines += [line for other in sorted({group.id, *group.named()}) for line in _sets(table, other)]
    interfaces = [(mac_address(mac), plain_ip.address(member))
                  for mac, member in zip(group.macs, group.members, strict=False)]
    for version, chain in _CHAINS.items():
        name = _members(group.id, version)
        elements = ", ".join(f"{mac} . {member}" for mac, member in interfaces if member.version == version)
        lines += [f"flush set {t} {name}", *([f"add element {t} {name} {{ {elements} }}"] if elements else [])]
        lines += [f"add rule {t} {chain}_{group.id:d} {rule}" for rule in accepted(group.rules, version)]
    return lines


def remove_groups(table: str, group_ids: Sequence[int]) -> list[str]:
    """Remove the chains and sets of groups that no guest and no other group uses."""
    t = f"bridge {table}"
    chains = [f"{chain}_{group_id:d}" for group_id in group_ids for chain in _CHAINS.values()]
    return [*(line for group_id in group_ids for line in (*_ensure_chains(table, group_id), *_sets(table, group_id))),
            *(f"flush chain {t} {chain}" for chain in chains), *(f"delete chain {t} {chain}" for chain in chains),
            *(f"delete set {t} {_members(group_id, version)}" for group_id in group_ids for version in _CHAINS)]


def _sets(table: str, group_id: int) -> list[str]:
    return [f"add set bridge {table} {_members(group_id, version)} {{ type ether_addr . {family.key}; }}"
            for version, family in _FAMILIES.items()]
