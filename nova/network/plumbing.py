"""One network on this host: bridge, namespace, the links between them and the way out.

    guest tap -- bridge -- nvp… == gw [namespace: gateway, DHCP, DNS, metadata, NAT] out == nvu… -- uplink
                   |
                 nvx… (VXLAN), nvl… (VLAN) or an interface: the wire to other hosts

The bridge has no address and no route: the root namespace takes no part in the tenants' network.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import json
import logging
import os
import socket
import struct
from collections.abc import Collection, Sequence

from nova import exception
from nova.conf import CONF
from nova.network import commands, filters, netns
from nova.network.records import DEVICE, HostNet
from nova.objects import plain_ip

LOG = logging.getLogger(__name__)

SYS = "/sys/class/net"
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x17


def exists(device: str) -> bool:
    return os.path.exists(os.path.join(SYS, device))


def index(device: str) -> int | None:
    """The number that tells a device from a later one of the same name; None: no such device."""
    try:
        with open(os.path.join(SYS, device, "ifindex"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def other_ports(net: HostNet, tag: str) -> list[str]:
    """What an operator has put on a bridge of their own, apart from guests."""
    if _owner(net.bridge) in (None, _alias(tag)):
        return []
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(os.path.join(SYS, net.bridge, "brif"))
                      if name not in (net.bridge_port, net.wire_port) and not name.startswith("tap")
                      and DEVICE.fullmatch(name))
    return []


def complete(net: HostNet) -> bool:
    """Whether the devices of a network are there (cheap: asks no process)."""
    return (exists(net.bridge) and exists(net.bridge_port) and netns.identity(net.namespace) is not None
            and (net.link is None or exists(net.uplink_port))
            and (net.wire_port is None or exists(net.wire_port)))


def ensure(net: HostNet, tag: str) -> None:
    """Make a network's devices and namespace, or repair them. Raises NetworkSetupError."""
    _check_owner(net, tag)
    commands.ip(_outside_lines(net, tag))
    _quiet([net.bridge, net.bridge_port] + ([net.uplink_port] if net.link is not None else []))
    if net.wire_port and (net.vlan is not None or net.vni is not None):
        _quiet([net.wire_port])
    if net.link is not None:
        outside = uplink() or ""
        if not exists(outside):
            LOG.warning("There is no interface %r: guests do not reach the outside", outside)
        for device in (net.uplink_port, outside):
            _set(f"net/ipv4/conf/{device}/forwarding", "1")
        _set(f"net/ipv4/conf/{net.uplink_port}/arp_ignore", "1")
    netns.call(net.namespace, lambda: _inside(net))
    LOG.info("Network %s (%s) is up on bridge %s, namespace %s", net.id, net.label, net.bridge, net.namespace)


def remove(net: HostNet, tag: str) -> None:
    """Remove what :func:`ensure` made, and only that: an operator's own bridge and interface stay."""
    lines = [f"link del dev {device}" for device in (net.bridge_port, net.uplink_port)
             if exists(device) and _owner(device) == _alias(tag)]
    if net.wire_port and exists(net.wire_port):
        if (net.vlan is not None or net.vni is not None) and _owner(net.wire_port) == _alias(tag):
            lines.append(f"link del dev {net.wire_port}")
        elif _owner(net.bridge) == _alias(tag) and _master(net.wire_port) == net.bridge:
            lines.append(f"link set dev {net.wire_port} nomaster")
    if exists(net.bridge) and _owner(net.bridge) == _alias(tag):
        lines.append(f"link del dev {net.bridge}")
    if netns.identity(net.namespace) is not None:
        lines.append(f"netns del {net.namespace}")
    commands.ip(lines)
    LOG.info("Network %s (%s) is gone from this host", net.id, net.label)


def uplink() -> str | None:
    """The interface that tenants reach the outside by: the configured one or that of the default route."""
    if not CONF.network.nat:
        return None
    if CONF.network.uplink_interface:
        return str(CONF.network.uplink_interface)
    with contextlib.suppress(OSError), open("/proc/net/route", encoding="ascii") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
                return fields[0]
    return None


def answer_at_once(device: str) -> None:
    """Who asks for an address that this host answers for waits for no random time."""
    _set(f"net/ipv4/neigh/{device}/proxy_delay", "0")


