"""Rules of packet filters."""

from __future__ import annotations

import ipaddress

import pytest

import nova.conf
from nova.network.linux import driver as linuxnet
from nova.network.linux import guest_filters, plumbing, state_files
from nova.objects.networks.network import VIF, FilterRule, FixedIp


def vif(**more):
    """Return an interface; ``v6`` are the values of its optional IPv6 address."""
    v6 = more.pop("v6", None)
    subnet = {name: more.pop(name) for name in ("address", "gateway", "cidr", "dns") if name in more}
    fixed = {"address": "10.0.0.5", "prefix": 24, "gateway": "10.0.0.1", "cidr": "10.0.0.0/24", **subnet}
    fixed_ips = [FixedIp(**fixed)]
    if v6 is not None:
        fixed_ips.append(FixedIp(**{"address": "fd00::5", "version": 6, "prefix": 64, "gateway": "fd00::1",
                                    "cidr": "fd00::/64", "mode": "slaac", **v6}))
    values = {"id": "v", "network_id": "aaaaaaaa-bbbb", "label": "l", "mac": "FA:16:3e:00:00:01",
              "fixed_ips": fixed_ips, "bridge": "br1", "devname": "tapaaaa-bb"}
    return VIF(**{**values, **more})


@pytest.mark.parametrize(("rule", "text"), [
    (FilterRule(), "accept"),
    (FilterRule(protocol="tcp", from_port=22, to_port=22), "tcp dport 22 accept"),
    (FilterRule(protocol="udp", from_port=1, to_port=65535), "udp dport 1-65535 accept"),
    (FilterRule(protocol="tcp"), "ip protocol tcp accept"),
    (FilterRule(protocol="tcp", from_port=-1, to_port=-1), "ip protocol tcp accept"),
    (FilterRule(protocol="icmp", from_port=-1, to_port=-1), "ip protocol icmp accept"),
    (FilterRule(protocol="icmp", from_port=8, to_port=0), "icmp type 8 icmp code 0 accept"),
    (FilterRule(protocol="icmp", from_port=8, to_port=-1), "icmp type 8 accept"),
    (FilterRule(protocol="132"), "ip protocol 132 accept"),
    (FilterRule(sources=["0.0.0.0/0"]), "accept"),
    (FilterRule(sources=["10.0.0.0/8", "10.1.0.0/16"]), "ip saddr { 10.0.0.0/8 } accept"),
    (FilterRule(sources=["10.0.0.5/24", "::/0"]), "ip saddr { 10.0.0.0/24 } accept"),
])
def test_ipv4_rules_are_translated_to_nftables(rule, text):
    assert guest_filters.accepted([rule], 4) == [text]


@pytest.mark.parametrize(("rule", "text"), [
    (FilterRule(), "accept"),
    (FilterRule(protocol="tcp", from_port=22, to_port=22), "tcp dport 22 accept"),
    (FilterRule(protocol="tcp"), "meta l4proto tcp accept"),
    (FilterRule(protocol="icmp"), "meta l4proto ipv6-icmp accept"),
    (FilterRule(protocol="icmp", from_port=128, to_port=0), "icmpv6 type 128 icmpv6 code 0 accept"),
    (FilterRule(protocol="132"), "meta l4proto 132 accept"),
    (FilterRule(sources=["::/0"]), "accept"),
    (FilterRule(sources=["fd00::/64", "fd00::5", "10.0.0.0/8"]), "ip6 saddr { fd00::/64 } accept"),
])
def test_ipv6_rules_are_translated_to_nftables(rule, text):
    assert guest_filters.accepted([rule], 6) == [text]


def test_ipv4_rules_do_not_apply_to_ipv6_and_vice_versa():
    assert guest_filters.accepted([FilterRule(sources=["0.0.0.0/0"])], 6) == []
    assert guest_filters.accepted([FilterRule(sources=["::/0"])], 4) == []


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("rule", [
    FilterRule(sources=["nonsense"]), FilterRule(protocol="tcp; flush ruleset"),
    FilterRule(sources=["fd00::%a }\nflush ruleset\n#/64"]),
    FilterRule(protocol="tcp", from_port=10, to_port=5), FilterRule(protocol="tcp", from_port=1, to_port=70000),
    FilterRule(protocol="300"), FilterRule(protocol="icmp", from_port=300),
])
def test_invalid_rules_open_no_ports(rule, version):
    assert guest_filters.accepted([rule], version) == []


def test_duplicate_filter_rules_are_merged():
    assert guest_filters.accepted([FilterRule(), FilterRule(sources=["0.0.0.0/0"])], 4) == ["accept"]


@pytest.mark.parametrize("more", [
    {"devname": 'x"; flush'}, {"devname": "much-too-long-a-name"}, {"mac": "fa:16:3e:00:00"}, {"mac": "accept"},
    {"address": "10.0.0.300"}, {"bridge": "br 1"}, {"cidr": "10.0.0.1/24"}, {"gateway": None}, {"gateway": ""},
    {"network_id": "../etc"}, {"dns": ["nobody"]}, {"bridge_interface": "eth0 up"},
    {"v6": {"address": "fd00::x"}}, {"v6": {"cidr": "fd00::1/64"}}, {"v6": {"gateway": None}}, {"v6": {"cidr": ""}},
])
def test_invalid_interface_values_are_refused(more):
    with pytest.raises(ValueError):
        state_files.network_of_vif(vif(**more))


def test_network_is_derived_from_its_vif():
    net = state_files.network_of_vif(vif(cidr="", vlan=7, bridge_interface="eth1"))
    assert (net.cidr, net.prefix, net.namespace, net.wire_port) == ("10.0.0.0/24", 24, "nova-aaaaaaaa-bbb",
                                                                    "nvlaaaaaaaabbb")
    assert max(map(len, (net.bridge_port, net.uplink_port, net.wire_port))) <= 15
    assert state_files.network_of_vif(vif(bridge_interface="eth1")).wire_port == "eth1"


def test_link_addresses_are_consecutive_and_unique():
    nova.conf.register()
    host, inside = plumbing.link_addresses(5)
    assert ipaddress.ip_address(inside) == ipaddress.ip_address(host) + 1
    number = plumbing.free_link("00000005-0000", set(), [])
    assert number == 5
    assert plumbing.free_link("00000005-0000", {5}, [("x", plumbing.link_addresses(6)[0])]) == 7


def test_filter_check_interval_is_at_most_five_seconds():
    assert 0 < linuxnet.WATCH_INTERVAL <= 5
