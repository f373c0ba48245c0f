"""The devices of a network on this host: bridge, namespace, the links between them and the uplink.

    guest tap -- bridge -- nvp… == gw [namespace: gateway, DHCP, DNS, metadata, NAT] out == nvu… -- uplink
                   |
                 nvx… (VXLAN), nvl… (VLAN) or an interface: the port to other hosts

The bridge has no address and no route, so the root namespace is not part of the tenants' network.
"""

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
from nova.common import plain_ip
from nova.conf import CONF
from nova.network.linux import commands, filters, netns
from nova.network.linux.state_files import DEVICE, HostNet

LOG = logging.getLogger(__name__)

SYS = "/sys/class/net"
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x17


def exists(device: str) -> bool:
    return os.path.exists(os.path.join(SYS, device))


def index(device: str) -> int | None:
    """Return the index of a device, which a later device of the same name does not share; None if it is missing."""
    value = _attribute(device, "ifindex")
    return int(value) if value else None


def other_ports(net: HostNet, tag: str) -> list[str]:
    """Return the ports of an operator's own bridge that belong to neither Nova nor guests."""
    if _owner(net.bridge) in (None, _alias(tag)):
        return []
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(os.path.join(SYS, net.bridge, "brif"))
                      if name not in (net.bridge_port, net.wire_port) and not name.startswith("tap")
                      and DEVICE.fullmatch(name))
    return []


def complete(net: HostNet) -> bool:
    """Return True if all devices of a network exist. Starts no process."""
    return (exists(net.bridge) and exists(net.bridge_port) and netns.identity(net.namespace) is not None
            and (net.link is None or exists(net.uplink_port)) and (net.wire_port is None or exists(net.wire_port)))


def ensure(net: HostNet, tag: str) -> None:
    """Create or repair the devices and the namespace of a network. Raises NetworkSetupError."""
    tunnel = [net.wire_port] if net.vni is not None and net.wire_port else []
    for device in (net.bridge, net.bridge_port, net.uplink_port, *tunnel):
        owner = _owner(device)
        if owner and owner.startswith("nova-") and owner != _alias(tag):
            raise exception.NetworkSetupError(reason=f"{device} belongs to another nova-compute on this machine")
    commands.ip(_root_lines(net, tag))
    _disable_ipv6([net.bridge, net.bridge_port] + ([net.uplink_port] if net.link is not None else []))
    if net.wire_port and (net.vlan is not None or net.vni is not None):
        _disable_ipv6([net.wire_port])
    if net.link is not None:
        external = uplink() or ""
        if not exists(external):
            LOG.warning("The uplink interface %r does not exist: guests cannot reach external networks", external)
        for device in (net.uplink_port, external):
            _set(f"net/ipv4/conf/{device}/forwarding", "1")
        _set(f"net/ipv4/conf/{net.uplink_port}/arp_ignore", "1")
    netns.call(net.namespace, lambda: _set_up_namespace(net))
    LOG.info("Set up network %s (%s) on bridge %s, namespace %s", net.id, net.label, net.bridge, net.namespace)


def remove(net: HostNet, tag: str) -> None:
    """Remove the devices that :func:`ensure` created, but not an operator's own bridge and interface."""
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
    LOG.info("Removed network %s (%s) from this host", net.id, net.label)


def uplink() -> str | None:
    """Return the interface to external networks: the configured one or that of the default route. Returns None if NAT
    is disabled or if there is no default route."""
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


def disable_proxy_delay(device: str) -> None:
    """Make proxy ARP reply without the random delay."""
    _set(f"net/ipv4/neigh/{device}/proxy_delay", "0")


def tunnel_address() -> str:
    """Return the address of this host's end of tunnels. Raises NetworkSetupError for an invalid address."""
    value = str(CONF.network.tunnel_address or CONF.my_ip)
    try:
        return str(plain_ip.address(value))
    except ValueError as error:
        raise exception.NetworkSetupError(reason=f"[network]tunnel_address {value} is not an IP address") from error