def tunnel_address() -> str:
    """Where the tunnels of this host end. Raises NetworkSetupError for what is no address."""
    value = str(CONF.network.tunnel_address or CONF.my_ip)
    try:
        return str(plain_ip.address(value))
    except ValueError as error:
        raise exception.NetworkSetupError(reason=f"[network]tunnel_address {value} is not an IP address") from error


def addresses() -> list[tuple[str, str]]:
    """The host's IPv4 addresses: (device, address)."""
    shown = json.loads(commands.run(["ip", "-json", "-4", "address", "show"]) or "[]")
    return [(device["ifname"], info["local"]) for device in shown if device.get("ifname")
            for info in device.get("addr_info", []) if "local" in info]


def link_addresses(number: int) -> tuple[str, str]:
    """The host's and the namespace's address of a link."""
    first = ipaddress.IPv4Network(CONF.network.link_range)[2 * number]
    return str(first), str(first + 1)


def free_link(network_id: str, taken: Collection[int], used: Sequence[tuple[str, str]]) -> int:
    """A number for a new link, the same again if possible. Raises NetworkSetupError when all are taken."""
    total = ipaddress.IPv4Network(CONF.network.link_range).num_addresses // 2
    in_use = {address for _device, address in used}
    start = int(network_id.replace("-", "")[:8] or "0", 16)
    for offset in range(total):
        number = (start + offset) % total
        if number not in taken and not in_use.intersection(link_addresses(number)):
            return number
    raise exception.NetworkSetupError(reason="[network]link_range has no free addresses")


def _outside_lines(net: HostNet, tag: str) -> list[str]:
    """What is missing in the root namespace."""
    lines: list[str] = []
    if not exists(net.bridge):
        lines += [f"link add name {net.bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
                  *_mine(net.bridge, tag)]
    if _owner(net.bridge) in (None, _alias(tag)):
        lines.append(f"link set dev {net.bridge} mtu {net.mtu} up")
    if netns.identity(net.namespace) is None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(netns.ROOT, net.namespace))
        lines.append(f"netns add {net.namespace}")
    lines += _wire_lines(net, tag)
    if not exists(net.bridge_port):
        lines += [f"link add name {net.bridge_port} type veth peer name gw address {net.gateway_mac} "
                  f"netns {net.namespace}", *_mine(net.bridge_port, tag)]
    lines.append(f"link set dev {net.bridge_port} master {net.bridge} mtu {net.mtu} up")
    if net.link is not None:
        if not exists(net.uplink_port):
            lines += [f"link add name {net.uplink_port} type veth peer name out netns {net.namespace}",
                      *_mine(net.uplink_port, tag)]
        lines += [f"link set dev {net.uplink_port} mtu {_uplink_mtu()} up",
                  f"address replace {link_addresses(net.link)[0]}/31 dev {net.uplink_port}"]
    elif exists(net.uplink_port):
        lines.append(f"link del dev {net.uplink_port}")  # NAT was switched off
    return lines


def _wire_lines(net: HostNet, tag: str) -> list[str]:
    """The port towards other hosts."""
    port, interface = net.wire_port, net.bridge_interface
    if port is None:
        return []
    if net.vni is not None:
        return _tunnel_lines(net, port, tag)
    if not exists(str(interface)):
        raise exception.NetworkSetupError(reason=f"the host has no interface {interface}")
    lines = []
    if net.vlan is not None and not exists(port):
        lines += [f"link add link {interface} name {port} type vlan id {net.vlan}", *_mine(port, tag)]
    if _master(port) not in (None, net.bridge):
        raise exception.NetworkSetupError(reason=f"{port} belongs to another bridge")
    up = [f"link set dev {interface} up"] if net.vlan is not None else []
    return [*lines, *up, f"link set dev {port} master {net.bridge} up"]


def _tunnel_lines(net: HostNet, port: str, tag: str) -> list[str]:
    """The device that the tunnels to other hosts begin at; made anew when it is another one."""
    lines = []
    if exists(port) and (_owner(port) != _alias(tag) or _tunnel_of(port) != (net.vni, net.tunnel)):
        lines.append(f"link del dev {port}")
    if lines or not exists(port):
        lines += [f"link add name {port} type vxlan id {net.vni} local {net.tunnel} "
                  f"dstport {filters.VXLAN_PORT} ttl 64", *_mine(port, tag)]
    return [*lines, f"link set dev {port} master {net.bridge} mtu {net.mtu} up"]


