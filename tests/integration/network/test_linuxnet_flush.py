"""Flushed packet filters of a host, as after a restart of nftables, with namespaces as guests."""

from __future__ import annotations

import contextlib
import logging
import socket

import pytest

from nova.network.linux import netns
from nova.objects.networks.network import FilterRule
from tests.integration.network.linuxnet_lab import (
    PING,
    SSH,
    Net,
    ear,
    frame,
    instance,
    needs_root,
    rules,
    sh,
    udp_packet,
    wait,
)

pytestmark = [needs_root, pytest.mark.root]


@pytest.fixture(name="watched")
def watched_fixture(lab, monkeypatch):
    """Return a lab whose driver checks its filters every 0.1 s."""
    monkeypatch.setattr("nova.network.linux.driver.WATCH_INTERVAL", 0.1)
    lab.driver.start([])
    return lab


def flush(lab):
    """Flush the tables of this lab only, since this machine may have others."""
    for table in lab.tables():
        sh("nft", "delete", *table.split())


def gated(device):
    return "bpf" in sh("tc", "filter", "show", "dev", device, "egress", check=False).stdout


def wait_for_guards(lab, *nets):
    """Wait until all devices have egress guards."""
    devices = [guest.vif.devname for guest in lab.guests]
    devices += [f"{kind}{net.id.replace('-', '')[:11]}" for net in nets for kind in ("nvp", "nvu")]
    assert wait(lambda: all(map(gated, devices)), 20), [device for device in devices if not gated(device)]


def _heard(sock):
    """Return all packets until none arrives for a while."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(sock.recv(2000))
    sock.close()
    return found


def test_flushed_filters_are_restored(watched, caplog, monkeypatch):
    lab, net = watched, Net()
    counted = []
    monkeypatch.setattr("nova.telemetry.metrics.FILTERS_RESTORED.inc", lambda: counted.append("restored"))
    server = net.instance(5)
    guest, peer = lab.booted(server, [SSH]), lab.booted(net.instance(6))
    lab.listen(guest.ns, "0.0.0.0", 22)
    lab.listen(guest.ns, "0.0.0.0", 23)
    before = sh("nft", "-s", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    with caplog.at_level(logging.WARNING):
        flush(lab)
        assert wait(lambda: "filters of guests are restored" in caplog.text, 20)
    assert counted == ["restored"]
    assert peer.connects("10.77.0.5", 22)
    assert not peer.connects("10.77.0.5", 23, 0.5)
    assert guest.reaches(lab.beyond)
    after = sh("nft", "-s", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    # Except the mark of guests whose connections must be learned again.
    assert len(after.splitlines()) >= len(before.splitlines())
    # Filters of an unplugged guest are not restored.
    lab.driver.unplug(server)
    caplog.clear()
    flush(lab)
    assert wait(lambda: "filters of guests are restored" in caplog.text, 20)
    table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    assert peer.vif.devname in table
    assert guest.vif.devname not in table


def test_new_guest_after_a_flush_does_not_hide_missing_filters(lab):
    """Only the devices of the new guest are a change of the service; other missing filters are an external change."""
    net = Net()
    guest = lab.booted(net.instance(5), [SSH])
    lab.listen(guest.ns, "0.0.0.0", 22)
    lab.listen(guest.ns, "0.0.0.0", 23)
    flush(lab)
    peer = lab.booted(net.instance(6))
    assert peer.connects("10.77.0.5", 22)
    assert not peer.connects("10.77.0.5", 23, 0.5)


def test_connection_survives_a_flush(watched, caplog):
    """The client's guest only receives on the connection."""
    lab, net = watched, Net()
    guest, peer = lab.booted(net.instance(5), [SSH]), lab.booted(net.instance(6))
    server = netns.call(guest.ns, lambda: socket.create_server(("10.77.0.5", 22)))
    client = netns.call(peer.ns, lambda: socket.create_connection(("10.77.0.5", 22), 5))
    taken, _address = server.accept()
    flush(lab)
    assert wait(lambda: "filters of guests are restored" in caplog.text, 20)
    for sock in (taken, client):
        sock.settimeout(20)
    # The client's guest has no rules and has not sent anything since the flush.
    taken.sendall(b"answer")
    assert client.recv(100) == b"answer"
    client.sendall(b"more")
    assert taken.recv(100) == b"more"
    for sock in (client, taken, server):
        sock.close()


def test_flush_without_a_running_service_blocks_all_traffic(watched):
    lab, net = watched, Net()
    one, two, free = net.instance(5), net.instance(6), net.instance(7, security=False)
    guest, peer, heard = lab.booted(one, [FilterRule()]), lab.booted(two, [FilterRule()]), lab.booted(free)
    lab.listen(None, lab.here, 8083)
    assert guest.reaches("10.77.0.6")
    assert guest.reaches("10.77.0.1")
    assert guest.reaches(lab.beyond)
    wait_for_guards(lab, net)
    lab.driver.stop()
    flush(lab)
    assert not guest.pings("10.77.0.6")
    assert not guest.pings("10.77.0.1")
    assert not guest.pings(lab.beyond)
    assert not guest.connects(lab.here, 8083, 0.5)
    assert not guest.connects("198.18.77.9", 8083, 0.5)
    # Frames with a forged source address are blocked, too.
    sock = netns.call(heard.ns, ear)
    forged = frame("fa:16:3e:00:00:99", "ff:ff:ff:ff:ff:ff", b"\x08\x00", b"forged" * 10)
    guest.raw(forged)
    assert forged not in _heard(sock)
    # The next start of the service restores the rules.
    lab.fresh().start([one, two, free])
    assert guest.reaches("10.77.0.6")
    assert guest.reaches("10.77.0.1")
    assert guest.reaches(lab.beyond)
    assert peer.reaches("10.77.0.5")


