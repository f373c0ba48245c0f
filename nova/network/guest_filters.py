"""The packet filters of one guest's tap device, as nftables commands.

Frames between guests of one host never leave the bridge, so the filters work there. Linux tracks connections on
bridges only in some kernels (CONFIG_NF_CONNTRACK_BRIDGE), and the tracking of the IP layer (br_netfilter) cannot tell
overlapping networks apart. So every guest has its own sets of flows here: what it sends is learned with a timeout, and
the replies are let in, and errors that quote what was learned. Later fragments, which name no ports, follow their first
one. A guest that fills its sets hurts itself only.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence

from nova.network import group_filters, ingress
from nova.network.filters import MOVED, hook, mac_address, name_of, port, port_gone, raw_v6, unhook
from nova.network.records import HostNet
from nova.objects import plain_ip
from nova.objects.network import VIF, RuleSet, link_local

# Flows that one guest may have at the same time.
FLOWS = 65535
# How long a guest that moves is believed to have connections already: it is made ready before it moves.
_MOVED_FOR = "4h"
# Seconds that the later fragments of a packet may take.
_FRAGMENTS = 30
_SETS = ("flows", "closing", "talks", "echoes", "spoken", "fragments")
_DYNAMIC = "flags dynamic,timeout"
_ICMP_NUMBER = {"icmp": 1, "icmpv6": 58}
# How a QEMU guest is announced where it has moved to.
_RARP = "0x8035"


@dataclasses.dataclass(frozen=True)
class _Family:
    """What the rules of a version of IP are written with.

    A flow of TCP or UDP as the guest sees it is: the peer, the protocol, the own port, the peer's port. What errors
    quote can only be written as bits of the packet: (header, first bit, bits), and so must be what they are looked for
    in. ``peer`` is the receiver of a packet that the guest sends, ``sender`` of one that it receives; of the packet
    that an error quotes ``quoted`` are sender, receiver, protocol and, where it has them, ports and ICMP id.
    """

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
    # Of fragments: what is the same in all of a packet, what a later one is, and what a first one.
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
              # Of a packet without options, and not of a later fragment: else ports are elsewhere, or there are none.
              "icmp type { destination-unreachable, time-exceeded, parameter-problem } "
              "@th,64,8 0x45 @th,112,16 & 0x1fff == 0",
              "ip saddr . ip protocol . ip id", "ip frag-off & 0x1fff != 0", "ip frag-off & 0x3fff == 0x2000")
_V6 = _Family("6", "ip6", "meta l4proto", "icmpv6", "ipv6-icmp", "ipv6_addr",
              "@nh,192,128", "@nh,64,128", "@nh,48,8",
              ("@th,128,128", "@th,256,128", "@th,112,8", "@th,384,32", "@th,416,16"),
              "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
              "ip6 saddr . frag id", "frag frag-off != 0", "frag frag-off 0 frag more-fragments 1")


def guest(table: str, vif: VIF, net: HostNet, rules: RuleSet, moved: bool = False) -> list[str]:
    """Everything about one tap device, made new. Learned flows stay. Raises ValueError for bad values.

    ``moved``: the guest comes from another host with connections that are not known here.
    """
    if not vif.security:
        return [*gone(table, vif.devname), *port(table, vif.devname)]
    name, mac = name_of(vif.devname), mac_address(vif.mac)
    v4 = [str(ipaddress.IPv4Address(address)) for address in vif.addresses(4)]
    v6 = [str(plain_ip.v6_address(address)) for address in vif.addresses(6)]
    chains = {
        "sent": [*_sent(name, mac, bool(v6)), *_sent_v4(name, mac, v4)],
        "received": [*_received(name, mac, bool(v6)), *_received_v4(name, v4, net), *_let_in(rules, 4),
                     *_refused(name, _V4)],
    }
    families = [_V4]
    if v6:
        families.append(_V6)
        own = [link_local(mac), *v6]
        chains["sent6"] = _sent_v6(name, own)
        chains["received6"] = [*_received_v6(name, own, net), *_let_in(rules, 6),
                              *_refused(name, _V6)]
    return [
        *port(table, vif.devname),
        *(line for group_id in rules.groups for line in group_filters.there(table, group_id)),
        *(line for family in families for line in _empty(table, name, family)),
        *(f"add rule bridge {table} {chain}_{name} {rule}" for chain, found in chains.items() for rule in found),
        *hook(table, vif.devname, name),
        *([f'add element bridge {table} {MOVED} {{ "{vif.devname}" timeout {_MOVED_FOR} }}'] if moved else []),
    ]


def _let_in(rules: RuleSet, version: int) -> list[str]:
    return [*ingress.accepted(rules.rules, version), *group_filters.jumps(rules.groups, version)]


def gone(table: str, device: str) -> list[str]:
    """Remove all there may be about a tap device."""
    t, name = f"bridge {table}", name_of(device)
    # Making things first makes their deletion harmless where they are not there.
    lines = [*_empty(table, name, _V4), *_empty(table, name, _V6), *hook(table, device, name),
             *port_gone(table, device), *unhook(table, device, name)]
    element = f'element {t} {MOVED} {{ "{device}" }}'
    return [*lines, f"add {element}", f"delete {element}",
            f"delete chain {t} sent6_{name}", f"delete chain {t} received6_{name}",
            *(f"delete set {t} {kind}{family.suffix}_{name}" for family in (_V4, _V6) for kind in _SETS),
            *(line for family in (_V4, _V6) for line in _former(t, name, family))]


def _former(t: str, name: str, family: _Family) -> list[str]:
    """Remove the sets that only the release before this one had."""
    sets = {"pings": f"typeof {family.header} daddr . {family.icmp} id", "peers": f"type {family.key} . inet_proto"}
    return [line.format(f"set {t} {kind}{family.suffix}_{name}") for kind, what in sets.items()
            for line in (f"add {{}} {{{{ {what}; {_DYNAMIC}; size 4096; }}}}", "delete {}")]


def _empty(table: str, name: str, family: _Family) -> list[str]:
    """The chains of a version, without rules, and its sets as they are."""
    t, suffix = f"bridge {table}", family.suffix
    flow = f"type {family.key} . inet_proto . inet_service . inet_service; {_DYNAMIC}"
    sets = {
        "flows": f"{flow}; size {FLOWS}", "closing": f"{flow}; size {FLOWS}",
        "talks": f"typeof {family.peer} . {family.number} . {_PORTS}; {_DYNAMIC}; size {FLOWS}",
        "echoes": f"typeof {family.peer} . {_ICMP_ID}; {_DYNAMIC}; size 4096",
        "spoken": f"typeof {family.peer} . {family.number}; {_DYNAMIC}; size 4096",
        "fragments": f"typeof {family.packet}; {_DYNAMIC}; size 4096",
    }
    return [
        f"add chain {t} sent{suffix}_{name}", f"add chain {t} received{suffix}_{name}",
        f"flush chain {t} sent{suffix}_{name}", f"flush chain {t} received{suffix}_{name}",
        *(f"add set {t} {kind}{suffix}_{name} {{ {what}; }}" for kind, what in sets.items()),
    ]


# --- what it sends: only in its own name, and never as a DHCP server or a router -------------------
def _sent(name: str, mac: str, v6: bool) -> list[str]:
    return [f"ether saddr != {mac} drop", *([f"ether type ip6 goto sent6_{name}"] if v6 else [])]


def _sent_v4(name: str, mac: str, addresses: Sequence[str]) -> list[str]:
    own = ", ".join(addresses)
    return [
        f"ether type arp arp saddr ether {mac} arp saddr ip {{ 0.0.0.0, {own} }} accept",
        f"ether type {_RARP} ether daddr ff:ff:ff:ff:ff:ff accept",
        "ether type != ip drop",
        "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
        f"ip saddr != {{ {own} }} drop",
        "udp sport 67 drop",
        *_learned(name, _V4),
    ]


def _sent_v6(name: str, own: Sequence[str]) -> list[str]:
    """Neighbour discovery is for the guest's own addresses; extension headers must not hide what a packet is."""
    addresses, targets = ", ".join(own), raw_v6(own)
    return [
        f"ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 {targets} accept",
        "ip6 saddr :: icmpv6 type { nd-router-solicit, mld-listener-report, mld-listener-done, mld2-listener-report } "
        "accept",
        f"ip6 saddr != {{ {addresses} }} drop",
        "icmpv6 type { nd-router-advert, nd-redirect, mld-listener-query, router-renumbering } drop",
        f"icmpv6 type nd-neighbor-advert @th,64,128 != {targets} drop",
        "udp sport 547 drop",
        # In a first fragment: hop-by-hop, routing, fragment and destination headers.
        "frag nexthdr { 0, 43, 44, 60 } drop",
        *_learned(name, _V6),
    ]


