"""IPv6 of guests, with namespaces as guests."""

from __future__ import annotations

import ipaddress
import socket
import struct
import time

import pytest

from nova.network.linux import netns, state_files
from nova.objects.networks.network import FilterRule, slaac_address
from tests.integration.network.linuxnet_lab import PING, SSH, Net, connects, ear, frame, needs_root, rules, sh

pytestmark = [needs_root, pytest.mark.root]

ALL_NODES = "33:33:00:00:00:01"
LINK_LOCAL = ipaddress.IPv6Network("fe80::/64")


@pytest.fixture(name="net")
def network():
    return Net(v6="fd00:77")


def v6(guest):
    return guest.vif.addresses(6)[0]


def booted(lab, server, *found):
    """Plug a guest and wait until it has both addresses."""
    guest = lab.booted(server, found)
    assert guest.addresses_v6() == [v6(guest)]
    return guest


def test_guest_configures_its_recorded_slaac_address(lab, net):
    guest = booted(lab, net.instance(5))
    shown = guest.run("ip", "-6", "route").stdout
    assert "fd00:77::/64" in shown
    assert "default" not in shown, "there must be no IPv6 route beyond the namespace"
    assert guest.dhcp()["ip"] == "10.77.0.5"
    assert guest.reaches("fd00:77::1")
    assert guest.run("cat", "/proc/sys/net/ipv6/conf/eth0/mtu").stdout.strip() == "1450"
    answer = guest.run("busybox", "nslookup", "-type=a", "localhost", "fd00:77::1", timeout=15)
    assert "fd00:77::1" in answer.stdout


def test_dhcp_assigns_the_recorded_ipv4_and_ipv6_addresses(lab):
    net = Net(v6="fd00:78", mode="dhcpv6-stateful")
    server, stays = net.instance(5), net.instance(9)
    for one in (stays, server):
        lab.driver.plug(one, rules())
    guest = lab.guest(server)
    assert guest.dhcp_v6() == "fd00:78::5"
    assert guest.dhcp()["ip"] == "10.77.0.5"
    assert guest.addresses_v6() == ["fd00:78::5"], "an address was configured by router advertisement"
    assert guest.reaches("fd00:78::1")
    # The next guest with the same address and MAC address has another client identifier.
    guest.remove()
    lab.driver.unplug(server)
    again = net.instance(5, mac=server.network_info[0].mac)
    lab.driver.plug(again, rules())
    assert lab.guest(again).dhcp_v6(client=b"\0\3\0\1guest2") == "fd00:78::5"


def test_unknown_mac_address_gets_no_dhcpv6_address(lab):
    net = Net(v6="fd00:78", mode="dhcpv6-stateful")
    lab.driver.plug(net.instance(5), rules())
    assert lab.guest(net.instance(6, security=False)).dhcp_v6(seconds=2) is None


def test_ipv6_ingress_is_blocked_until_a_rule_admits_it(lab, net):
    server = net.instance(5)
    guest, peer = booted(lab, server), booted(lab, net.instance(6))
    lab.listen(guest.ns, "::", 22)
    lab.driver.refresh_rules(server.uuid, rules(FilterRule(sources=["0.0.0.0/0"]), version=1))
    assert not peer.pings(v6(guest))
    assert not peer.connects(v6(guest), 22, 0.5)
    only = [FilterRule(protocol="tcp", from_port=22, to_port=22, sources=[f"{v6(peer)}/128"]),
            FilterRule(protocol="icmp", from_port=-1, to_port=-1, sources=["::/0"])]
    lab.driver.refresh_rules(server.uuid, rules(*only, version=2))
    assert peer.reaches(v6(guest))
    assert peer.connects(v6(guest), 22)
    assert not netns.call(net.namespace, lambda: connects(v6(guest), 22, 0.5)), "another source was admitted"
    lab.driver.refresh_rules(server.uuid, rules(version=3))
    assert not peer.pings(v6(guest))


