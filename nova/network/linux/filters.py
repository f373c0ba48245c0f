"""Packet filters as lists of nftables commands.

All tables belong to Nova. ``bridge <name>`` filters traffic of guests on the bridges (``guest_filters`` has the chains
of guests). ``ip <name>`` in the root namespace isolates tenants from the host and translates addresses. ``ip nova`` and
``ip6 nova`` in the namespace of each network restrict what guests may request from the namespace."""

import ipaddress
import re
from collections.abc import Mapping, Sequence

from nova.common import plain_ip
from nova.network.linux.state_files import DEVICE, MAC, HostNet

METADATA = "169.254.169.254"
# UDP port of VXLAN between hosts.
VXLAN_PORT = 4789
# Set of the guests that arrived from another host, which has learned their flows.
MOVED = "moved"
# Bit in the mark of accepted packets. Egress guards (nova.network.linux.egress_guard) drop packets without this bit.
PASSED = 0x40000000
_PASS = f"meta mark set meta mark or {PASSED:#x}"
# ICMPv6 types that IPv6 nodes on a link need.
_NEIGHBOURS = "{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }"


def base(table: str) -> list[str]:
    """Create the table and its hooks, if they do not exist. The set ``ports`` has all ports of Nova's bridges. Packets
    from them never reach the IP stack of the host. Packets from or to other ports are dropped, except for the set
    ``others``: ports that an operator added to their own bridge."""
    t = f"bridge {table}"
    return [
        f"add table {t}",
        f"add set {t} ports {{ type ifname; }}",
        f"add set {t} others {{ type ifname; }}",
        f"add map {t} sent {{ type ifname : verdict; }}",
        f"add map {t} received {{ type ifname : verdict; }}",
        f"add set {t} {MOVED} {{ type ifname; flags timeout; }}",
        # Priority before br_netfilter, which would pass the frames to the host's IP filters.
        f"add chain {t} prerouting {{ type filter hook prerouting priority -300; policy accept; }}",
        f"add chain {t} input {{ type filter hook input priority -300; policy accept; }}",
        f"add chain {t} forwarding {{ type filter hook forward priority -300; policy accept; }}",
        f"add chain {t} output {{ type filter hook output priority -300; policy accept; }}",
        *(f"flush chain {t} {chain}" for chain in ("prerouting", "input", "forwarding", "output")),
        f"add rule {t} prerouting iifname vmap @sent",
        f"add rule {t} input iifname @ports drop",
        f"add rule {t} forwarding iifname @ports oifname != @ports oifname != @others drop",
        f"add rule {t} forwarding oifname @ports iifname != @ports iifname != @others drop",
        *(f"add rule {t} {chain} oifname {rule}" for chain in ("forwarding", "output")
          for rule in (f"@ports {_PASS}", "vmap @received"))]


def remove_table(table: str) -> list[str]:
    return [f"{verb} table {family} {table}" for family in ("bridge", "ip", "ip6") for verb in ("add", "delete")]


def port(table: str, device: str, kind: str = "ports") -> list[str]:
    """Add a port of a Nova bridge to the set ``ports``, or another port to the set ``others``."""
    return [f'add element bridge {table} {kind} {{ "{device_name(device)}" }}']


def remove_port(table: str, device: str, kind: str = "ports") -> list[str]:
    # The element is added first, since deleting a missing element fails.
    return [*port(table, device, kind), f'delete element bridge {table} {kind} {{ "{device_name(device)}" }}']


def wire(table: str, device: str, net: HostNet) -> list[str]:
    """Filter the port to other hosts: traffic of the gateway and the DHCP server must not cross it. Each host has a
    gateway and a DHCP server for its guests, with the same addresses on all hosts, so that a migrated guest finds them
    on its new host."""
    name = name_of(device)
    own = f"{{ {net.gateway}, {METADATA} }}"
    rules = [f"ether saddr {net.gateway_mac} drop", f"ether daddr {net.gateway_mac} drop",
             f"arp saddr ip {own} drop", f"arp daddr ip {own} drop", "udp dport { 67, 68, 546, 547 } drop"]
    if net.gateway_v6:
        rules += ["icmpv6 type { nd-router-solicit, nd-router-advert, nd-redirect } drop",
                  "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } "
                  f"@th,64,128 {raw_v6([net.gateway_v6, net.router])} drop"]
    t = f"bridge {table}"
    lines = [*port(table, device), f"add chain {t} sent_{name}", f"add chain {t} received_{name}",
             f"flush chain {t} sent_{name}", f"flush chain {t} received_{name}"]
    lines += [f"add rule {t} {way}_{name} {rule}" for way in ("sent", "received") for rule in rules]
    return [*lines, *hook(table, device, name)]