def _learned(name: str, family: _Family) -> list[str]:
    """What is sent is let out, and remembered for the replies."""
    flows, closing = family.set("flows", name), family.set("closing", name)
    tcp, udp, protocol = family.out("tcp"), family.out("udp"), family.protocol
    talk = f"update {family.set('talks', name)} {{ {family.peer} . {family.number} . {_PORTS} timeout"
    return [
        # A refusal of what never was a connection makes none.
        f"tcp flags & rst != 0 {tcp} != {flows} accept",
        f"{protocol} tcp {talk} 1d }}",
        f"{protocol} udp {talk} 3m }}",
        # A connection that is being closed is forgotten soon, whoever says the last word.
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
        "accept",
    ]


# --- what reaches it whatever its security groups say: neighbours, DHCP, replies and errors ---------
def _received(name: str, mac: str, v6: bool) -> list[str]:
    return [
        # Not for this guest, and no broadcast or multicast: the bridge does not know the port yet.
        f"ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether daddr != {mac} drop",
        *([f"ether type ip6 goto received6_{name}"] if v6 else []),
    ]


def _received_v4(name: str, addresses: Sequence[str], net: HostNet) -> list[str]:
    own = ", ".join(f"{int(ipaddress.IPv4Address(address)):#010x}" for address in addresses)
    return [
        "ether type arp accept",
        "ether type != ip drop",
        f"ip saddr {net.gateway} udp sport 67 udp dport 68 accept",
        # A fragment that would overwrite the first one's flags is not for real.
        "ip protocol tcp ip frag-off & 0x1fff == 1 drop",
        *_fragments(name, _V4),
        *_replies(name, _V4),
        *_errors(name, _V4, f"{{ {own} }}"),
    ]