def test_anti_spoofing_on_a_physical_network_works_without_filters(watched):
    """The physical interface has no egress guard because the host uses it, too; the guest's port has one."""
    lab = watched
    wire, far = f"tw{lab.outside[2:]}", f"tf{lab.outside[2:]}"
    sh("ip", "netns", "add", far)
    sh("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", far)
    try:
        sh("ip", "-n", far, "link", "set", "eth0", "up")
        net = Net(bridge_interface=wire, v6="fd00:77")
        guest = lab.booted(net.instance(5))
        # The guard passes everything that a guest sends when it starts.
        assert wait(lambda: gated(guest.vif.devname), 20)
        assert guest.dhcp()["ip"] == "10.77.0.5"
        assert guest.addresses_v6() == [guest.vif.addresses(6)[0]]
        assert guest.reaches("10.77.0.1")
        assert guest.reaches("fd00:77::1")
        lab.driver.stop()
        flush(lab)
        mac, all_ = guest.vif.mac, "ff:ff:ff:ff:ff:ff"
        six = b"\x60\0\0\0\0\x08\x11\x40"
        forged = [frame("fa:16:3e:00:00:99", all_, b"\x08\x00", udp_packet("10.77.0.5", 9, 9)),
                  frame(mac, all_, b"\x08\x00", udp_packet("10.77.0.1", 9, 9)),
                  frame(mac, all_, b"\x08\x06", _arp(mac, "10.77.0.1")),
                  frame(mac, all_, b"\x08\x06", _arp("fa:16:3e:00:00:99", "10.77.0.5")),
                  frame(mac, all_, b"\x81\x00", b"\0\5\x08\0" + udp_packet("10.77.0.5", 9, 9)),
                  frame(mac, all_, b"\x86\xdd", six + socket.inet_pton(socket.AF_INET6, "fd00:77::99") + bytes(24)),
                  frame(mac, all_, b"\x88\xb5", bytes(46))]
        fine = [frame(mac, all_, b"\x08\x00", udp_packet("10.77.0.5", 9, 9)),
                frame(mac, all_, b"\x08\x06", _arp(mac, "10.77.0.5")),
                frame(mac, all_, b"\x86\xdd",
                      six + socket.inet_pton(socket.AF_INET6, guest.vif.addresses(6)[0]) + bytes(24))]
        sock = netns.call(far, ear)
        for one in (*forged, *fine):
            guest.raw(one)
        heard = _heard(sock)
        assert [one in heard for one in fine] == [True] * 3
        bodies = [one[14:] for one in heard if one not in fine]
        assert not [number for number, one in enumerate(forged) if one in heard or one[18:] in bodies]
    finally:
        sh("ip", "link", "del", wire)
        sh("ip", "netns", "del", far)


def _arp(mac, address):
    return b"\0\1\x08\0\6\4\0\1" + bytes.fromhex(mac.replace(":", "")) + socket.inet_aton(address) + bytes(28)


def test_foreign_nftables_changes_are_ignored(watched, caplog):
    lab, net = watched, Net()
    lab.booted(net.instance(5), [SSH])
    name = f"lab_{lab.tag}"
    try:
        with caplog.at_level(logging.WARNING):
            for command in (f"add table ip {name}", f"add chain ip {name} forwarding", f"add table bridge {name}"):
                sh("nft", *command.split())
            lab.driver._filters.verify()
        assert "filters" not in caplog.text
    finally:
        for family in ("ip", "bridge"):
            sh("nft", "delete", "table", family, name, check=False)


def test_changed_chain_is_restored(watched, caplog):
    lab, net = watched, Net()
    guest, peer = lab.booted(net.instance(5)), lab.booted(net.instance(6))
    lab.listen(guest.ns, "0.0.0.0", 22)
    chain = f"received_{guest.vif.devname.replace('-', '_')}"
    sh("nft", "flush", "chain", "bridge", f"nova_{lab.tag}", chain)
    assert wait(lambda: "filters of guests are restored" in caplog.text, 20)
    assert chain in caplog.text
    assert not peer.connects("10.77.0.5", 22, 0.5)
    assert guest.reaches("10.77.0.1")


def test_port_that_is_not_plugged_is_blocked(lab):
    net = Net()
    guest, away = lab.booted(net.instance(5), [FilterRule()]), net.instance(6)
    stranger = lab.guest(away)
    stranger.static()
    assert not stranger.pings("10.77.0.5")
    assert not guest.pings("10.77.0.6")
    assert not stranger.pings("10.77.0.1")
    sock = netns.call(stranger.ns, ear)
    guest.pings("10.77.0.9")
    assert not [one for one in _heard(sock) if one[6:12] == bytes.fromhex(guest.vif.mac.replace(":", ""))]
    lab.driver.plug(away, rules(PING))
    assert guest.reaches("10.77.0.6")


def test_interfaces_on_several_networks_have_egress_guards(watched):
    lab, one, two = watched, Net(), Net("10.78.0", v6="fd00:78")
    server = instance([one.vif(5), two.vif(5)])
    lab.driver.plug(server, rules(PING))
    for number in range(2):
        lab.guest(server, number)
    wait_for_guards(lab, one, two)
