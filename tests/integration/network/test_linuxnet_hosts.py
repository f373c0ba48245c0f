"""VXLAN networks between hosts, each of which is made of namespaces."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

from nova.conductor.endpoints.networks import SecurityGroups
from nova.db.networks import security_groups
from nova.db.servers import servers
from nova.network.linux import netns
from nova.objects.networks.network import FilterRule, SecurityGroupRule
from tests.integration.network.linuxnet_hosts import Hosts
from tests.integration.network.linuxnet_lab import PING, SSH, ear, frame, needs_root
from tests.integration.processes import eventually
from tests.unit.conductor.books import ctx

pytestmark = [
    needs_root, pytest.mark.root, pytest.mark.skipif(not shutil.which("nsenter"), reason="hosts need nsenter")]

ANYBODY = FilterRule()
SYN, RST, ACK = 2, 4, 16


@pytest.fixture(name="hosts", scope="module")
def hosts_fixture(tmp_path_factory):
    made = Hosts(3, tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()


@pytest.fixture(name="cloud")
def cloud_fixture(hosts):
    """Return the hosts without guests; check that each test leaves nothing on them."""
    hosts.core.reset()
    hosts.core.told.clear()
    before = [host.traces() for host in hosts.hosts]
    for host in hosts.hosts:
        host.asked.clear()
    yield hosts
    hosts.core.deaf.clear()
    for guest in hosts.guests:
        guest.remove()
    hosts.guests.clear()
    for host in hosts.hosts:
        for uuid in host.do("guests"):
            host.do("unplug_guest", uuid=uuid)
    eventually(lambda: [host.traces() for host in hosts.hosts] == before, 10,
               "the hosts have no network devices of the test left")


def v4(guest):
    return guest.vif.addresses(4)[0]


def v6(guest):
    return guest.vif.addresses(6)[0]


def addresses(*hosts):
    return {host.host.address for host in hosts}


def test_guests_on_different_hosts_reach_each_other(cloud):
    one, two, _three = cloud.hosts
    net = cloud.network(v6="fd00:77")
    guest = cloud.boot(one, net.instance(5), ANYBODY)
    peer = cloud.boot(two, net.instance(6), ANYBODY)
    eventually(lambda: one.targets(net) == addresses(two), 5, "the first host has received the tunnel addresses")
    assert two.targets(net) == addresses(one)
    assert guest.reaches(v4(peer))
    assert guest.addresses_v6() == [v6(guest)]
    assert peer.addresses_v6() == [v6(peer)]
    assert guest.reaches(v6(peer))
    assert peer.reaches(v6(guest))
    # A packet with the MTU of the network.
    assert guest.run("busybox", "ping", "-c", "1", "-W", "1", "-s", str(1450 - 28), v4(peer)).returncode == 0


def test_rules_apply_between_hosts(cloud):
    one, two, _three = cloud.hosts
    net = cloud.network(v6="fd00:77")
    guest, peer = cloud.boot(one, net.instance(5), SSH), cloud.boot(two, net.instance(6))
    for address in (v4(guest), v6(guest)):
        peer.addresses_v6()
        guest.addresses_v6()
        sock = _listen(guest, address)
        assert _eventually_connects(peer, address, 22)
        assert not peer.pings(address)
        sock.close()


def test_each_host_serves_dhcp_and_gateway_to_its_own_guests(cloud):
    one, two, _three = cloud.hosts
    net = cloud.network(v6="fd00:77")
    for number, host in ((5, one), (6, two)):
        guest = cloud.boot(host, net.instance(number), ANYBODY)
        guest.run("ip", "address", "flush", "dev", "eth0", "scope", "global")
        assert guest.dhcp()["ip"] == f"10.77.0.{number}"
        assert guest.reaches("10.77.0.1")
    # Gateway traffic does not pass between hosts.
    two.run("ip", "netns", "exec", net.namespace, "ip", "link", "set", "gw", "down")
    assert cloud.guests[0].reaches("10.77.0.1")
    assert not cloud.guests[1].pings("10.77.0.1")


def test_vxlan_networks_are_isolated(cloud):
    one, two, _three = cloud.hosts
    net, other = cloud.network(), cloud.network(vni=6, cidr="10.78.0")
    other.prefix = "10.77.0"  # same addresses on both networks
    guest, stranger = cloud.boot(one, net.instance(5), ANYBODY), cloud.boot(two, other.instance(6), ANYBODY)
    friend = cloud.boot(two, net.instance(7), ANYBODY)
    assert guest.reaches(v4(friend))
    assert not guest.pings(v4(stranger))


def test_host_joins_and_leaves_a_network_with_its_guests(cloud):
    one, two, three = cloud.hosts
    net = cloud.network()
    servers = [net.instance(number) for number in (5, 6, 7)]
    for host, server in zip(cloud.hosts, servers, strict=True):
        host.do("plug", instance=server, rules={})
    eventually(lambda: one.targets(net) == addresses(two, three), 5, "all hosts have tunnels to each other")
    assert (two.targets(net), three.targets(net)) == (addresses(one, three), addresses(one, two))
    # A second guest needs no message.
    asked, told = len(two.asked), len(cloud.core.told)
    more = net.instance(8)
    two.do("plug", instance=more, rules={})
    time.sleep(0.5)
    assert (len(two.asked), len(cloud.core.told)) == (asked, told)
    two.do("unplug", instance=more)
    two.do("unplug", instance=servers[1])
    eventually(lambda: one.targets(net) == addresses(three), 5, "the tunnel to the second host is removed")
    assert three.targets(net) == addresses(one)
    assert not netns_of(two)


def netns_of(host):
    return host.run("ip", "netns", "list").split()


def test_restarted_host_polls_missed_peers(cloud):
    one, two, _three = cloud.hosts
    net = cloud.network()
    server = net.instance(5)
    one.do("plug", instance=server, rules={})
    cloud.core.deaf.add(one.name)
    two.do("plug", instance=net.instance(6), rules={})
    time.sleep(0.5)
    assert one.targets(net) == set()
    one.restart(server)
    eventually(lambda: one.targets(net) == addresses(two), 5, "the restarted host has requested its tunnel addresses")


def test_restarted_host_polls_missed_security_rules(cloud):
    one, _two, _three = cloud.hosts
    net = cloud.network()
    server = net.instance(5)
    cloud.core.db.write(lambda connection: servers.insert(connection, [server]))
    groups = SecurityGroups(cloud.core)
    group = groups.create(ctx("p"), "web", "")
    cloud.core.db.write(lambda connection: security_groups.add_members(connection, [group.id], [server.uuid]))
    guest, peer = cloud.boot(one, server, PING), cloud.boot(one, net.instance(6))
    assert peer.reaches(v4(guest))
    # The server has no host in the database, so no host is notified.
    groups.add_rule(ctx("p"), SecurityGroupRule(parent_group_id=group.id, protocol="tcp", from_port=22, to_port=22))
    one.restart(server)
    eventually(lambda: not peer.pings(v4(guest)), 10, "the stored rules are applied")
    sock = _listen(guest, v4(guest))
    assert _eventually_connects(peer, v4(guest), 22)
    sock.close()


def test_outdated_peers_are_ignored(cloud):
    one, two, _three = cloud.hosts
    net = cloud.network()
    one.do("plug", instance=net.instance(5), rules={})
    two.do("plug", instance=net.instance(6), rules={})
    eventually(lambda: one.targets(net) == addresses(two), 5, "the first host has received the tunnel addresses")
    one.do("refresh_peers", peers={"network_id": net.id, "version": 7, "hosts": {}})
    assert one.targets(net) == addresses(two)


def test_live_migrated_guest_keeps_its_connections(cloud):
    """The guest is plugged on both hosts, and QEMU announces the guest on the new host."""
    one, two, three = cloud.hosts
    net = cloud.network(v6="fd00:77")
    server = net.instance(5)
    server.host = one.name
    guest, peer = cloud.boot(one, server, SSH, PING), cloud.boot(three, net.instance(6), SSH, PING)
    assert peer.reaches(v4(guest))
    guest.addresses_v6()
    peer.addresses_v6()
    assert peer.reaches(v6(guest))
    streams = [Stream(guest, peer, address) for address in (v4(guest), v6(guest), None)]
    pings = [_pinging(peer, address) for address in (v4(guest), v6(guest))]
    time.sleep(1)
    two.do("plug", instance=server, rules={"rules": [{"protocol": "tcp", "from_port": 22, "to_port": 22},
                                                     {"protocol": "icmp"}]})
    guest.plug_into(two)
    guest.raw(_announcement(guest.vif.mac))
    one.do("unplug", instance=server)
    time.sleep(4)
    for ping in pings:
        out = ping.communicate(timeout=30)[0]
        sent, received = map(int, re.search(r"(\d+) packets transmitted, (\d+) packets received", out).groups())
        # 50 pings per second, and this test unplugs the cable for a moment, which is longer on a busy machine.
        assert received >= sent - 25, out
    for stream in streams:
        stream.check()
    # The new host has the same addresses and gateway; neighbours need no new resolution.
    assert guest.dhcp()["ip"] == "10.77.0.5"
    assert guest.reaches("10.77.0.1")
    assert guest.reaches("fd00:77::1")


def test_silent_guest_is_reachable_at_its_announced_host(cloud):
    one, two, three = cloud.hosts
    net = cloud.network()
    server = net.instance(5)
    guest, peer = cloud.boot(one, server, PING), cloud.boot(three, net.instance(6), PING)
    assert peer.reaches(v4(guest))
    two.do("plug", instance=server, rules={"rules": [{"protocol": "icmp"}]})
    guest.plug_into(two)

    def announced():
        guest.raw(_announcement(guest.vif.mac))
        return peer.reaches(v4(guest), 2)

    # Repeated as by QEMU, since the cable may be late on a busy machine.
    assert any(announced() for _ in range(3))


def test_live_migrated_guest_accepts_no_new_connections(cloud):
    one, two, three = cloud.hosts
    net = cloud.network()
    server = net.instance(5)
    server.host = one.name
    guest, peer = cloud.boot(one, server), cloud.boot(three, net.instance(6), ANYBODY)
    assert guest.reaches(v4(peer))
    two.do("plug", instance=server, rules={})
    guest.plug_into(two)
    guest.raw(_announcement(guest.vif.mac))
    assert guest.reaches(v4(peer))
    sock = _listen(guest, v4(guest))
    with contextlib.closing(sock), contextlib.closing(netns.call(peer.ns, ear)) as heard:
        # A packet may be lost on the way.
        refused = any(_answers(heard, peer, guest, ACK) == {RST} for _ in range(5))
        assert refused, "the guest did not receive the ACK of an unknown connection"
        # The guest's RST was its first packet to this peer, and must not open the filter.
        for _ in range(3):
            assert _answers(heard, peer, guest, SYN) <= {RST}


def _answers(heard, peer, guest, flags):
    """Send a segment to the guest's port 22 and return the TCP flags of its replies within half a second."""
    peer.raw(_segment(peer, guest, flags))
    answers, deadline = set(), time.monotonic() + 0.5
    while (left := deadline - time.monotonic()) > 0:
        heard.settimeout(left)
        with contextlib.suppress(TimeoutError):
            packet = heard.recv(2000)
            if packet[12:14] == b"\x08\0" and packet[34:36] == b"\0\x16":
                answers.add(packet[47])
    return answers