def remove_wire(table: str, device: str) -> list[str]:
    name = name_of(device)
    t = f"bridge {table}"
    return [f"add chain {t} sent_{name}", f"add chain {t} received_{name}", *hook(table, device, name),
            *remove_port(table, device), *unhook(table, device, name)]


def host(table: str, nets: Sequence[HostNet], uplink: str | None, services: Sequence[str] = (),
         unreachable: Sequence[str] = (), floating: Sequence[str] = ()) -> list[str]:
    """Replace the table of the root namespace. Tenants reach networks behind ``uplink``, except for ``unreachable``
    networks. They reach only the ``services`` of the host (packet matches), and other tenants only by ``floating``
    addresses, which the namespaces translate. Without ``uplink`` nothing is translated or forwarded."""
    t = f"ip {table}"
    links = [net.uplink_port for net in nets if net.link is not None]
    bridges = sorted({net.bridge for net in nets})
    lines = [
        f"add table {t}", f"delete table {t}", f"add table {t}",
        f"add set {t} links {{ type ifname; }}", f"add set {t} bridges {{ type ifname; }}",
        f"add set {t} floating {{ type ipv4_addr; }}",
        f"add chain {t} tracking {{ type filter hook prerouting priority -450; policy accept; }}",
        f"add chain {t} input {{ type filter hook input priority -10; policy accept; }}",
        f"add chain {t} forwarding {{ type filter hook forward priority -10; policy accept; }}",
        f"add chain {t} leaving {{ type filter hook postrouting priority 300; policy accept; }}",
        f"add chain {t} postrouting {{ type nat hook postrouting priority 100; policy accept; }}",
        # With br_netfilter, bridged packets pass here. Without notrack, overlapping networks would share connection
        # tracking entries. The priority is before defragmentation, which would mix fragments of these networks.
        f"add rule {t} tracking iifname @bridges notrack",
        f"add rule {t} leaving oifname @links {_PASS}",
        # A guest that could send VXLAN packets to the host would have access to all networks of the host.
        f"add rule {t} input iifname @links udp dport {VXLAN_PORT} drop",
        f"add rule {t} forwarding iifname @links udp dport {VXLAN_PORT} drop",
        f"add rule {t} input iifname @links ct state established,related accept"]
    lines += [f"add rule {t} input iifname @links {service} accept" for service in services]
    lines.append(f"add rule {t} input iifname @links drop")
    if unreachable:
        lines.append(f"add rule {t} forwarding iifname @links ip daddr {{ {', '.join(unreachable)} }} drop")
    if uplink:
        lines += [f'add rule {t} forwarding iifname @links oifname "{device_name(uplink)}" accept',
                  f'add rule {t} forwarding iifname "{uplink}" oifname @links ct state established,related accept',
                  f"add rule {t} forwarding oifname @links ip daddr @floating accept",
                  f"add rule {t} forwarding iifname @links oifname @links ct state established,related accept",
                  f'add rule {t} postrouting iifname @links oifname "{uplink}" ip saddr != @floating masquerade',
                  f"add rule {t} postrouting iifname @links oifname @links ip saddr != @floating masquerade"]
    lines += [f"add rule {t} forwarding iifname @links drop", f"add rule {t} forwarding oifname @links drop"]
    lines += [f'add element {t} links {{ "{name}" }}' for name in links]
    lines += [f'add element {t} bridges {{ "{device_name(name)}" }}' for name in bridges]
    lines += [f"add element {t} floating {{ {ipaddress.IPv4Address(address)} }}" for address in floating]
    six = f"ip6 {table}"
    return [
        *lines, f"add table {six}", f"delete table {six}", f"add table {six}",
        f"add set {six} bridges {{ type ifname; }}",
        f"add chain {six} tracking {{ type filter hook prerouting priority -450; policy accept; }}",
        f"add rule {six} tracking iifname @bridges notrack",
        *(f'add element {six} bridges {{ "{name}" }}' for name in bridges)]


