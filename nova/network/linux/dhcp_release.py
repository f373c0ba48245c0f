"""DHCP release messages on behalf of guests, so that the DHCP server can assign their addresses again.

Packets of RFC 2131 and RFC 8415, sent in the namespace of the network."""

import binascii
import socket
import struct
from collections.abc import Collection
from typing import NamedTuple

# Name of the interface in the namespace.
_DEVICE = "gw"
_ALL_SERVERS = "ff02::1:2"
_RELEASE = 8
_CLIENT_ID, _SERVER_ID, _IA_NA, _IA_ADDRESS = 1, 2, 3, 5


class Lease6(NamedTuple):
    """An IPv6 lease in dnsmasq's lease file. Identifiers are raw bytes."""

    address: str
    iaid: int
    client: bytes


def packet(server: str, mac: str, address: str) -> bytes:
    """Return a DHCPRELEASE message (IPv4)."""
    hardware = bytes.fromhex(mac.replace(":", ""))
    message = struct.pack("!BBBBIHH4s4s4s4s16s64s128s", 1, 1, len(hardware), 0, 0x4E6F7661, 0, 0,
                          socket.inet_aton(address), bytes(4), bytes(4), bytes(4), hardware, b"", b"")
    message += b"\x63\x82\x53\x63" + b"\x35\x01\x07" + b"\x36\x04" + socket.inet_aton(server) + b"\xff"
    return message.ljust(300, b"\0")


def packet_v6(server: bytes, lease: Lease6) -> bytes:
    """Return a Release message (DHCPv6)."""
    address = _option(_IA_ADDRESS, socket.inet_pton(socket.AF_INET6, lease.address) + bytes(8))
    return (struct.pack("!B", _RELEASE) + b"nov" + _option(_CLIENT_ID, lease.client) + _option(_SERVER_ID, server)
            + _option(_IA_NA, struct.pack("!III", lease.iaid, 0, 0) + address))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("!HH", code, len(value)) + value


def leases_v6(text: str, addresses: Collection[str]) -> tuple[bytes | None, list[Lease6]]:
    """Return the server's identifier and the leases of these addresses from the content of dnsmasq's lease file."""
    server, leases = None, []
    for line in text.splitlines():
        words = line.split()
        try:
            if len(words) == 2 and words[0] == "duid":
                server = _raw(words[1])
            elif len(words) >= 5 and words[2] in addresses and words[1].isdecimal():
                leases.append(Lease6(words[2], int(words[1]), _raw(words[4])))
        except (ValueError, binascii.Error):
            continue  # an incomplete line, while dnsmasq writes the file
    return server, leases


def _raw(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def send(server: str, leases: Collection[tuple[str, str]]) -> None:
    """Release pairs of MAC address and IPv4 address at this server. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # The server requires that the packet arrives from the interface of the network.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _DEVICE.encode() + b"\0")
        for mac, address in leases:
            sender.sendto(packet(server, mac, address), (server, 67))


def send_v6(server: bytes, leases: Collection[Lease6]) -> None:
    """Release IPv6 leases. Raises OSError."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _DEVICE.encode() + b"\0")
        for lease in leases:
            sender.sendto(packet_v6(server, lease), (_ALL_SERVERS, 547, 0, socket.if_nametoindex(_DEVICE)))