def test_ipv6_replies_are_admitted_without_rules(lab, net):
    guest = booted(lab, net.instance(5))
    peer = booted(lab, net.instance(6), SSH, PING, FilterRule(protocol="udp"))
    lab.listen(peer.ns, "::", 22)
    assert guest.reaches(v6(peer))
    assert guest.connects(v6(peer), 22)
    assert guest.run("busybox", "ping", "-6", "-c", "1", "-W", "1", "-s", "4000", v6(peer)).returncode == 0, "fragments"
    echo = netns.call(peer.ns, lambda: _udp(v6(peer), 5353))
    mine = netns.call(guest.ns, lambda: _udp(v6(guest), 4000))
    other = netns.call(peer.ns, lambda: _udp(v6(peer), 5354))
    mine.sendto(b"question", (v6(peer), 5353))
    assert echo.recvfrom(100)[1][:2] == (v6(guest), 4000)
    other.sendto(b"unasked", (v6(guest), 4000))
    echo.sendto(b"answer", (v6(guest), 4000))
    assert mine.recv(100) == b"answer"
    with pytest.raises(TimeoutError):
        mine.recv(100)
    for sock in (echo, mine, other):
        sock.close()
    # An ICMP error: there is no listener on the port.
    refused = netns.call(guest.ns, lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
    refused.settimeout(2)
    refused.connect((v6(peer), 9))
    refused.send(b"anybody?")
    with pytest.raises(ConnectionRefusedError):
        refused.recv(10)
    refused.close()


def _udp(address, port):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.settimeout(0.5)
    sock.bind((address, port))
    return sock


def test_ipv6_packets_with_forged_addresses_are_dropped(lab, net):
    guest, peer = booted(lab, net.instance(5)), booted(lab, net.instance(6), FilterRule())
    assert guest.reaches(v6(peer))
    sh("ip", "-n", guest.ns, "address", "add", "fd00:77::77/64", "dev", "eth0", "nodad")
    assert guest.run("busybox", "ping", "-6", "-c", "1", "-W", "1", "-I", "fd00:77::77", v6(peer)).returncode != 0
    sh("ip", "-n", guest.ns, "address", "del", "fd00:77::77/64", "dev", "eth0")
    assert guest.reaches(v6(peer))


def test_forged_ipv6_frames_are_dropped(lab, net):
    # The receiver is unfiltered, so a missing frame was dropped at the sender.
    guest, peer = booted(lab, net.instance(5)), booted(lab, net.instance(6, security=False))
    mac, local = guest.vif.mac, _link_local(guest)
    router = state_files.network_of_vif(guest.vif).router
    advert = b"\x86\0\0\0" + bytes(4) + bytes(8)
    forged = {
        "router advertisement": _icmp(mac, local, "ff02::1", advert),
        "router advertisement of the router": _icmp(mac, router, "ff02::1", advert),
        "router advertisement behind a header": _icmp(mac, local, "ff02::1", advert, options=True),
        "router advertisement in a fragment": _hidden(mac, local, advert),
        "redirect": _icmp(mac, local, "ff02::1", b"\x89\0\0\0" + bytes(36)),
        "advertisement of another": _icmp(mac, local, "ff02::1", _neighbour(136, "fd00:77::1")),
        "advertisement of the router": _icmp(mac, local, "ff02::1", _neighbour(136, router)),
        "claim of another's address": _icmp(mac, "::", "ff02::1", _neighbour(135, v6(peer))),
        "another address": _icmp(mac, "fd00:77::77", "ff02::1", b"\x80\0\0\0" + bytes(4)),
        "dhcp server": _udp_frame(mac, local, 547, 546),
    }
    fine = _icmp(mac, v6(guest), "ff02::1", _neighbour(136, v6(guest)))
    free = lab.booted(net.instance(7, security=False))
    for sender, passed in ((guest, set()), (free, set(forged))):
        sock = netns.call(peer.ns, ear)
        for one in [*forged.values(), fine]:
            sender.raw(one)
        heard = []
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and fine not in heard:
            heard.append(sock.recv(2000))
        sock.close()
        assert fine in heard
        assert {name for name, one in forged.items() if one in heard} == passed


def test_router_advertisements_of_guests_are_dropped(lab, net):
    guest, rogue = booted(lab, net.instance(5), FilterRule()), lab.booted(net.instance(6, security=False))
    advert = (b"\x86\0\0\0\x40\0\x07\x08" + bytes(8) + b"\3\4\x40\xc0" + struct.pack("!II", 3600, 3600) + bytes(4)
              + socket.inet_pton(socket.AF_INET6, "fd00:bad::"))
    rogue.raw(_icmp(rogue.vif.mac, _link_local(rogue), "ff02::1", advert))
    time.sleep(0.5)
    assert guest.addresses_v6() == [v6(guest)]
    assert "default" not in guest.run("ip", "-6", "route").stdout


def test_namespace_serves_only_dns_over_ipv6(lab, net):
    guest = booted(lab, net.instance(5))
    lab.listen(net.namespace, "::", 8080)
    assert not guest.connects("fd00:77::1", 8080, 0.5)
    assert guest.connects("fd00:77::1", 53)


def test_network_without_ipv6_drops_ipv6_packets(lab):
    net = Net()
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6, security=False))
    assert peer.addresses_v6(seconds=1) == []
    sock = netns.call(peer.ns, ear)
    guest.raw(_icmp(guest.vif.mac, _link_local(guest), "ff02::1", b"\x80\0\0\0" + bytes(4)))
    guest.reaches("10.77.0.6")
    heard = []
    sock.settimeout(0.5)
    try:
        while True:
            heard.append(sock.recv(2000))
    except TimeoutError:
        sock.close()
    assert heard
    assert [one for one in heard if one[12:14] == b"\x86\xdd" and one[6:12] == _raw_mac(guest.vif.mac)] == []


# --- frames --------------------------------------------------------------------------------------
def _raw_mac(mac):
    return bytes.fromhex(mac.replace(":", ""))


def _link_local(guest):
    return slaac_address(LINK_LOCAL, guest.vif.mac)


def _ip6(mac, source, target, header, payload):
    head = struct.pack("!IHBB", 0x60000000, len(payload), header, 255)
    head += socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
    return frame(mac, ALL_NODES, b"\x86\xdd", head + payload)


def _checksum(source, target, header, payload):
    pseudo = (socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
              + struct.pack("!II", len(payload), header))
    data = pseudo + payload + b"\0" * (len(payload) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def _icmp(mac, source, target, message, options=False):
    message = message[:2] + _checksum(source, target, 58, message) + message[4:]
    if not options:
        return _ip6(mac, source, target, 58, message)
    return _ip6(mac, source, target, 60, b"\x3a\0\1\4\0\0\0\0" + message)


def _hidden(mac, source, message):
    """Return the first fragment of a packet whose protocol is hidden behind a destination options header."""
    return _ip6(mac, source, "ff02::1", 44, b"\x3c\0\0\1" + b"\0\0\0\1" + b"\x3a\0\1\4\0\0\0\0" + message[:8])


def _neighbour(kind, target):
    return bytes([kind]) + bytes(3) + b"\x20\0\0\0" + socket.inet_pton(socket.AF_INET6, target)


def _udp_frame(mac, source, sport, dport):
    payload = struct.pack("!HHHH", sport, dport, 12, 0) + b"evil"
    payload = payload[:6] + _checksum(source, "ff02::1", 17, payload) + payload[8:]
    return _ip6(mac, source, "ff02::1", 17, payload)
