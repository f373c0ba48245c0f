"""Security rules for fragments and ICMP errors, with namespaces as guests."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from nova.network.linux import netns
from nova.objects.networks.network import FilterRule
from tests.integration.network.linuxnet_lab import Net, ear, frame, needs_root

pytestmark = [needs_root, pytest.mark.root]

OPEN, CLOSED = 5353, 5354
UDP, ICMP, FRAGMENT, ICMPV6 = 17, 1, 44, 58
RULE = FilterRule(protocol="udp", from_port=OPEN, to_port=OPEN)


class Pair:
    """A guest with one open port, and an unrestricted peer. ``version`` is the IP version."""

    def __init__(self, lab, version):
        net = Net(v6="fd00:77" if version == 6 else None)
        self.version = version
        self.guest = lab.booted(net.instance(5), [RULE])
        self.peer = lab.booted(net.instance(6), [FilterRule(protocol="udp")])
        self.own = {4: "10.77.0.5", 6: self.guest.vif.addresses()[-1]}[version]
        self.other = {4: "10.77.0.6", 6: self.peer.vif.addresses()[-1]}[version]
        if version == 6:
            assert self.guest.addresses_v6() == [self.own]
            assert self.peer.addresses_v6() == [self.other]
        self.family = socket.AF_INET if version == 4 else socket.AF_INET6

    def packet(self, protocol, payload, source=None, number=None, offset=0, more=False):
        """Return a packet from the peer (or ``source``) to the guest.

        ``number``, ``offset`` (octets) and ``more`` describe a fragment.
        """
        source, target = socket.inet_pton(self.family, source or self.other), socket.inet_pton(self.family, self.own)
        if self.version == 4:
            head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), number or 0, more << 13 | offset // 8, 64,
                               protocol, 0, source, target)
            return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + payload
        if number is not None:
            payload = struct.pack("!BBHI", protocol, 0, offset | more, number) + payload
            protocol = FRAGMENT
        return struct.pack("!IHBB", 0x60000000, len(payload), protocol, 64) + source + target + payload

    def arrive(self, *packets):
        """Send these packets to the guest, and return which of them arrive."""
        sock = netns.call(self.guest.ns, ear)
        kind = b"\x08\x00" if self.version == 4 else b"\x86\xdd"
        frames = [frame(self.peer.vif.mac, self.guest.vif.mac, kind, packet) for packet in packets]
        # a marker that always arrives last
        last = frame(self.peer.vif.mac, self.guest.vif.mac, kind, self.packet(UDP, udp(OPEN, b"last")))
        for one in (*frames, last):
            self.peer.raw(one)
        heard = []
        with contextlib.suppress(TimeoutError):
            while last not in heard:
                heard.append(sock.recv(3000))
        sock.close()
        assert last in heard
        return [one in heard for one in frames]

    def socket(self, guest, address, port):
        def make():
            sock = socket.socket(self.family, socket.SOCK_DGRAM)
            sock.bind((address, port))
            sock.settimeout(5)
            return sock
        return netns.call(guest.ns, make)


def udp(port, data=b"", length=None, source=4000):
    return struct.pack("!HHHH", source, port, length or 8 + len(data), 0) + data


def _checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


@pytest.fixture(name="pair", params=[4, 6])
def pair_fixture(lab, request):
    return Pair(lab, request.param)


def test_later_fragments_follow_the_rule_of_the_first_fragment(pair):
    def halves(number, port):
        return (pair.packet(UDP, udp(port, b"a" * 16, length=32), number=number, more=True),
                pair.packet(UDP, b"b" * 8, number=number, offset=24))

    allowed, refused = halves(7, OPEN), halves(8, CLOSED)
    assert pair.arrive(*allowed) == [True, True]
    assert pair.arrive(*refused) == [False, False]
    # A single fragment, one with another id, and one after an admitted datagram.
    assert pair.arrive(pair.packet(UDP, b"b" * 8, number=9, offset=24)) == [False]
    assert pair.arrive(allowed[0], halves(7, CLOSED)[0], allowed[1]) == [True, False, False]


def test_fragmented_datagrams_reach_open_ports_only(pair):
    heard = {port: pair.socket(pair.guest, pair.own, port) for port in (OPEN, CLOSED)}
    sender = pair.socket(pair.peer, pair.other, 4000)
    for port in (CLOSED, OPEN):
        sender.sendto(b"x" * 5000, (pair.own, port))
    assert heard[OPEN].recv(6000) == b"x" * 5000
    heard[CLOSED].settimeout(0.5)
    with pytest.raises(TimeoutError):
        heard[CLOSED].recv(6000)
    # A fragmented reply is admitted without a rule.
    asking = pair.socket(pair.guest, pair.own, 4001)
    asking.sendto(b"question", (pair.other, 4000))
    sender.sendto(b"y" * 5000, (pair.own, 4001))
    assert asking.recv(6000) == b"y" * 5000
    for sock in (*heard.values(), sender, asking):
        sock.close()


def quoted(pair, protocol, payload, target=None, source=None):
    """Return an ICMP error about a packet from the guest (or ``source``) to ``target`` (None: the peer)."""
    family = pair.family
    source, target = socket.inet_pton(family, source or pair.own), socket.inet_pton(family, target or pair.other)
    if pair.version == 4:
        inner = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0, source, target)
        return pair.packet(ICMP, b"\3\3\0\0\0\0\0\0" + inner + payload)
    inner = struct.pack("!IHBB", 0x60000000, len(payload), protocol, 64) + source + target + payload
    return pair.packet(ICMPV6, b"\2\0\0\0\0\0\5\0" + inner)


def test_only_icmp_errors_about_packets_of_the_guest_are_admitted(pair):
    mine = pair.socket(pair.guest, pair.own, 4002)
    mine.sendto(b"hello", (pair.other, 9))
    mine.close()
    ping = 8 if pair.version == 4 else 128
    icmp = ICMP if pair.version == 4 else ICMPV6
    stranger = "10.77.0.8" if pair.version == 4 else "fd00:77::8"
    about = quoted(pair, UDP, udp(9, b"hello", source=4002))
    others = [quoted(pair, UDP, udp(10, b"hello", source=4002)), quoted(pair, UDP, udp(9, b"hello", source=4003)),
              quoted(pair, 6, udp(9, b"hello", source=4002)),
              quoted(pair, UDP, udp(9, b"hello", source=4002), stranger),
              quoted(pair, UDP, udp(9, b"hello", source=4002), source=stranger),
              quoted(pair, icmp, struct.pack("!BBHHH", ping, 0, 0, 77, 1)), quoted(pair, 132, b"12345678")]
    assert pair.arrive(about, *others) == [True, *[False] * len(others)]


def test_icmp_errors_about_replies_of_a_guest_are_admitted(pair):
    """The rule admitted the request, so errors about the reply are related to it."""
    server, client = pair.socket(pair.guest, pair.own, OPEN), pair.socket(pair.peer, pair.other, 4000)
    client.sendto(b"question", (pair.own, OPEN))
    server.sendto(b"answer", server.recvfrom(100)[1])
    assert client.recv(100) == b"answer"
    for sock in (server, client):
        sock.close()
    assert pair.arrive(quoted(pair, UDP, udp(4000, b"answer", source=OPEN))) == [True]


def test_guest_receives_port_unreachable_errors(lab):
    net = Net()
    guest, _peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [FilterRule()])
    assert guest.reaches("10.77.0.6")

    def ask():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("10.77.0.6", 9))
            sock.settimeout(10)
            sock.send(b"anybody?")
            sock.recv(100)
    with pytest.raises(ConnectionRefusedError):
        netns.call(guest.ns, ask)