def namespace() -> list[str]:
    """Replace the tables in the namespace of a network: services for guests, and forwarding to the uplink."""
    t, six = "ip nova", "ip6 nova"
    return [
        f"add table {t}", f"delete table {t}", f"add table {t}",
        f"add chain {t} input {{ type filter hook input priority 0; policy drop; }}",
        f"add chain {t} forwarding {{ type filter hook forward priority 0; policy drop; }}",
        f"add chain {t} prerouting {{ type nat hook prerouting priority -100; policy accept; }}",
        f"add chain {t} postrouting {{ type nat hook postrouting priority 100; policy accept; }}",
        # Floating address -> fixed address, and fixed address -> floating address.
        f"add map {t} floating {{ type ipv4_addr : ipv4_addr; }}",
        f"add map {t} fixed {{ type ipv4_addr : ipv4_addr; }}",
        f'add rule {t} prerouting iifname "out" dnat to ip daddr map @floating',
        f'add rule {t} postrouting oifname "out" snat to ip saddr map @fixed',
        f"add rule {t} input ct state established,related accept",
        f'add rule {t} input iifname "lo" accept',
        f'add rule {t} input iifname "gw" udp dport {{ 53, 67 }} accept',
        f'add rule {t} input iifname "gw" tcp dport 53 accept',
        f'add rule {t} input iifname "gw" ip daddr {METADATA} tcp dport 80 accept',
        f"add rule {t} input icmp type echo-request accept",
        f'add rule {t} input iifname "gw" meta l4proto tcp reject with tcp reset',
        # The root namespace drops VXLAN packets, too, but a flush there does not affect this table.
        f"add rule {t} forwarding udp dport {VXLAN_PORT} drop",
        f"add rule {t} forwarding ct state established,related accept",
        f'add rule {t} forwarding iifname "gw" oifname "out" ip daddr != 169.254.0.0/16 accept',
        f'add rule {t} forwarding iifname "out" oifname "gw" ct status dnat accept',
        f'add rule {t} postrouting oifname "out" masquerade',
        f"add table {six}", f"delete table {six}", f"add table {six}",
        f"add chain {six} input {{ type filter hook input priority 0; policy drop; }}",
        f"add chain {six} forwarding {{ type filter hook forward priority 0; policy drop; }}",
        f"add rule {six} input icmpv6 type {_NEIGHBOURS} accept",
        f"add rule {six} input ct state established,related accept",
        f'add rule {six} input iifname "lo" accept',
        f'add rule {six} input iifname "gw" udp dport {{ 53, 547 }} accept',
        f'add rule {six} input iifname "gw" tcp dport 53 accept',
        f"add rule {six} input icmpv6 type echo-request accept",
        f'add rule {six} input iifname "gw" meta l4proto tcp reject with tcp reset']


def translate(mapping: Mapping[str, str]) -> list[str]:
    """Replace the floating addresses in the namespace of a network. ``mapping``: floating -> fixed address."""
    t = "ip nova"
    pairs = [(str(ipaddress.IPv4Address(floating)), str(ipaddress.IPv4Address(fixed)))
             for floating, fixed in sorted(mapping.items())]
    return [f"flush map {t} floating", f"flush map {t} fixed",
            *(f"add element {t} floating {{ {floating} : {fixed} }}" for floating, fixed in pairs),
            *(f"add element {t} fixed {{ {fixed} : {floating} }}" for floating, fixed in pairs)]


def hook(table: str, device: str, name: str) -> list[str]:
    return [f'add element bridge {table} sent {{ "{device}" : jump sent_{name} }}',
            f'add element bridge {table} received {{ "{device}" : jump received_{name} }}']


def unhook(table: str, device: str, name: str) -> list[str]:
    t = f"bridge {table}"
    return [f'delete element {t} sent {{ "{device}" }}', f'delete element {t} received {{ "{device}" }}',
            f"delete chain {t} sent_{name}", f"delete chain {t} received_{name}"]


def device_name(name: str) -> str:
    if not DEVICE.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name of a network device")
    return name


def name_of(device: str) -> str:
    """Return a device's name as a part of names of chains and sets."""
    return re.sub(r"[^A-Za-z0-9]", "_", device_name(device))


def mac_address(value: str) -> str:
    if not MAC.fullmatch(value):
        raise ValueError(f"{value!r} is not a MAC address")
    return value.lower()


def raw_v6(addresses: Sequence[str]) -> str:
    """Return IPv6 addresses as nftables integers, for matches on the payload of packets."""
    return "{ " + ", ".join(f"{int(plain_ip.v6_address(address)):#034x}" for address in addresses) + " }"