def _segment(peer, guest, flags):
    """Return a TCP segment from port 4444 to port 22."""
    tcp = struct.pack("!HHIIBBHHH", 4444, 22, 1, 1, 5 << 4, flags, 1000, 0, 0)
    ends = socket.inet_aton(v4(peer)) + socket.inet_aton(v4(guest))
    tcp = tcp[:16] + _checksum(ends + struct.pack("!HH", 6, len(tcp)) + tcp) + tcp[18:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + ends
    return frame(peer.vif.mac, guest.vif.mac, b"\x08\0", head[:10] + _checksum(head) + head[12:] + tcp)


def _checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def _announcement(mac):
    """Return a RARP request as sent by QEMU after a migration."""
    raw = bytes.fromhex(mac.replace(":", ""))
    return frame(mac, "ff:ff:ff:ff:ff:ff", b"\x80\x35", b"\0\1\x08\0\6\4\0\3" + raw + bytes(4) + raw + bytes(4))


def _pinging(guest, address):
    six = ["-6"] if ":" in address else []
    return subprocess.Popen(["ip", "netns", "exec", guest.ns, "busybox", "ping", *six, "-i", "0.02", "-c", "200",
                             "-W", "1", address], stdout=subprocess.PIPE, text=True)


def _listen(guest, address):
    def listen():
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, 22))
        sock.listen(4)
        return sock
    return netns.call(guest.ns, listen)


