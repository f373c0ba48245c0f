"""Packet filters as nftables commands: pure text, one transaction at a time.

Three tables, all our own. ``bridge <name>`` filters what guests send and receive on the bridges;
``ip <name>`` in the root namespace keeps tenants apart from the host and translates addresses;
``ip nova`` in each network's namespace does the same one step earlier.

Frames between guests of one host never leave the bridge, so the guests' filters work there. Linux
tracks connections on bridges only in some kernels (CONFIG_NF_CONNTRACK_BRIDGE), and the tracking of
the IP layer (br_netfilter) cannot tell overlapping networks apart. So every guest has its own sets
of flows here: what it sends is learned with a timeout, and the replies are let in. A guest that
fills its sets hurts itself only.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable, Sequence

from nova.network.records import DEVICE, MAC, HostNet
from nova.objects.network import VIF, FilterRule

LOG = logging.getLogger(__name__)

METADATA = "169.254.169.254"
# Flows that one guest may have at the same time.
FLOWS = 65535
# A flow of TCP or UDP as the guest sees it: the peer, the protocol, the own port, the peer's port.
_OUT_TCP = "ip daddr . ip protocol . tcp sport . tcp dport"
_OUT_UDP = "ip daddr . ip protocol . udp sport . udp dport"
_IN_TCP = "ip saddr . ip protocol . tcp dport . tcp sport"
_IN_UDP = "ip saddr . ip protocol . udp dport . udp sport"


def base(table: str) -> list[str]:
    """The table and its hooks; harmless where they exist.

    ``ports`` are all ports of our bridges: nothing from there reaches the host's own stack.
    """
    t = f"bridge {table}"
    return [
        f"add table {t}",
        f"add set {t} ports {{ type ifname; }}",
        f"add map {t} sent {{ type ifname : verdict; }}",
        f"add map {t} received {{ type ifname : verdict; }}",
        # Before br_netfilter, which would show the frames to the host's IP filters.
        f"add chain {t} prerouting {{ type filter hook prerouting priority -300; policy accept; }}",
        f"add chain {t} input {{ type filter hook input priority -300; policy accept; }}",
        f"add chain {t} forwarding {{ type filter hook forward priority -300; policy accept; }}",
        f"flush chain {t} prerouting", f"flush chain {t} input", f"flush chain {t} forwarding",
        f"add rule {t} prerouting iifname vmap @sent",
        f"add rule {t} input iifname @ports drop",
        f"add rule {t} forwarding oifname vmap @received",
    ]


def remove_table(table: str) -> list[str]:
    return [f"add table bridge {table}", f"delete table bridge {table}",
            f"add table ip {table}", f"delete table ip {table}"]


def port(table: str, device: str) -> list[str]:
    """A port of one of our bridges that is not filtered."""
    return [f'add element bridge {table} ports {{ "{_device(device)}" }}']


def port_gone(table: str, device: str) -> list[str]:
    # Adding first makes the deletion harmless where the element is not there.
    return [f'add element bridge {table} ports {{ "{_device(device)}" }}',
            f'delete element bridge {table} ports {{ "{_device(device)}" }}']


def guest(table: str, vif: VIF, gateway: str, rules: Sequence[FilterRule]) -> list[str]:
    """Everything about one tap device, made new. Learned flows stay. Raises ValueError for bad values."""
    if not vif.security:
        return [*gone(table, vif.devname), *port(table, vif.devname)]
    name = _name(vif.devname)
    mac, address = _mac(vif.mac), str(ipaddress.IPv4Address(vif.address))
    lines = [
        *port(table, vif.devname),
        *_chains(table, name),
        *(f"add rule bridge {table} sent_{name} {rule}" for rule in _sent(name, mac, address)),
        *(f"add rule bridge {table} received_{name} {rule}"
          for rule in [*_received(name, mac, address, gateway), *ingress(rules), "drop"]),
    ]
    return [*lines, *_hook(table, vif.devname, name)]


def gone(table: str, device: str) -> list[str]:
    """Remove all there may be about a tap device."""
    name = _name(device)
    t = f"bridge {table}"
    lines = [*_chains(table, name), *_hook(table, device, name), *port_gone(table, device),
             *_unhook(table, device, name)]
    return [*lines, *(f"delete set {t} {kind}_{name}" for kind in ("flows", "closing", "pings", "peers"))]


def wire(table: str, device: str, gateway: str) -> list[str]:
    """The port to other hosts: each host has the gateway and the DHCP server of its own guests."""
    name = _name(device)
    own = f"{{ {gateway}, {METADATA} }}"
    rules = [f"arp saddr ip {own} drop", f"arp daddr ip {own} drop", "udp dport { 67, 68 } drop"]
    t = f"bridge {table}"
    lines = [*port(table, device), f"add chain {t} sent_{name}", f"add chain {t} received_{name}",
             f"flush chain {t} sent_{name}", f"flush chain {t} received_{name}"]
    lines += [f"add rule {t} {way}_{name} {rule}" for way in ("sent", "received") for rule in rules]
    return [*lines, *_hook(table, device, name)]


def wire_gone(table: str, device: str) -> list[str]:
    name = _name(device)
    t = f"bridge {table}"
    return [f"add chain {t} sent_{name}", f"add chain {t} received_{name}", *_hook(table, device, name),
            *port_gone(table, device), *_unhook(table, device, name)]


def ingress(rules: Iterable[FilterRule]) -> list[str]:
    """The rules of security groups. No sources means anybody; what cannot be expressed is left out (closed)."""
    lines: list[str] = []
    for rule in rules:
        sources = _sources(rule.sources)
        match = _protocol(rule)
        if sources is None or match is None:
            LOG.warning("Leaving out an ingress rule that IPv4 filters cannot express: %s", rule)
            continue
        lines.append(" ".join(part for part in (sources, match, "accept") if part))
    return list(dict.fromkeys(lines))


def host(table: str, nets: Sequence[HostNet], uplink: str | None, public: Sequence[str]) -> list[str]:
    """The root namespace's table, replaced as a whole.

    Tenants reach what is behind ``uplink`` and the host's addresses there (``public``), nothing else
    of the host, and not each other. Without ``uplink`` nothing is translated or forwarded.
    """
    t = f"ip {table}"
    links = [net.uplink_port for net in nets if net.link is not None]
    bridges = sorted({net.bridge for net in nets})
    lines = [
        f"add table {t}", f"delete table {t}", f"add table {t}",
        f"add set {t} links {{ type ifname; }}", f"add set {t} bridges {{ type ifname; }}",
        f"add chain {t} tracking {{ type filter hook prerouting priority -300; policy accept; }}",
        f"add chain {t} input {{ type filter hook input priority -10; policy accept; }}",
        f"add chain {t} forwarding {{ type filter hook forward priority -10; policy accept; }}",
        f"add chain {t} postrouting {{ type nat hook postrouting priority 100; policy accept; }}",
        # Where br_netfilter is on, bridged packets come by; overlapping networks would share entries.
        f"add rule {t} tracking iifname @bridges notrack",
        f"add rule {t} input iifname @links ct state established,related accept",
    ]
    if public:
        lines.append(f"add rule {t} input iifname @links ip daddr {{ {', '.join(public)} }} accept")
    lines.append(f"add rule {t} input iifname @links drop")
    if uplink:
        lines += [f'add rule {t} forwarding iifname @links oifname "{_device(uplink)}" accept',
                  f'add rule {t} forwarding iifname "{uplink}" oifname @links ct state established,related accept',
                  f'add rule {t} postrouting iifname @links oifname "{uplink}" masquerade']
    lines += [f"add rule {t} forwarding iifname @links drop", f"add rule {t} forwarding oifname @links drop"]
    lines += [f'add element {t} links {{ "{name}" }}' for name in links]
    return lines + [f'add element {t} bridges {{ "{_device(name)}" }}' for name in bridges]


def inside() -> list[str]:
    """The table in a network's namespace: what guests may ask of it, and the way out."""
    t = "ip nova"
    return [
        f"add table {t}", f"delete table {t}", f"add table {t}",
        f"add chain {t} input {{ type filter hook input priority 0; policy drop; }}",
        f"add chain {t} forwarding {{ type filter hook forward priority 0; policy drop; }}",
        f"add chain {t} postrouting {{ type nat hook postrouting priority 100; policy accept; }}",
        f"add rule {t} input ct state established,related accept",
        f'add rule {t} input iifname "lo" accept',
        f'add rule {t} input iifname "gw" udp dport {{ 53, 67 }} accept',
        f'add rule {t} input iifname "gw" tcp dport 53 accept',
        f'add rule {t} input iifname "gw" ip daddr {METADATA} tcp dport 80 accept',
        f"add rule {t} input icmp type echo-request accept",
        f'add rule {t} input iifname "gw" meta l4proto tcp reject with tcp reset',
        f"add rule {t} forwarding ct state established,related accept",
        f'add rule {t} forwarding iifname "gw" oifname "out" ip daddr != 169.254.0.0/16 accept',
        f'add rule {t} postrouting oifname "out" masquerade',
    ]


