"""Packets to and from floating IPs, from external clients and between guests."""

from __future__ import annotations

import pytest

from nova.objects.networks.network import FilterRule, RuleSet
from tests.integration.network.linuxnet_lab import Net, connects, needs_root, sh, wait

pytestmark = [needs_root, pytest.mark.root]

FLOATING, OTHER = "203.0.113.7", "203.0.113.8"
OPEN = [FilterRule()]


def rules(server, address, version=1):
    floating = {server.network_info[0].id: address} if address else {}
    return RuleSet(version=version, rules=OPEN, floating=floating)


def booted(lab, server, address, version=1):
    lab.driver.plug(server, rules(server, address, version))
    guest = lab.guest(server)
    guest.static()
    return guest


@pytest.fixture
def outside(lab):
    """Return a function that connects to a floating IP from behind the uplink and returns True on success."""
    for address in (FLOATING, OTHER):
        sh("ip", "-n", lab.outside, "route", "add", f"{address}/32", "dev", "eth0", "src", lab.beyond)

    def reaches(address, port=22):
        return sh("ip", "netns", "exec", lab.outside, "busybox", "nc", "-w", "2", address, str(port),
                  check=False, text="").stdout == "hello"

    return reaches


def test_floating_ip_is_used_for_both_directions(lab, outside):
    guest = booted(lab, Net().instance(5), FLOATING)
    inside, beyond = lab.listen(guest.ns, "10.77.0.5", 22), lab.listen(lab.outside, lab.beyond, 80)
    assert wait(lambda: outside(FLOATING))
    assert wait(lambda: inside.peers[-1] == lab.beyond)
    assert guest.connects(lab.beyond, 80)
    assert wait(lambda: beyond.peers == [FLOATING])


def test_floating_ip_is_added_to_and_removed_from_a_running_server(lab, outside):
    server = Net().instance(5)
    guest = booted(lab, server, None)
    lab.listen(guest.ns, "10.77.0.5", 22)
    beyond = lab.listen(lab.outside, lab.beyond, 80)
    assert not outside(FLOATING)
    lab.driver.refresh_rules(server.uuid, rules(server, FLOATING, 2))
    assert wait(lambda: outside(FLOATING))
    lab.driver.refresh_rules(server.uuid, rules(server, None, 1))  # a late message
    assert outside(FLOATING)
    lab.driver.refresh_rules(server.uuid, rules(server, None, 3))
    assert not outside(FLOATING)
    assert guest.connects(lab.beyond, 80)
    assert wait(lambda: beyond.peers == [lab.here])
    shown = sh("ip", "neigh", "show", "proxy", "dev", lab.uplink).stdout + sh("ip", "route", "show", FLOATING).stdout
    assert shown == ""


def test_security_rules_apply_to_floating_ips(lab, outside):
    server = Net().instance(5)
    lab.driver.plug(server, RuleSet(version=1, rules=[FilterRule(protocol="tcp", from_port=80, to_port=80)],
                                    floating={server.network_info[0].id: FLOATING}))
    guest = lab.guest(server)
    guest.static()
    for port in (22, 80):
        lab.listen(guest.ns, "10.77.0.5", port)
    assert wait(lambda: outside(FLOATING, 80))
    assert not outside(FLOATING, 22)


def test_servers_of_overlapping_networks_connect_by_floating_ips_only(lab, outside):
    here, there = booted(lab, Net().instance(5), FLOATING), booted(lab, Net().instance(5), OTHER)
    without = booted(lab, Net("10.79.0").instance(6), None)
    servers = [lab.listen(guest.ns, "10.77.0.5", 22) for guest in (here, there)]
    assert wait(lambda: outside(FLOATING) and outside(OTHER))
    assert here.connects(OTHER, 22)
    assert wait(lambda: servers[1].peers[-1] == FLOATING)
    assert without.connects(FLOATING, 22)
    assert not without.connects("10.77.0.5", 22, 0.5)
    assert here.connects(FLOATING, 22)  # its own floating IP


def test_floating_ip_survives_a_restart_and_is_removed_with_its_server(lab, outside):
    net = Net()
    server, stays = net.instance(5), net.instance(6)
    guest = booted(lab, server, FLOATING)
    booted(lab, stays, None)
    lab.listen(guest.ns, "10.77.0.5", 22)
    assert wait(lambda: outside(FLOATING))
    fresh = lab.fresh()
    fresh.start([server, stays])
    assert outside(FLOATING)
    fresh.unplug(server)
    assert not outside(FLOATING)
    lab.driver = fresh


def test_floating_ip_removed_during_downtime_is_removed_at_start(lab, outside):
    server = Net().instance(5)
    guest = booted(lab, server, FLOATING)
    lab.listen(guest.ns, "10.77.0.5", 22)
    assert wait(lambda: outside(FLOATING))
    fresh = lab.fresh()
    fresh.refresh_rules(server.uuid, rules(server, None, 2))
    fresh.start([server])
    lab.driver = fresh
    assert sh("ip", "neigh", "show", "proxy", "dev", lab.uplink).stdout == ""
    assert not outside(FLOATING)


def test_host_reaches_floating_ips(lab, outside):
    guest = booted(lab, Net().instance(5), FLOATING)
    lab.listen(guest.ns, "10.77.0.5", 22)
    assert wait(lambda: connects(FLOATING, 22))