def _eventually_connects(guest, address, port):
    deadline = time.monotonic() + 5
    while not guest.connects(address, port, 1):
        if time.monotonic() > deadline:
            return False
    return True


class Stream:
    """A connection on which ``peer`` sends continuously. The guest opens it if its rules admit no clients, and never
    sends."""

    def __init__(self, guest, peer, address=None):
        listens, opens = (guest, peer) if address else (peer, guest)
        address = address or v4(peer)
        self._listener = _listen(listens, address)
        opened = netns.call(opens.ns, lambda: socket.create_connection((address, 22), 5))
        accepted, _peer = self._listener.accept()
        self._near, self._far = (opened, accepted) if opens is peer else (accepted, opened)
        self._far.settimeout(20)
        self._stop = threading.Event()
        self._sent = 0
        self._heard = bytearray()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._speak, self._hear)]
        for thread in self._threads:
            thread.start()

    def _speak(self):
        while not self._stop.wait(0.02):
            self._near.sendall(bytes([self._sent % 256]))
            self._sent += 1
        self._near.shutdown(socket.SHUT_WR)

    def _hear(self):
        while data := self._far.recv(100):
            self._heard += data

    def check(self):
        """Check that everything sent was received, in order."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        assert self._sent > 50
        assert self._heard == bytes(number % 256 for number in range(self._sent))
        for sock in (self._near, self._far, self._listener):
            sock.close()