def addresses() -> list[tuple[str, str]]:
    """Return the host's IPv4 addresses as (device, address)."""
    devices = json.loads(commands.run(["ip", "-json", "-4", "address", "show"]) or "[]")
    return [(device["ifname"], info["local"]) for device in devices if device.get("ifname")
            for info in device.get("addr_info", []) if "local" in info]


def link_addresses(number: int) -> tuple[str, str]:
    """Return the addresses of a link: in the root namespace and in the namespace of the network."""
    first = ipaddress.IPv4Network(CONF.network.link_range)[2 * number]
    return str(first), str(first + 1)


def free_link(network_id: str, taken: Collection[int], used: Sequence[tuple[str, str]]) -> int:
    """Return a free link number for a network, the same at each call while it is free. Raises NetworkSetupError."""
    total = ipaddress.IPv4Network(CONF.network.link_range).num_addresses // 2
    in_use = {address for _device, address in used}
    start = int(network_id.replace("-", "")[:8] or "0", 16)
    for offset in range(total):
        number = (start + offset) % total
        if number not in taken and not in_use.intersection(link_addresses(number)):
            return number
    raise exception.NetworkSetupError(reason="[network]link_range has no free addresses")


def _root_lines(net: HostNet, tag: str) -> list[str]:
    """Return the commands that create missing devices in the root namespace."""
    lines: list[str] = []
    if not exists(net.bridge):
        lines += [f"link add name {net.bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
                  *_mark_lines(net.bridge, tag)]
    if _owner(net.bridge) in (None, _alias(tag)):
        lines.append(f"link set dev {net.bridge} mtu {net.mtu} up")
    if netns.identity(net.namespace) is None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(netns.ROOT, net.namespace))
        lines.append(f"netns add {net.namespace}")
    lines += _wire_lines(net, tag)
    if not exists(net.bridge_port):
        lines += [f"link add name {net.bridge_port} type veth peer name gw address {net.gateway_mac} "
                  f"netns {net.namespace}", *_mark_lines(net.bridge_port, tag)]
    lines.append(f"link set dev {net.bridge_port} master {net.bridge} mtu {net.mtu} up")
    if net.link is not None:
        if not exists(net.uplink_port):
            lines += [f"link add name {net.uplink_port} type veth peer name out netns {net.namespace}",
                      *_mark_lines(net.uplink_port, tag)]
        lines += [f"link set dev {net.uplink_port} mtu {_uplink_mtu()} up",
                  f"address replace {link_addresses(net.link)[0]}/31 dev {net.uplink_port}"]
    elif exists(net.uplink_port):
        lines.append(f"link del dev {net.uplink_port}")  # NAT was disabled
    return lines


def _wire_lines(net: HostNet, tag: str) -> list[str]:
    port, interface = net.wire_port, net.bridge_interface
    if port is None:
        return []
    if net.vni is not None:
        lines = []
        if exists(port) and (_owner(port) != _alias(tag) or _tunnel_of(port) != (net.vni, net.tunnel)):
            lines.append(f"link del dev {port}")
        if lines or not exists(port):
            lines += [f"link add name {port} type vxlan id {net.vni} local {net.tunnel} "
                      f"dstport {filters.VXLAN_PORT} ttl 64", *_mark_lines(port, tag)]
        return [*lines, f"link set dev {port} master {net.bridge} mtu {net.mtu} up"]
    if not exists(str(interface)):
        raise exception.NetworkSetupError(reason=f"the host has no interface {interface}")
    lines = []
    if net.vlan is not None and not exists(port):
        lines += [f"link add link {interface} name {port} type vlan id {net.vlan}", *_mark_lines(port, tag)]
    if _master(port) not in (None, net.bridge):
        raise exception.NetworkSetupError(reason=f"{port} belongs to another bridge")
    up = [f"link set dev {interface} up"] if net.vlan is not None else []
    return [*lines, *up, f"link set dev {port} master {net.bridge} up"]