def _chains(table: str, name: str) -> list[str]:
    t = f"bridge {table}"
    flow = "type ipv4_addr . inet_proto . inet_service . inet_service; flags dynamic,timeout"
    return [
        f"add chain {t} sent_{name}", f"add chain {t} received_{name}",
        f"flush chain {t} sent_{name}", f"flush chain {t} received_{name}",
        f"add set {t} flows_{name} {{ {flow}; size {FLOWS}; }}",
        f"add set {t} closing_{name} {{ {flow}; size {FLOWS}; }}",
        f"add set {t} pings_{name} {{ typeof ip daddr . icmp id; flags dynamic,timeout; size 4096; }}",
        f"add set {t} peers_{name} {{ type ipv4_addr . inet_proto; flags dynamic,timeout; size 4096; }}",
    ]


def _hook(table: str, device: str, name: str) -> list[str]:
    return [f'add element bridge {table} sent {{ "{device}" : jump sent_{name} }}',
            f'add element bridge {table} received {{ "{device}" : jump received_{name} }}']


def _unhook(table: str, device: str, name: str) -> list[str]:
    t = f"bridge {table}"
    return [f'delete element {t} sent {{ "{device}" }}', f'delete element {t} received {{ "{device}" }}',
            f"delete chain {t} sent_{name}", f"delete chain {t} received_{name}"]


