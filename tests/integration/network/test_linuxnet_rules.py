"""Packets that guests may send and receive, on real networks with namespaces as guests."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from nova.network.linux import netns
from nova.objects.networks.network import FilterRule
from tests.integration.network.linuxnet_lab import (
    PING,
    SSH,
    Net,
    connects,
    ear,
    frame,
    needs_root,
    rules,
    sh,
    udp_packet,
)

ROUTER_ADVERTISEMENT = (struct.pack("!IHBB", 0x60000000, 16, 58, 255) + socket.inet_pton(socket.AF_INET6, "fe80::1")
                        + socket.inet_pton(socket.AF_INET6, "ff02::1") + b"\x86" + bytes(15))

pytestmark = [needs_root, pytest.mark.root]


def test_ingress_is_blocked_until_a_rule_admits_it(lab):
    net = Net()
    server, other = net.instance(5), net.instance(6)
    guest, peer = lab.booted(server), lab.booted(other)
    lab.listen(guest.ns, "0.0.0.0", 22)
    lab.listen(guest.ns, "0.0.0.0", 23)
    assert not peer.pings("10.77.0.5")
    assert not peer.connects("10.77.0.5", 22, 0.5)
    lab.driver.refresh_rules(server.uuid, rules(SSH, PING))
    assert peer.reaches("10.77.0.5")
    assert peer.connects("10.77.0.5", 22)
    assert not peer.connects("10.77.0.5", 23, 0.5)
    assert not guest.pings("10.77.0.6")
    lab.driver.refresh_rules(server.uuid, rules())
    assert not peer.connects("10.77.0.5", 22, 0.5)


def test_security_rules_apply_to_packets_from_the_namespace(lab):
    net = Net()
    server = net.instance(5)
    guest = lab.booted(server)
    lab.listen(guest.ns, "0.0.0.0", 22)
    reach = lambda: netns.call(net.namespace, lambda: connects("10.77.0.5", 22, 0.5))  # noqa: E731
    assert not reach()
    lab.driver.refresh_rules(server.uuid, rules(
        FilterRule(protocol="tcp", from_port=22, to_port=22, sources=["10.77.0.0/24"])))
    assert reach()


def test_namespace_serves_only_dhcp_dns_and_metadata(lab):
    """Other listeners on the addresses of the namespace are not reachable."""
    net = Net(v6="fd00:77")
    guest = lab.booted(net.instance(5))
    assert guest.addresses_v6()
    for address in ("10.77.0.1", "169.254.169.254", "fd00:77::1"):
        for port in (80, 8080):
            lab.listen(net.namespace, address, port)
            assert guest.connects(address, port, 0.5) is ((address, port) == ("169.254.169.254", 80))
        with contextlib.closing(netns.call(net.namespace, lambda address=address: _heard_at(address))) as sock:
            netns.call(net.namespace, lambda address=address: _tell(address))
            assert sock.recv(100) == b"told", "not reachable within the namespace"
            netns.call(guest.ns, lambda address=address: _tell(address))
            with pytest.raises(TimeoutError):
                sock.recv(100)
        assert guest.reaches(address)
    for address in ("10.77.0.1", "fd00:77::1"):
        assert guest.connects(address, 53)


def _heard_at(address):
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 8081))
    sock.settimeout(0.5)
    return sock


def _tell(address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"told", (address, 8081))


def test_rules_admit_only_their_sources(lab):
    net = Net()
    server = net.instance(5)
    rules = [FilterRule(protocol="tcp", from_port=22, to_port=22, sources=["10.77.0.6/32", "10.77.0.6/31"])]
    guest = lab.booted(server, rules)
    lab.listen(guest.ns, "0.0.0.0", 22)
    allowed, refused = lab.booted(net.instance(6)), lab.booted(net.instance(8))
    assert allowed.connects("10.77.0.5", 22)
    assert not refused.connects("10.77.0.5", 22, 0.5)


def test_replies_are_admitted_without_rules(lab):
    net = Net()
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [SSH, PING, FilterRule(protocol="udp")])
    lab.listen(peer.ns, "0.0.0.0", 22)
    assert guest.reaches("10.77.0.6")
    assert guest.connects("10.77.0.6", 22)
    # The same applies to UDP; a datagram from another port is refused.
    echo = netns.call(peer.ns, lambda: _udp("10.77.0.6", 5353))
    mine = netns.call(guest.ns, lambda: _udp("10.77.0.5", 4000))
    other = netns.call(peer.ns, lambda: _udp("10.77.0.6", 5354))
    mine.sendto(b"question", ("10.77.0.6", 5353))
    assert echo.recvfrom(100)[1] == ("10.77.0.5", 4000)
    other.sendto(b"unasked", ("10.77.0.5", 4000))
    echo.sendto(b"answer", ("10.77.0.5", 4000))
    assert mine.recv(100) == b"answer"
    with pytest.raises(TimeoutError):
        mine.recv(100)
    for sock in (echo, mine, other):
        sock.close()


def test_large_pings_pass_in_fragments(lab):
    net = Net()
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [PING])
    assert guest.run("busybox", "ping", "-c", "1", "-W", "1", "-s", "4000", "10.77.0.6").returncode == 0
    assert guest.run("busybox", "ping", "-c", "1", "-W", "1", "-s", "4000", "10.77.0.1").returncode == 0
    assert peer.vif.mtu < 4000


def _udp(address, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(0.5)
    sock.bind((address, port))
    return sock


def test_packets_with_forged_addresses_are_dropped(lab):
    net = Net()
    server = net.instance(5)
    guest, peer = lab.booted(server), lab.booted(net.instance(6), [FilterRule()])
    assert guest.reaches("10.77.0.6")
    sh("ip", "-n", guest.ns, "address", "add", "10.77.0.7/24", "dev", "eth0")
    assert guest.run("busybox", "ping", "-c", "1", "-W", "1", "-I", "10.77.0.7", "10.77.0.6").returncode != 0
    sh("ip", "-n", guest.ns, "link", "set", "eth0", "address", "fa:16:3e:00:00:99")
    assert not guest.pings("10.77.0.6")
    sh("ip", "-n", guest.ns, "link", "set", "eth0", "address", guest.vif.mac)
    guest.static()
    assert guest.reaches("10.77.0.6")
    assert peer.reaches("10.77.0.1")


def test_forged_frames_are_dropped(lab):
    net = Net()
    # The receiver is unfiltered, so a missing frame was dropped at the sender.
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6, security=False))
    mac, all_ = guest.vif.mac, "ff:ff:ff:ff:ff:ff"
    forged = {
        "arp for the gateway": frame(mac, all_, b"\x08\x06", _arp("10.77.0.1", mac, peer.vif)),
        "arp with another mac": frame(mac, all_, b"\x08\x06", _arp("10.77.0.5", "fa:16:3e:00:00:99", peer.vif)),
        "dhcp server": frame(mac, all_, b"\x08\x00", udp_packet("10.77.0.5", 67, 68)),
        "router advertisement": frame(mac, "33:33:00:00:00:01", b"\x86\xdd", ROUTER_ADVERTISEMENT),
        "vlan tagged": frame(mac, all_, b"\x81\x00", b"\0\5\x08\0" + udp_packet("10.77.0.5", 9, 9)),
        "another address": frame(mac, all_, b"\x08\x00", udp_packet("10.77.0.7", 9, 9)),
    }
    fine = frame(mac, all_, b"\x08\x00", udp_packet("10.77.0.5", 7, 7))
    sock = netns.call(peer.ns, ear)
    for one in [*forged.values(), fine]:
        guest.raw(one)
    heard = []
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and fine not in heard:
        heard.append(sock.recv(2000))
    sock.close()
    assert fine in heard
    # The VLAN tag is removed before the frame is received.
    bodies = [one[14:] for one in heard]
    assert [name for name, one in forged.items() if one[14:] in bodies or one[18:] in bodies] == []


def _arp(address, mac, target):
    return (b"\0\1\x08\0\6\4\0\2" + bytes.fromhex(mac.replace(":", "")) + socket.inet_aton(address)
            + bytes.fromhex(target.mac.replace(":", "")) + socket.inet_aton(target.fixed_ips[0].address))


def test_interface_without_port_security_is_not_filtered(lab):
    net = Net()
    free, other = net.instance(5, security=False), net.instance(6)
    guest, peer = lab.booted(free), lab.booted(other)
    assert peer.reaches("10.77.0.5")
    sh("ip", "-n", guest.ns, "address", "add", "10.77.0.7/24", "dev", "eth0")
    assert peer.reaches("10.77.0.7")


def test_outdated_rules_are_ignored(lab):
    net = Net()
    server = net.instance(5)
    guest, peer = lab.booted(server), lab.booted(net.instance(6))
    lab.listen(guest.ns, "0.0.0.0", 22)
    lab.driver.refresh_rules(server.uuid, rules(version=7))
    lab.driver.refresh_rules(server.uuid, rules(SSH, version=6))
    assert not peer.connects("10.77.0.5", 22, 0.5)
    # A late order, also after a restart.
    for driver in (lab.driver, lab.fresh()):
        driver.start([server])
        driver.plug(server, rules(SSH, version=6))
        assert not peer.connects("10.77.0.5", 22, 0.5)
    lab.driver.refresh_rules(server.uuid, rules(SSH, version=8))
    assert peer.connects("10.77.0.5", 22)


def test_rules_received_before_the_guest_are_applied(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.refresh_rules(server.uuid, rules(version=7))
    lab.driver.plug(server, rules(SSH, version=6))
    guest, peer = lab.guest(server), lab.booted(net.instance(6))
    guest.static()
    lab.listen(guest.ns, "0.0.0.0", 22)
    assert not peer.connects("10.77.0.5", 22, 0.5)
