"""Networks on a host, with namespaces as guests."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import struct
import uuid

import pytest

from nova import exception
from nova.conf import CONF
from nova.network.linux import commands, dhcp, netns
from nova.objects.networks.network import FilterRule
from tests.integration.network.linuxnet_lab import PING, SSH, Net, connects, ear, instance, needs_root, rules, sh, wait
from tests.integration.processes import free_port

pytestmark = [needs_root, pytest.mark.root]


def test_dhcp_offers_the_reserved_address_routes_and_mtu(lab):
    net = Net()
    server = net.instance(5, hostname="web")
    lab.driver.plug(server, rules())
    offer = lab.guest(server).dhcp()
    assert offer["ip"] == "10.77.0.5"
    assert offer["mask"] == "24"
    assert offer["hostname"] == "web"
    assert offer["mtu"] == "1450"
    assert offer["dns"] == "10.77.0.1"
    assert offer["domain"] == "novalocal"
    assert offer["staticroutes"].split() == ["169.254.169.254/32", "10.77.0.1", "0.0.0.0/0", "10.77.0.1"]


def test_unknown_mac_address_gets_no_dhcp_address(lab):
    net = Net()
    known, stranger = net.instance(5), net.instance(6, security=False)
    lab.driver.plug(known, rules())
    guest = lab.guest(stranger)
    assert guest.dhcp(tries=2) is None


def test_reused_address_is_offered_to_its_next_owner_at_once(lab):
    net = Net()
    first, second, stays = net.instance(5), net.instance(5), net.instance(9)
    lab.driver.plug(stays, rules())
    lab.driver.plug(first, rules())
    assert lab.guest(first).dhcp()["ip"] == "10.77.0.5"
    lab.guests[-1].remove()
    lab.driver.unplug(first)
    lab.driver.plug(second, rules())
    assert lab.guest(second).dhcp()["ip"] == "10.77.0.5"


def test_dhcp_replies_have_complete_checksums(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.plug(server, rules())
    guest = lab.guest(server)
    sock = netns.call(guest.ns, ear)
    assert guest.dhcp()
    answers = []
    sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            found = sock.recv(2000)
            if found[12:14] == b"\x08\x00" and found[34:38] == b"\0\x43\0\x44":
                answers.append(found)
    sock.close()
    assert answers
    assert [_udp_checksum(one) for one in answers] == [0xFFFF] * len(answers)


def _udp_checksum(found):
    """Return the checksum over an IPv4 UDP frame with its pseudo header; 0xffff if the frame's checksum is correct."""
    length = struct.unpack("!H", found[38:40])[0]
    data = found[26:34] + b"\0\x11" + found[38:40] + found[34:34 + length] + b"\0" * (length % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_networks_with_the_same_addresses_are_isolated(lab):
    one, two = Net(), Net()
    guest, peer = lab.booted(one.instance(5), [FilterRule()]), lab.booted(two.instance(6), [FilterRule()])
    near = lab.booted(one.instance(7), [FilterRule()])
    assert near.reaches("10.77.0.5")
    assert not guest.pings("10.77.0.6")
    assert peer.reaches("10.77.0.1")


def test_networks_cannot_reach_each_other_through_the_host(lab):
    one, two = Net(), Net("10.78.0")
    guest, peer = lab.booted(one.instance(5), [FilterRule()]), lab.booted(two.instance(6), [FilterRule()])
    lab.listen(peer.ns, "0.0.0.0", 22)
    assert not guest.pings("10.78.0.6")
    assert not guest.pings("10.78.0.1")
    assert not guest.connects("10.78.0.6", 22, 0.5)
    # A guest cannot reach the link address of another namespace either.
    links = [line.split()[3].split("/")[0] for line in sh("ip", "-n", two.namespace, "-o", "-4", "address", "show",
                                                          "dev", "out").stdout.splitlines()]
    assert links
    assert not guest.pings(links[0])


def test_guests_reach_external_addresses_with_source_nat(lab):
    net = Net()
    guest = lab.booted(net.instance(5))
    beyond = lab.listen(lab.outside, lab.beyond, 8080)
    assert guest.connects(lab.beyond, 8080)
    assert wait(lambda: beyond.peers == [lab.here])
    assert guest.reaches(lab.beyond)


@pytest.fixture(name="other_address")
def other_address_fixture():
    """Add another address to the host and return it."""
    sh("ip", "address", "add", "198.18.77.1/32", "dev", "lo")
    yield "198.18.77.1"
    sh("ip", "address", "del", "198.18.77.1/32", "dev", "lo")


@pytest.fixture(name="option")
def option_fixture():
    """Return a function that sets options of [network] for a test."""
    names = []

    def set_option(name, value):
        names.append(name)
        CONF.set_override(name, value, group="network")
    yield set_option
    for name in names:
        CONF.clear_override(name, group="network")


def test_guests_cannot_reach_addresses_of_the_host(lab, other_address):
    net = Net()
    guest = lab.booted(net.instance(5))
    lab.listen(None, "0.0.0.0", 8082)
    assert guest.reaches(lab.beyond)
    for address in (lab.here, other_address):
        assert not guest.connects(address, 8082, 0.5)
        assert not guest.pings(address)
        with _udp(address, 8082) as sock:
            netns.call(guest.ns, lambda address=address: _send(address, 8082))
            with pytest.raises(TimeoutError):
                sock.recv(100)
    # A guest cannot reach the host through the bridge with the host's MAC address either.
    sh("ip", "-n", guest.ns, "route", "add", f"{other_address}/32", "dev", "eth0")
    assert not guest.pings(other_address)
    assert "lladdr" not in guest.run("ip", "neigh", "show", other_address).stdout


def test_host_services_option_opens_ports_of_the_host(lab, option, other_address):
    opened, closed, datagrams = free_port(), free_port(), free_port()
    option("host_services", [f"tcp/{opened}", "icmp", f"udp/{datagrams}@{other_address}"])
    guest = lab.booted(Net().instance(5))
    for port in (opened, closed):
        lab.listen(None, "0.0.0.0", port)
    assert guest.connects(lab.here, opened)
    assert guest.reaches(lab.here)
    assert not guest.connects(lab.here, closed, 0.5)
    assert not guest.connects(other_address, opened, 0.5)
    assert not guest.pings(other_address)
    with _udp(other_address, datagrams) as sock:
        netns.call(guest.ns, lambda: _send(other_address, datagrams))
        assert sock.recv(100) == b"frame"


def test_guests_reach_only_port_53_of_name_servers_on_the_host(lab, other_address):
    server = Net().instance(5)
    server.network_info[0].fixed_ips[0].dns = [other_address]
    guest = lab.booted(server)
    lab.listen(None, other_address, 53)
    lab.listen(None, other_address, 8086)
    assert guest.connects(other_address, 53)
    assert not guest.connects(other_address, 8086, 0.5)


def test_unreachable_option_blocks_networks_behind_the_uplink(lab, option):
    guest = lab.booted(Net().instance(5))
    assert guest.reaches(lab.beyond)
    option("unreachable", [f"{lab.beyond}/31"])
    other = lab.booted(Net().instance(5))
    assert not other.pings(lab.beyond)
    assert other.reaches("10.77.0.1")


@pytest.mark.parametrize(("name", "value"), [
    ("host_services", "tcp/65536"), ("host_services", "tcp/1@300.0.0.1"), ("unreachable", "everything")])
def test_invalid_network_option_is_named_in_the_error(lab, option, name, value):
    option(name, [value])
    with pytest.raises(exception.NetworkSetupError, match=name):
        lab.driver.plug(Net().instance(5), rules())


def test_guests_cannot_send_to_the_vxlan_port(lab, option):
    option("host_services", ["udp/4789", "udp/4790"])
    guest = lab.booted(Net().instance(5))
    assert guest.reaches(lab.beyond)
    for place, address in ((None, lab.here), (lab.outside, lab.beyond)):
        for port, arrives in ((4790, True), (4789, False)):
            sock = netns.call(place, lambda address=address, port=port: _udp(address, port)) if place else _udp(
                address, port)
            netns.call(guest.ns, lambda address=address, port=port: _send(address, port))
            try:
                assert (sock.recv(100) == b"frame") is arrives
            except TimeoutError:
                assert not arrives
            sock.close()


def _udp(address, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(0.5)
    sock.bind((address, port))
    return sock


def _send(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"frame", (address, port))


def test_guests_cannot_reach_other_networks_of_the_host(lab):
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
        sock = netns.call(inner, ear)
        assert not guest.connects("198.18.78.2", 8080, 0.5)
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                found = sock.recv(2000)
                assert found[12:14] != b"\x08\x00" or not found[26:].startswith(b"\xa9\xfe")
        sock.close()
    finally:
        sh("ip", "link", "del", port, check=False)
        sh("ip", "netns", "del", inner)


def test_bridged_packets_are_not_tracked_by_the_host(lab):
    try:
        with open("/proc/sys/net/bridge/bridge-nf-call-iptables") as file:
            if file.read().strip() != "1":
                pytest.skip("bridged packets do not reach the host's IP filters here")
    except FileNotFoundError:
        pytest.skip("no br_netfilter")
    net = Net(f"10.{uuid.uuid4().int % 200 + 20}.{uuid.uuid4().int % 250}")  # other tests leave conntrack entries
    guest, _peer = lab.booted(net.instance(5)), lab.booted(net.instance(6), [PING])
    lab.listen(lab.outside, lab.beyond, 8080)
    assert guest.connects(lab.beyond, 8080)  # proves that connections are tracked
    assert guest.reaches(f"{net.prefix}.6")
    with open("/proc/net/nf_conntrack") as file:
        tracked = file.read()
    assert f"dst={lab.beyond}" in tracked
    assert f"src={net.prefix}.5" not in tracked


def test_guests_without_nat_cannot_reach_external_addresses(lab):
    CONF.set_override("nat", False, group="network")
    try:
        guest = lab.booted(Net().instance(5))
        lab.listen(lab.outside, lab.beyond, 8080)
        assert not guest.connects(lab.beyond, 8080, 0.5)
        assert guest.reaches("10.77.0.1")
    finally:
        CONF.clear_override("nat", group="network")


def test_external_clients_cannot_reach_guests(lab):
    net = Net()
    guest = lab.booted(net.instance(5), [FilterRule()])
    lab.listen(guest.ns, "0.0.0.0", 22)
    sh("ip", "-n", lab.outside, "route", "add", "10.77.0.0/24", "via", lab.here)
    assert not netns.call(lab.outside, lambda: connects("10.77.0.5", 22, 0.5))
    assert "10.77.0" not in sh("ip", "route", "show", "table", "all").stdout
    assert sh("ip", "-o", "address", "show", "dev", net.bridge).stdout == ""


def test_metadata_address_is_reachable_on_port_80_only(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.plug(server, rules())
    guest = lab.guest(server)
    guest.dhcp()
    lab.listen(net.namespace, "169.254.169.254", 80)
    assert guest.connects("169.254.169.254", 80)
    assert not guest.connects("10.77.0.1", 80, 0.5)


def test_plugging_twice_changes_nothing(lab):
    net = Net()
    server = net.instance(5)
    guest = lab.booted(server, [PING])
    before = sh("nft", "-s", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    pid = _dnsmasq(lab, net)
    for driver in (lab.driver, lab.fresh()):
        driver.plug(server, rules(PING))
    assert sh("nft", "-s", "list", "table", "bridge", f"nova_{lab.tag}").stdout == before
    assert _dnsmasq(lab, net) == pid
    assert guest.reaches("10.77.0.1")


def _dnsmasq(lab, net):
    with open(f"{dhcp.RUN}/nova-{lab.tag}/{net.id}/dnsmasq.pid") as file:
        return int(file.read())


def _alive(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read() != ""  # empty for a zombie
    except OSError:
        return False


def test_vif_on_an_active_network_is_plugged_with_one_command(lab, monkeypatch):
    net = Net()
    lab.driver.plug(net.instance(5), rules())
    spawned = []
    run = commands.run
    monkeypatch.setattr(commands, "run", lambda argv, text=None: spawned.append(argv) or run(argv, text))
    lab.driver.plug(net.instance(6), rules(SSH))
    assert len(spawned) == 1


def test_unplug_removes_all_resources_of_the_networks(lab):
    one, two = Net(), Net("10.78.0")
    servers = [one.instance(5), one.instance(6), instance([one.vif(7), two.vif(7)])]
    for server in servers:
        lab.driver.plug(server, rules(SSH))
    pids = [_dnsmasq(lab, net) for net in (one, two)]
    assert len(_traces(lab, one, two)) > 8, _traces(lab, one, two)
    lab.driver.unplug(servers[2])
    assert netns.identity(two.namespace) is None
    assert netns.identity(one.namespace) is not None
    assert servers[2].uuid not in os.listdir(f"{dhcp.RUN}/nova-{lab.tag}/{one.id}/hosts")
    for server in servers:
        lab.driver.unplug(server)
        lab.driver.unplug(server)
    assert _traces(lab, one, two) == []
    assert os.listdir(f"{CONF.state_path}/networks") == []
    assert not os.path.exists(f"{dhcp.RUN}/nova-{lab.tag}")
    assert [pid for pid in pids if _alive(pid)] == []


def _links():
    return {line.split(":")[1].strip().split("@")[0] for line in sh("ip", "-o", "link").stdout.splitlines()}


def _traces(lab, *nets):
    """Return the links, namespaces and nftables tables that exist for the networks."""
    names = [*_links(), *(line.split()[0] for line in sh("ip", "netns", "list").stdout.splitlines())]
    return [*(name for name in names for net in nets if net.id[:8] in name), *lab.tables()]


def test_concurrent_plugs_and_unplugs_leave_nothing(lab):
    nets = [Net(), Net(), Net("10.78.0")]
    servers = [net.instance(number) for net in nets for number in range(5, 13)]
    servers += [instance([net.vif(20 + number) for net in nets]) for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda server: lab.driver.plug(server, rules(SSH)), servers))
        table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
        assert all(vif.devname in table for server in servers for vif in server.network_info)
        list(pool.map(lab.driver.unplug, servers))
        # Plug and unplug concurrently.
        list(pool.map(lambda server: (lab.driver.plug(server, rules()), lab.driver.unplug(server)), servers))
    assert _traces(lab, *nets) == []


def test_driver_start_repairs_filters_dhcp_and_gateway(lab):
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
    return next(guest.uuid for guest in driver._state.guests(net.id) if guest.vifs[0].id == vif.id)


def test_driver_start_after_a_reboot_recreates_networks_and_rules(lab):
    net = Net()
    server = net.instance(5)
    lab.driver.plug(server, rules(PING))
    pid = _dnsmasq(lab, net)
    # A reboot removes processes, devices, namespaces, tables and /run. The records stay.
    os.kill(pid, signal.SIGKILL)
    sh("ip", "link", "del", net.bridge)
    sh("ip", "netns", "del", net.namespace)
    for table in lab.tables():
        sh("nft", "delete", *table.split())
    sh("rm", "-r", f"{dhcp.RUN}/nova-{lab.tag}")
    wait(lambda: not any(line for line in _links() if line.startswith(("nvp", "nvu")) and net.id[:8] in line))
    lab.fresh().start([server])
    guest = lab.guest(server)
    assert guest.dhcp()["ip"] == "10.77.0.5"
    ping = netns.call(net.namespace, lambda: sh("busybox", "ping", "-c", "1", "-W", "1", "10.77.0.5", check=False))
    assert ping.returncode == 0


def test_driver_start_keeps_networks_of_unknown_guests(lab):
    """The reconciliation decides on such guests; a single call with the UUID removes their networks."""
    net, other = Net(), Net("10.78.0")
    stays, orphan = net.instance(5), instance([net.vif(6), other.vif(6)])
    lab.driver.plug(stays, rules())
    lab.driver.plug(orphan, rules(PING))
    guest, peer = lab.guest(stays), lab.guest(orphan)
    guest.static()
    peer.static()
    sh("nft", "delete", "table", "bridge", f"nova_{lab.tag}")
    driver = lab.fresh()
    driver.start([stays])
    assert driver.guests() == {stays.uuid, orphan.uuid}
    assert guest.reaches("10.77.0.6")
    assert not peer.pings("10.77.0.5")
    driver.unplug_guest(orphan.uuid)
    driver.unplug_guest(orphan.uuid)
    assert driver.guests() == {stays.uuid}
    assert netns.identity(net.namespace) is not None
    assert netns.identity(other.namespace) is None
    assert os.listdir(f"{dhcp.RUN}/nova-{lab.tag}/{net.id}/hosts") == [stays.uuid]
    table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    assert [vif.devname for vif in orphan.network_info if vif.devname in table] == []


def test_interfaces_are_plugged_and_unplugged_individually(lab):
    net, other = Net(), Net("10.78.0")
    server = net.instance(5)
    guest = lab.booted(server)
    more = [net.vif(6), other.vif(6)]
    for vif in (*more, more[0]):
        lab.driver.plug_vif(server, vif, rules(PING, version=3))
        server.network_info = [*(each for each in server.network_info if each is not vif), vif]
    second, third = lab.guest(server, 1), lab.guest(server, 2)
    assert {second.dhcp()["ip"], third.dhcp()["ip"]} == {"10.77.0.6", "10.78.0.6"}
    assert guest.dhcp()["ip"] == "10.77.0.5"
    for vif in more:
        lab.driver.unplug_vif(server, vif)
        lab.driver.unplug_vif(server, vif)
    table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    assert [vif.devname in table for vif in (guest.vif, *more)] == [True, False, False]
    assert netns.identity(other.namespace) is None
    assert guest.dhcp()["ip"] == "10.77.0.5"
    # Neither a late refresh nor a restart restores the interfaces.
    server.network_info = [guest.vif]
    lab.driver.refresh_rules(server.uuid, rules(PING, version=4))
    lab.fresh().start([server])
    assert lab.driver.guests() == {server.uuid}
    lab.driver.unplug_vif(server, guest.vif)
    assert lab.driver.guests() == set()
    assert lab.tables() == []


def test_plug_removes_interfaces_that_the_guest_no_longer_has(lab):
    net, other = Net(), Net("10.78.0")
    server = instance([net.vif(5), net.vif(6), other.vif(7)])
    lab.driver.plug(server, rules())
    gone = server.network_info[1:]
    server.network_info = server.network_info[:1]
    lab.driver.plug(server, rules())
    table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    assert [vif.devname for vif in gone if vif.devname in table] == []
    assert netns.identity(other.namespace) is None
    assert lab.guest(server).dhcp()["ip"] == "10.77.0.5"


def test_dead_dhcp_server_is_restarted(lab, monkeypatch):
    monkeypatch.setattr("nova.network.linux.driver.WATCH_INTERVAL", 0.1)
    net = Net()
    driver = lab.fresh()
    driver.start([])
    driver.plug(net.instance(5), rules())
    pid = _dnsmasq(lab, net)
    os.kill(pid, signal.SIGKILL)
    assert wait(lambda: _dnsmasq(lab, net) != pid and _alive(_dnsmasq(lab, net)))


def test_existing_bridge_is_used_and_preserved(lab):
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


def test_hosts_on_a_shared_physical_network_use_their_own_gateway(lab):
    """A namespace behind the bridge's interface acts as the other host, with the same gateway address."""
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
        sock = netns.call(far, ear)
        guest.dhcp(tries=1)
        sock.settimeout(0.5)
        heard = []
        try:
            while True:
                heard.append(sock.recv(2000))
        except TimeoutError:
            sock.close()
        assert [one for one in heard if one[12:14] == b"\x08\x00" and one[34:38] == b"\0\x44\0\x43"] == []
        lab.driver.unplug(server)
        assert os.path.exists(f"/sys/class/net/{wire}")
    finally:
        sh("ip", "link", "del", wire)
        sh("ip", "netns", "del", far)
