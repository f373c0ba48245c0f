"""Networks on a host for real: namespaces play the guests."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import struct
import time
import uuid

import pytest

from nova.conf import CONF
from nova.network import commands, dhcp, netns
from nova.objects.network import FilterRule
from tests.integration.linuxnet_lab import (
    PING,
    SSH,
    Net,
    connects,
    frame,
    instance,
    lab_fixture,  # noqa: F401
    needs_root,
    sh,
)

ROUTER_ADVERTISEMENT = (struct.pack("!IHBB", 0x60000000, 16, 58, 255) + socket.inet_pton(socket.AF_INET6, "fe80::1")
                        + socket.inet_pton(socket.AF_INET6, "ff02::1") + b"\x86" + bytes(15))

pytestmark = [needs_root, pytest.mark.root]


def wait(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_dhcp_gives_the_reserved_address_routes_and_mtu(lab):
    net = Net()
    server = net.instance(5, hostname="web")
    lab.driver.plug(server, [])
    offer = lab.guest(server).dhcp()
    assert offer["ip"] == "10.77.0.5"
    assert offer["mask"] == "24"
    assert offer["hostname"] == "web"
    assert offer["mtu"] == "1450"
    assert offer["dns"] == "10.77.0.1"
    assert offer["domain"] == "novalocal"
    assert offer["staticroutes"].split() == ["169.254.169.254/32", "10.77.0.1", "0.0.0.0/0", "10.77.0.1"]


def test_a_stranger_gets_no_address(lab):
    net = Net()
    known, stranger = net.instance(5), net.instance(6, security=False)
    lab.driver.plug(known, [])
    guest = lab.guest(stranger)
    assert guest.dhcp(tries=2) is None


def test_an_address_serves_its_next_owner_at_once(lab):
    net = Net()
    first, second, stays = net.instance(5), net.instance(5), net.instance(9)
    lab.driver.plug(stays, [])
    lab.driver.plug(first, [])
    assert lab.guest(first).dhcp()["ip"] == "10.77.0.5"
    lab.guests[-1].remove()
    lab.driver.unplug(first)
    lab.driver.plug(second, [])
    assert lab.guest(second).dhcp()["ip"] == "10.77.0.5"


def test_names_resolve_on_the_network(lab):
    net = Net()
    asking, named = net.instance(5), net.instance(6, hostname="db")
    lab.driver.plug(named, [])
    guest = lab.booted(asking)
    assert lab.guest(named).dhcp()["ip"] == "10.77.0.6"
    answer = guest.run("busybox", "nslookup", "db.novalocal", "10.77.0.1")
    assert "10.77.0.6" in answer.stdout


def test_ingress_is_closed_until_a_rule_opens_it(lab):
    net = Net()
    server, other = net.instance(5), net.instance(6)
    guest, peer = lab.booted(server), lab.booted(other)
    lab.listen(guest.ns, "0.0.0.0", 22)
    lab.listen(guest.ns, "0.0.0.0", 23)
    assert not peer.pings("10.77.0.5")
    assert not peer.connects("10.77.0.5", 22, 0.5)
    lab.driver.refresh_rules(server, [SSH, PING])
    assert peer.reaches("10.77.0.5")
    assert peer.connects("10.77.0.5", 22)
    assert not peer.connects("10.77.0.5", 23, 0.5)
    assert not guest.pings("10.77.0.6")
    lab.driver.refresh_rules(server, [])
    assert not peer.connects("10.77.0.5", 22, 0.5)


def test_the_namespace_reaches_a_guest_as_the_rules_say(lab):
    net = Net()
    server = net.instance(5)
    guest = lab.booted(server)
    lab.listen(guest.ns, "0.0.0.0", 22)
    reach = lambda: netns.call(net.namespace, lambda: connects("10.77.0.5", 22, 0.5))  # noqa: E731
    assert not reach()
    lab.driver.refresh_rules(server, [FilterRule(protocol="tcp", from_port=22, to_port=22, sources=["10.77.0.0/24"])])
    assert reach()


def test_rules_name_their_sources(lab):
    net = Net()
    server = net.instance(5)
    rules = [FilterRule(protocol="tcp", from_port=22, to_port=22, sources=["10.77.0.6/32", "10.77.0.6/31"])]
    guest = lab.booted(server, rules)
    lab.listen(guest.ns, "0.0.0.0", 22)
    allowed, refused = lab.booted(net.instance(6)), lab.booted(net.instance(8))
    assert allowed.connects("10.77.0.5", 22)
    assert not refused.connects("10.77.0.5", 22, 0.5)


def test_replies_come_back_whatever_the_rules(lab):
    net = Net()
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [SSH, PING, FilterRule(protocol="udp")])
    lab.listen(peer.ns, "0.0.0.0", 22)
    assert guest.reaches("10.77.0.6")
    assert guest.connects("10.77.0.6", 22)
    # The same for UDP, and a second datagram from elsewhere stays out.
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


def test_large_packets_pass_in_fragments(lab):
    net = Net()
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [PING])
    assert guest.run("busybox", "ping", "-c", "1", "-W", "1", "-s", "4000", "10.77.0.6").returncode == 0
    assert guest.run("busybox", "ping", "-c", "1", "-W", "1", "-s", "4000", "10.77.0.1").returncode == 0
    assert peer.vif.mtu < 4000


def test_dhcp_answers_have_complete_checksums(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.plug(server, [])
    guest = lab.guest(server)
    ear = netns.call(guest.ns, _ear)
    assert guest.dhcp()
    answers = []
    ear.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            found = ear.recv(2000)
            if found[12:14] == b"\x08\x00" and found[34:38] == b"\0\x43\0\x44":
                answers.append(found)
    ear.close()
    assert answers
    assert [_udp_checksum(one) for one in answers] == [0xFFFF] * len(answers)


def _udp_checksum(found):
    """The sum over an IPv4 UDP frame with its pseudo header: 0xffff if its checksum is right."""
    length = struct.unpack("!H", found[38:40])[0]
    data = found[26:34] + b"\0\x11" + found[38:40] + found[34:34 + length] + b"\0" * (length % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _udp(address, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(0.5)
    sock.bind((address, port))
    return sock


def test_forged_addresses_go_nowhere(lab):
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


def test_forged_frames_are_not_heard(lab):
    net = Net()
    # The one that listens is not protected: what it hears, the other could send.
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6, security=False))
    mac, all_ = guest.vif.mac, "ff:ff:ff:ff:ff:ff"
    forged = {
        "arp for the gateway": frame(mac, all_, b"\x08\x06", _arp("10.77.0.1", mac, peer.vif)),
        "arp with another mac": frame(mac, all_, b"\x08\x06", _arp("10.77.0.5", "fa:16:3e:00:00:99", peer.vif)),
        "dhcp server": frame(mac, all_, b"\x08\x00", _udp_packet("10.77.0.5", 67, 68)),
        "router advertisement": frame(mac, "33:33:00:00:00:01", b"\x86\xdd", ROUTER_ADVERTISEMENT),
        "vlan tagged": frame(mac, all_, b"\x81\x00", b"\0\5\x08\0" + _udp_packet("10.77.0.5", 9, 9)),
        "another address": frame(mac, all_, b"\x08\x00", _udp_packet("10.77.0.7", 9, 9)),
    }
    fine = frame(mac, all_, b"\x08\x00", _udp_packet("10.77.0.5", 7, 7))
    ear = netns.call(peer.ns, _ear)
    for one in [*forged.values(), fine]:
        guest.raw(one)
    heard = []
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and fine not in heard:
        heard.append(ear.recv(2000))
    ear.close()
    assert fine in heard
    # A tag is taken off before the frame is heard.
    bodies = [one[14:] for one in heard]
    assert [name for name, one in forged.items() if one[14:] in bodies or one[18:] in bodies] == []


def _arp(address, mac, target):
    return (b"\0\1\x08\0\6\4\0\2" + bytes.fromhex(mac.replace(":", "")) + socket.inet_aton(address)
            + bytes.fromhex(target.mac.replace(":", "")) + socket.inet_aton(target.address))


def _udp_packet(source, sport, dport):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 32, 0, 0, 64, 17, 0, socket.inet_aton(source),
                       socket.inet_aton("10.77.0.6"))
    total = sum(struct.unpack("!10H", head))
    check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return head[:10] + struct.pack("!H", check) + head[12:] + struct.pack("!HHHH", sport, dport, 12, 0) + b"evil"


def _ear():
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind(("eth0", 3))
    sock.settimeout(2)
    return sock


def test_guests_of_two_networks_with_the_same_addresses_are_apart(lab):
    one, two = Net(), Net()
    guest, peer = lab.booted(one.instance(5), [FilterRule()]), lab.booted(two.instance(6), [FilterRule()])
    near = lab.booted(one.instance(7), [FilterRule()])
    assert near.reaches("10.77.0.5")
    assert not guest.pings("10.77.0.6")
    assert peer.reaches("10.77.0.1")


def test_networks_do_not_reach_one_another_through_the_host(lab):
    one, two = Net(), Net("10.78.0")
    guest, peer = lab.booted(one.instance(5), [FilterRule()]), lab.booted(two.instance(6), [FilterRule()])
    lab.listen(peer.ns, "0.0.0.0", 22)
    assert not guest.pings("10.78.0.6")
    assert not guest.pings("10.78.0.1")
    assert not guest.connects("10.78.0.6", 22, 0.5)
    # Nor a namespace the link of another.
    links = [line.split()[3].split("/")[0] for line in sh("ip", "-n", two.namespace, "-o", "-4", "address", "show",
                                                          "dev", "out").stdout.splitlines()]
    assert links
    assert not guest.pings(links[0])


def test_guests_reach_the_outside_behind_the_hosts_address(lab):
    net = Net()
    guest = lab.booted(net.instance(5))
    beyond = lab.listen(lab.outside, lab.beyond, 8080)
    assert guest.connects(lab.beyond, 8080)
    assert wait(lambda: beyond.peers == [lab.here])
    assert guest.reaches(lab.beyond)
    here = lab.listen(None, lab.here, 8081)
    assert guest.connects(lab.here, 8081)
    assert wait(lambda: len(here.peers) == 1)
    assert not here.peers[0].startswith("10.77.")


def test_guests_reach_no_other_address_of_the_host(lab):
    net = Net()
    guest = lab.booted(net.instance(5))
    sh("ip", "address", "add", "198.18.77.1/32", "dev", "lo")
    try:
        lab.listen(None, "0.0.0.0", 8082)
        assert guest.connects(lab.here, 8082)
        assert not guest.connects("198.18.77.1", 8082, 0.5)
        # Nor by the bridge, addressing the host's own MAC.
        sh("ip", "-n", guest.ns, "route", "add", "198.18.77.1/32", "dev", "eth0")
        assert not guest.pings("198.18.77.1")
        assert "lladdr" not in guest.run("ip", "neigh", "show", "198.18.77.1").stdout
    finally:
        sh("ip", "address", "del", "198.18.77.1/32", "dev", "lo")


def test_guests_reach_no_other_network_of_the_host(lab):
    guest = lab.booted(Net().instance(5))
    inner, port = f"ti{lab.outside[2:]}", f"tm{lab.outside[2:]}"
    sh("ip", "netns", "add", inner)
    try:
        sh("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inner)
        sh("ip", "address", "add", "198.18.78.1/30", "dev", port)
        sh("ip", "link", "set", port, "up")
        for command in (("address", "add", "198.18.78.2/30", "dev", "eth0"), ("link", "set", "eth0", "up"),
                        ("route", "add", "default", "via", "198.18.78.1")):
            sh("ip", "-n", inner, *command)
        with open(f"/proc/sys/net/ipv4/conf/{port}/forwarding", "w") as file:
            file.write("1")
        lab.listen(inner, "198.18.78.2", 8080)
        lab.listen(lab.outside, lab.beyond, 8080)
        assert connects("198.18.78.2", 8080)
        assert guest.connects(lab.beyond, 8080)
        ear = netns.call(inner, _ear)
        assert not guest.connects("198.18.78.2", 8080, 0.5)
        ear.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                found = ear.recv(2000)
                assert found[12:14] != b"\x08\x00" or not found[26:].startswith(b"\xa9\xfe")
        ear.close()
    finally:
        sh("ip", "link", "del", port, check=False)
        sh("ip", "netns", "del", inner)


def test_the_host_does_not_track_what_it_bridges(lab):
    try:
        with open("/proc/sys/net/bridge/bridge-nf-call-iptables") as file:
            if file.read().strip() != "1":
                pytest.skip("bridged packets do not reach the host's IP filters here")
    except FileNotFoundError:
        pytest.skip("no br_netfilter")
    net = Net(f"10.{uuid.uuid4().int % 200 + 20}.{uuid.uuid4().int % 250}")  # other tests leave entries
    guest, _peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [PING])
    lab.listen(lab.outside, lab.beyond, 8080)
    assert guest.connects(lab.beyond, 8080)  # something is tracked at all
    assert guest.reaches(f"{net.prefix}.6")
    with open("/proc/net/nf_conntrack") as file:
        tracked = file.read()
    assert f"dst={lab.beyond}" in tracked
    assert f"src={net.prefix}.5" not in tracked


def test_without_nat_there_is_no_way_out(lab):
    CONF.set_override("nat", False, group="network")
    try:
        guest = lab.booted(Net().instance(5))
        lab.listen(lab.outside, lab.beyond, 8080)
        assert not guest.connects(lab.beyond, 8080, 0.5)
        assert guest.reaches("10.77.0.1")
    finally:
        CONF.clear_override("nat", group="network")


def test_the_outside_does_not_reach_guests(lab):
    net = Net()
    guest = lab.booted(net.instance(5), [FilterRule()])
    lab.listen(guest.ns, "0.0.0.0", 22)
    sh("ip", "-n", lab.outside, "route", "add", "10.77.0.0/24", "via", lab.here)
    assert not netns.call(lab.outside, lambda: connects("10.77.0.5", 22, 0.5))
    assert "10.77.0" not in sh("ip", "route", "show", "table", "all").stdout
    assert sh("ip", "-o", "address", "show", "dev", net.bridge).stdout == ""


def test_the_metadata_address_answers_in_the_namespace(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.plug(server, [])
    guest = lab.guest(server)
    guest.dhcp()
    lab.listen(net.namespace, "169.254.169.254", 80)
    assert guest.connects("169.254.169.254", 80)
    assert not guest.connects("10.77.0.1", 80, 0.5)


def test_an_unfiltered_interface(lab):
    net = Net()
    free, other = net.instance(5, security=False), net.instance(6)
    guest, peer = lab.booted(free), lab.booted(other)
    assert peer.reaches("10.77.0.5")
    sh("ip", "-n", guest.ns, "address", "add", "10.77.0.7/24", "dev", "eth0")
    assert peer.reaches("10.77.0.7")


def test_plugging_twice_changes_nothing(lab):
    net = Net()
    server = net.instance(5)
    guest = lab.booted(server, [PING])
    before = sh("nft", "-s", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    pid = _dnsmasq(lab, net)
    for driver in (lab.driver, lab.fresh()):
        driver.plug(server, [PING])
    assert sh("nft", "-s", "list", "table", "bridge", f"nova_{lab.tag}").stdout == before
    assert _dnsmasq(lab, net) == pid
    assert guest.reaches("10.77.0.1")


def _dnsmasq(lab, net):
    with open(f"{dhcp.RUN}/nova-{lab.tag}/{net.id}/dnsmasq.pid") as file:
        return int(file.read())


def _alive(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read() != ""  # a zombie has none
    except OSError:
        return False


def test_a_vif_on_a_network_that_is_up_costs_one_process(lab, monkeypatch):
    net = Net()
    lab.driver.plug(net.instance(5), [])
    spawned = []
    run = commands.run
    monkeypatch.setattr(commands, "run", lambda argv, text=None: spawned.append(argv) or run(argv, text))
    lab.driver.plug(net.instance(6), [SSH])
    assert len(spawned) == 1


def test_unplug_leaves_nothing(lab):
    before = _traces()
    one, two = Net(), Net("10.78.0")
    servers = [one.instance(5), one.instance(6), instance([one.vif(7), two.vif(7)])]
    for server in servers:
        lab.driver.plug(server, [SSH])
    pids = [_dnsmasq(lab, net) for net in (one, two)]
    assert lab.tables()
    lab.driver.unplug(servers[2])
    assert netns.identity(two.namespace) is None
    assert netns.identity(one.namespace) is not None
    assert servers[2].uuid not in os.listdir(f"{dhcp.RUN}/nova-{lab.tag}/{one.id}/hosts")
    for server in servers:
        lab.driver.unplug(server)
        lab.driver.unplug(server)
    assert _traces() == before
    assert lab.tables() == []
    assert os.listdir(f"{CONF.state_path}/networks") == []
    assert not os.path.exists(f"{dhcp.RUN}/nova-{lab.tag}")
    assert [pid for pid in pids if _alive(pid)] == []


def _traces():
    links = {line.split(":")[1].strip().split("@")[0] for line in sh("ip", "-o", "link").stdout.splitlines()}
    return links, sh("ip", "netns", "list").stdout, sh("nft", "list", "tables").stdout


def test_many_guests_at_once(lab):
    before = _traces()
    nets = [Net(), Net(), Net("10.78.0")]
    servers = [net.instance(number) for net in nets for number in range(5, 13)]
    servers += [instance([net.vif(20 + number) for net in nets]) for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda server: lab.driver.plug(server, [SSH]), servers))
        table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
        assert all(vif.devname in table for server in servers for vif in server.network_info)
        list(pool.map(lab.driver.unplug, servers))
        # Some come while others go.
        list(pool.map(lambda server: (lab.driver.plug(server, []), lab.driver.unplug(server)), servers))
    assert _traces() == before


def test_a_restart_repairs_what_is_broken(lab):
    net = Net()
    server = net.instance(5)
    guest = lab.booted(server, [PING])
    peer = lab.booted(net.instance(6))
    others = [guest_.vif for guest_ in lab.guests]
    instances = [server, instance([others[1]])]
    instances[1].uuid = _uuid_of(lab, net, others[1])
    sh("nft", "delete", "table", "bridge", f"nova_{lab.tag}")
    os.kill(_dnsmasq(lab, net), signal.SIGKILL)
    sh("ip", "-n", net.namespace, "address", "flush", "dev", "gw")
    lab.fresh().start(instances)
    assert peer.reaches("10.77.0.5")
    assert not guest.pings("10.77.0.6")
    assert guest.reaches("10.77.0.1")
    assert guest.dhcp()["ip"] == "10.77.0.5"


def _uuid_of(lab, net, vif):
    driver = lab.fresh()
    return next(guest.uuid for guest in driver._records.guests(net.id) if guest.vifs[0].id == vif.id)


def test_a_restart_after_a_reboot_makes_all_again_with_the_rules(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.plug(server, [PING])
    pid = _dnsmasq(lab, net)
    # What a reboot takes: processes, devices, namespaces, tables and /run. The records stay.
    os.kill(pid, signal.SIGKILL)
    sh("ip", "link", "del", net.bridge)
    sh("ip", "netns", "del", net.namespace)
    for table in lab.tables():
        sh("nft", "delete", *table.split())
    sh("rm", "-r", f"{dhcp.RUN}/nova-{lab.tag}")
    wait(lambda: not any(line for line in _traces()[0] if line.startswith(("nvp", "nvu")) and net.id[:8] in line))
    lab.fresh().start([server])
    guest = lab.guest(server)
    assert guest.dhcp()["ip"] == "10.77.0.5"
    ping = netns.call(net.namespace, lambda: sh("busybox", "ping", "-c", "1", "-W", "1", "10.77.0.5", check=False))
    assert ping.returncode == 0


def test_a_restart_removes_what_belongs_to_nobody(lab):
    net, gone_net = Net(), Net("10.78.0")
    stays, goes = net.instance(5), net.instance(6)
    for server in (stays, goes, gone_net.instance(5)):
        lab.driver.plug(server, [])
    lab.fresh().start([stays])
    assert netns.identity(net.namespace) is not None
    assert netns.identity(gone_net.namespace) is None
    assert os.listdir(f"{dhcp.RUN}/nova-{lab.tag}/{net.id}/hosts") == [stays.uuid]
    assert goes.network_info[0].devname not in sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout


def test_a_dead_dhcp_server_is_started_again(lab, monkeypatch):
    monkeypatch.setattr("nova.network.linuxnet.WATCH_INTERVAL", 0.1)
    net = Net()
    driver = lab.fresh()
    driver.start([])
    driver.plug(net.instance(5), [])
    pid = _dnsmasq(lab, net)
    os.kill(pid, signal.SIGKILL)
    assert wait(lambda: _dnsmasq(lab, net) != pid and _alive(_dnsmasq(lab, net)))


def test_an_operators_bridge_is_used_and_kept(lab):
    net = Net()
    sh("ip", "link", "add", net.bridge, "type", "bridge")
    try:
        server = net.instance(5)
        guest = lab.booted(server)
        sh("ip", "link", "set", net.bridge, "up")
        assert guest.reaches("10.77.0.1", 20)
        lab.driver.unplug(server)
        assert os.path.exists(f"/sys/class/net/{net.bridge}")
        assert netns.identity(net.namespace) is None
    finally:
        sh("ip", "link", "del", net.bridge)


def test_hosts_joined_by_a_wire_have_each_their_own_gateway(lab):
    """The other host is a namespace with a gateway of the same address behind the bridge's interface."""
    wire, far = f"tw{lab.outside[2:]}", f"tf{lab.outside[2:]}"
    sh("ip", "netns", "add", far)
    sh("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", far)
    try:
        sh("ip", "-n", far, "link", "set", "eth0", "up")
        for address in ("10.77.0.1/24", "10.77.0.99/24"):
            sh("ip", "-n", far, "address", "add", address, "dev", "eth0")
        net = Net(bridge_interface=wire)
        server = net.instance(5)
        guest = lab.booted(server, [PING])
        assert guest.reaches("10.77.0.99")
        assert guest.reaches("10.77.0.1")
        gateway = sh("ip", "-n", net.namespace, "-o", "link", "show", "gw").stdout.split("link/ether ")[1].split()[0]
        assert gateway in guest.run("ip", "neigh", "show", "10.77.0.1").stdout
        ear = netns.call(far, _ear)
        guest.dhcp(tries=1)
        ear.settimeout(0.5)
        heard = []
        try:
            while True:
                heard.append(ear.recv(2000))
        except TimeoutError:
            ear.close()
        assert [one for one in heard if one[12:14] == b"\x08\x00" and one[34:38] == b"\0\x44\0\x43"] == []
        lab.driver.unplug(server)
        assert os.path.exists(f"/sys/class/net/{wire}")
    finally:
        sh("ip", "link", "del", wire)
        sh("ip", "netns", "del", far)