def _sent(name: str, mac: str, address: str) -> list[str]:
    """What the guest sends: only in its own name, only IPv4 and ARP, and never as a DHCP server."""
    flows, closing = f"@flows_{name}", f"@closing_{name}"
    return [
        f"ether saddr != {mac} drop",
        f"ether type arp arp saddr ether {mac} arp saddr ip {{ 0.0.0.0, {address} }} accept",
        "ether type != ip drop",
        "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
        f"ip saddr != {address} drop",
        "udp sport 67 drop",
        # A connection that is being closed is forgotten soon, whoever says the last word.
        f"tcp flags & (fin|rst) != 0 update {closing} {{ {_OUT_TCP} timeout 2m }} "
        f"update {flows} {{ {_OUT_TCP} timeout 2m }} accept",
        f"{_OUT_TCP} {closing} update {flows} {{ {_OUT_TCP} timeout 2m }} accept",
        f"tcp flags & (syn|ack) == syn update {flows} {{ {_OUT_TCP} timeout 2m }} accept",
        f"ip protocol tcp update {flows} {{ {_OUT_TCP} timeout 1d }} accept",
        f"ip protocol udp update {flows} {{ {_OUT_UDP} timeout 3m }} accept",
        f"icmp type echo-request update @pings_{name} {{ ip daddr . icmp id timeout 1m }} accept",
        f"ip protocol != {{ icmp, tcp, udp }} update @peers_{name} {{ ip daddr . ip protocol timeout 10m }} accept",
        "accept",
    ]


def _received(name: str, mac: str, address: str, gateway: str) -> list[str]:
    """What reaches the guest whatever its security groups say: ARP, DHCP, replies and errors."""
    flows = f"@flows_{name}"
    return [
        # Not for this guest, and no broadcast or multicast: the bridge does not know the port yet.
        f"ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether daddr != {mac} drop",
        "ether type arp accept",
        "ether type != ip drop",
        f"ip saddr {gateway} udp sport 67 udp dport 68 accept",
        f"{_IN_TCP} {flows} tcp flags & rst != 0 update {flows} {{ {_IN_TCP} timeout 2m }} accept",
        f"{_IN_TCP} {flows} accept",
        f"{_IN_UDP} {flows} accept",
        f"icmp type echo-reply ip saddr . icmp id @pings_{name} accept",
        # An error quotes the packet it is about: one that this guest sent.
        "icmp type { destination-unreachable, time-exceeded, parameter-problem } "
        f"@th,160,32 {int(ipaddress.IPv4Address(address)):#010x} accept",
        f"ip protocol != {{ icmp, tcp, udp }} ip saddr . ip protocol @peers_{name} accept",
        # Later fragments name no ports and are useless without their first, which is filtered; one
        # that would overwrite the first's flags is not for real.
        "ip protocol tcp ip frag-off & 0x1fff == 1 drop",
        "ip frag-off & 0x1fff != 0 accept",
    ]


def _sources(sources: Sequence[str]) -> str | None:
    """The match on the sender; "" for anybody, None for nobody in IPv4."""
    if not sources:
        return ""
    try:
        known = [ipaddress.ip_network(source, strict=False) for source in sources]
    except ValueError:
        return None
    networks = list(ipaddress.collapse_addresses(net for net in known if isinstance(net, ipaddress.IPv4Network)))
    if not networks:
        return None
    if networks[0].prefixlen == 0:
        return ""
    return f"ip saddr {{ {', '.join(map(str, networks))} }}"


def _protocol(rule: FilterRule) -> str | None:
    """The match on protocol and ports (ICMP: type and code); None when there is no such thing."""
    first = rule.from_port if rule.from_port is not None and rule.from_port >= 0 else None
    last = rule.to_port if rule.to_port is not None and rule.to_port >= 0 else None
    protocol = (rule.protocol or "").lower()
    if protocol in ("", "any", "-1"):
        return ""
    if protocol == "icmp":
        if max(first or 0, last or 0) > 255:
            return None
        kind = f"icmp type {first}" if first is not None else "ip protocol icmp"
        return f"{kind} icmp code {last}" if first is not None and last is not None else kind
    if protocol in ("tcp", "udp"):
        if first is None:
            return f"ip protocol {protocol}"
        last = first if last is None else last
        if not first <= last <= 65535:
            return None
        return f"{protocol} dport {first}-{last}" if last > first else f"{protocol} dport {first}"
    if protocol.isdecimal() and int(protocol) <= 255:
        return f"ip protocol {int(protocol)}"
    return None


def _device(name: str) -> str:
    if not DEVICE.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a network device")
    return name


def _name(device: str) -> str:
    """A device's name as part of the names of chains and sets."""
    return re.sub(r"[^A-Za-z0-9]", "_", _device(device))


def _mac(value: str) -> str:
    if not MAC.fullmatch(value):
        raise ValueError(f"{value!r} is no MAC address")
    return value.lower()