def _tunnel_of(port: str) -> tuple[int | None, str | None]:
    """The number and the end of an existing tunnel device."""
    shown = json.loads(commands.run(["ip", "-json", "-details", "link", "show", "dev", port]) or "[]")
    data = shown[0].get("linkinfo", {}).get("info_data", {}) if shown else {}
    return data.get("id"), data.get("local") or data.get("local6")


def _inside_lines(net: HostNet) -> list[str]:
    lines = ["link set dev lo up",
             f"link set dev gw mtu {net.mtu} up",
             f"address replace {net.gateway}/{net.prefix} dev gw",
             f"address replace {filters.METADATA}/32 dev gw"]
    if net.cidr_v6 and net.gateway_v6:
        lines.append(f"address replace {net.gateway_v6}/{net.cidr_v6.split('/')[1]} dev gw nodad")
    if net.link is not None:
        ours, inside = link_addresses(net.link)
        lines += [f"link set dev out mtu {_uplink_mtu()} up", f"address replace {inside}/31 dev out",
                  f"route replace default via {ours} dev out"]
    return lines


def _inside(net: HostNet) -> None:
    """Run in the namespace: kernel settings, addresses and the packet filter."""
    off = "0" if net.cidr_v6 else "1"
    settings = {"net/ipv6/conf/all/disable_ipv6": off, "net/ipv6/conf/default/disable_ipv6": "1",
                "net/ipv6/conf/out/disable_ipv6": "1", "net/ipv6/conf/gw/disable_ipv6": off,
                # The other hosts have the same addresses.
                "net/ipv6/conf/gw/accept_dad": "0", "net/ipv6/conf/gw/accept_ra": "0",
                "net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/gw/send_redirects": "0",
                "net/ipv4/conf/gw/accept_redirects": "0", "net/ipv4/conf/gw/arp_ignore": "1",
                "net/ipv4/ip_forward": "1" if net.link is not None else "0"}
    for name, value in settings.items():
        _set(name, value)
    commands.ip(_inside_lines(net))
    _fill_checksums("gw")
    commands.nft(filters.inside())


def _fill_checksums(device: str) -> None:
    """Send complete checksums: DHCP clients of guests read raw packets, and drop unfinished ones."""
    off = array.array("I", [ETHTOOL_STXCSUM, 0])
    request = struct.pack("16sP16x", device.encode(), off.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, SIOCETHTOOL, request)
        except OSError as error:
            LOG.warning("Checksum offload of %s could not be switched off: %s", device, error)


def _mine(device: str, tag: str) -> list[str]:
    lines = [f"link set dev {device} alias {_alias(tag)}"]
    if os.path.exists("/proc/sys/net/ipv6"):
        lines.append(f"link set dev {device} addrgenmode none")
    return lines


def _check_owner(net: HostNet, tag: str) -> None:
    made = [net.wire_port] if net.vni is not None and net.wire_port else []
    for device in (net.bridge, net.bridge_port, net.uplink_port, *made):
        owner = _owner(device)
        if owner and owner.startswith("nova-") and owner != _alias(tag):
            raise exception.NetworkSetupError(reason=f"{device} belongs to another nova-compute of this machine")


def _alias(tag: str) -> str:
    return f"nova-{tag}"


def _owner(device: str) -> str | None:
    """The mark on a device ("": somebody else's); None: no such device."""
    try:
        with open(os.path.join(SYS, device, "ifalias"), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def _master(device: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(SYS, device, "master")))
    except OSError:
        return None


def _uplink_mtu() -> int:
    try:
        with open(os.path.join(SYS, uplink() or "", "mtu"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1500


def _quiet(devices: Sequence[str]) -> None:
    """The host's own IPv6 does not speak on these devices."""
    for device in devices:
        _set(f"net/ipv6/conf/{device}/disable_ipv6", "1")


def _set(name: str, value: str) -> None:
    """Set a kernel parameter of the current namespace; kernels without it are fine."""
    try:
        with open(os.path.join("/proc/sys", name), "w", encoding="ascii") as file:
            file.write(value)
    except FileNotFoundError:
        return
    except OSError as error:
        LOG.warning("Kernel parameter %s could not be set: %s", name, error)