def _tunnel_of(port: str) -> tuple[int | None, str | None]:
    """Return the VNI and the local address of an existing tunnel device."""
    devices = json.loads(commands.run(["ip", "-json", "-details", "link", "show", "dev", port]) or "[]")
    data = devices[0].get("linkinfo", {}).get("info_data", {}) if devices else {}
    return data.get("id"), data.get("local") or data.get("local6")


def _set_up_namespace(net: HostNet) -> None:
    """Set kernel parameters, addresses and packet filters. Runs in the namespace."""
    off = "0" if net.cidr_v6 else "1"
    settings = {"net/ipv6/conf/all/disable_ipv6": off, "net/ipv6/conf/default/disable_ipv6": "1",
                "net/ipv6/conf/out/disable_ipv6": "1", "net/ipv6/conf/gw/disable_ipv6": off,
                # No duplicate address detection, since the other hosts have the same gateway address.
                "net/ipv6/conf/gw/accept_dad": "0", "net/ipv6/conf/gw/accept_ra": "0",
                "net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/gw/send_redirects": "0",
                "net/ipv4/conf/gw/accept_redirects": "0", "net/ipv4/conf/gw/arp_ignore": "1",
                "net/ipv4/ip_forward": "1" if net.link is not None else "0"}
    for name, value in settings.items():
        _set(name, value)
    lines = ["link set dev lo up", f"link set dev gw mtu {net.mtu} up",
             f"address replace {net.gateway}/{net.prefix} dev gw", f"address replace {filters.METADATA}/32 dev gw"]
    if net.cidr_v6 and net.gateway_v6:
        lines.append(f"address replace {net.gateway_v6}/{net.cidr_v6.split('/')[1]} dev gw nodad")
    if net.link is not None:
        outer, inner = link_addresses(net.link)
        lines += [f"link set dev out mtu {_uplink_mtu()} up", f"address replace {inner}/31 dev out",
                  f"route replace default via {outer} dev out"]
    commands.ip(lines)
    _disable_checksum_offload("gw")
    commands.nft(filters.namespace())


def _disable_checksum_offload(device: str) -> None:
    """Disable checksum offload: DHCP clients read raw packets and would drop those with incomplete checksums."""
    off = array.array("I", [ETHTOOL_STXCSUM, 0])
    request = struct.pack("16sP16x", device.encode(), off.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, SIOCETHTOOL, request)
        except OSError as error:
            LOG.warning("Cannot disable checksum offload of %s, DHCP clients may ignore replies: %s", device, error)


def _mark_lines(device: str, tag: str) -> list[str]:
    lines = [f"link set dev {device} alias {_alias(tag)}"]
    if os.path.exists("/proc/sys/net/ipv6"):
        lines.append(f"link set dev {device} addrgenmode none")
    return lines


def _alias(tag: str) -> str:
    return f"nova-{tag}"


def _owner(device: str) -> str | None:
    """Return the alias of a device, by which Nova marks its devices ("" if unmarked), or None if it is missing."""
    return _attribute(device, "ifalias")


def _attribute(device: str, name: str) -> str | None:
    try:
        with open(os.path.join(SYS, device, name), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def _master(device: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(SYS, device, "master")))
    except OSError:
        return None


def _uplink_mtu() -> int:
    return int(_attribute(uplink() or "", "mtu") or 1500)


def _disable_ipv6(devices: Sequence[str]) -> None:
    for device in devices:
        _set(f"net/ipv6/conf/{device}/disable_ipv6", "1")


def _set(name: str, value: str) -> None:
    """Set a kernel parameter in the current namespace, if the kernel supports it."""
    try:
        with open(os.path.join("/proc/sys", name), "w", encoding="ascii") as file:
            file.write(value)
    except FileNotFoundError:
        return
    except OSError as error:
        LOG.warning("Cannot set kernel parameter %s: %s", name, error)