def _received_v6(name: str, own: Sequence[str], net: HostNet) -> list[str]:
    return [
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        f"ip6 saddr {net.router} icmpv6 type {{ nd-router-advert, mld-listener-query }} accept",
        "icmpv6 type { nd-router-advert, nd-redirect, nd-router-solicit } drop",
        f"ip6 saddr {net.router} udp sport 547 udp dport 546 accept",
        *_fragments(name, _V6),
        *_replies(name, _V6),
        *_errors(name, _V6, raw_v6(own)),
    ]


def _fragments(name: str, family: _Family) -> list[str]:
    """Later fragments are let in after a first one that was, and only in this order; see ``_refused``."""
    known = family.set("fragments", name)
    return [
        f"{family.later} {family.packet} {known} accept",
        f"{family.later} drop",
        f"{family.first} update {known} {{ {family.packet} timeout {_FRAGMENTS}s }}",
    ]


def _refused(name: str, family: _Family) -> list[str]:
    """The end: what nothing has let in, and the rest of its packet."""
    return [f"{family.first} delete {family.set('fragments', name)} {{ {family.packet} }}", "drop"]


def _errors(name: str, family: _Family, own: str) -> list[str]:
    """Errors quote the packet that they are about: one that this guest has sent not long ago."""
    sender, peer, number, ports, icmp_id = family.quoted
    about = f"{family.errors} {sender} {own}"
    rules = [
        f"{about} {peer} . {number} . {ports} {family.set('talks', name)} accept",
        f"{about} {number} {_ICMP_NUMBER[family.icmp]} {peer} . {icmp_id} {family.set('echoes', name)} accept",
        f"{about} {peer} . {number} {family.set('spoken', name)} accept",
        # What a guest sent that comes from another host is not known.
        f"oifname @{MOVED} {about} accept",
    ]
    if family is _V6:
        # A first fragment: it was learned under the number of its header, with the ports that come after that.
        rules.append(f"{about} {number} 44 {peer} . {number} . @th,448,32 {family.set('talks', name)} accept")
    return rules


def _replies(name: str, family: _Family) -> list[str]:
    flows, tcp, udp = family.set("flows", name), family.into("tcp"), family.into("udp")
    return [
        # Nothing can be opened with these, and a guest that only listens would never say that it has the connection.
        f"oifname @{MOVED} tcp flags & (syn|ack) == ack accept",
        f"{tcp} {flows} tcp flags & rst != 0 update {flows} {{ {tcp} timeout 2m }} accept",
        f"{tcp} {flows} accept",
        f"{udp} {flows} accept",
        f"{family.icmp} type echo-reply {family.sender} . {_ICMP_ID} {family.set('echoes', name)} accept",
        f"{family.protocol} != {{ {family.icmp_name}, tcp, udp }} "
        f"{family.sender} . {family.number} {family.set('spoken', name)} accept",
    ]
