"""The configuration of DHCP servers."""

from __future__ import annotations

import pytest

import nova.conf
from nova.network.linux import dhcp, state_files
from nova.network.linux.state_files import Guest, HostNet, StateFiles
from nova.objects.networks.network import FilterRule, RuleSet
from tests.unit.network.test_filters import vif


@pytest.mark.parametrize(("hostname", "label"), [
    ("web-1", "web-1"), ("web.example.com", "web"), ("", None), ("-x", None), ("a,b\nc", None), ("x" * 64, None),
    ("web\n", None)])
def test_dhcp_host_names_are_dns_labels(hostname, label):
    assert dhcp.label_of(hostname) == label


@pytest.mark.parametrize(("label", "line"), [
    ("web", "fa:16:3e:00:00:01,10.0.0.5,web\n"), (None, "fa:16:3e:00:00:01,10.0.0.5\n")])
def test_dhcp_reservation_contains_mac_address_and_label(label, line):
    assert dhcp.host_line(vif(), label) == line


def test_dns_queries_are_forwarded_to_network_or_host_servers(tmp_path):
    conf = tmp_path / "resolv.conf"
    conf.write_text("search x\nnameserver 127.0.0.53\nnameserver 9.9.9.9\nnameserver ::1\nnameserver bad\n")
    assert dhcp.upstream([], str(conf)) == ["9.9.9.9"]
    assert dhcp.upstream(["1.1.1.1"], str(conf)) == ["1.1.1.1"]
    assert dhcp.upstream([], str(tmp_path / "missing")) == []


def test_dnsmasq_configuration_contains_range_options_and_domain():
    nova.conf.register()
    net = HostNet(id="n1", bridge="br", cidr="10.0.0.0/24", gateway="10.0.0.1", dns=["9.9.9.9"], mtu=1400)
    lines = dhcp.DhcpServer(net, "tag").configuration().splitlines()
    assert "dhcp-range=10.0.0.0,static,255.255.255.0,86400s" in lines
    assert "dhcp-option=option:dns-server,9.9.9.9" in lines
    assert "dhcp-option-force=option:mtu,1400" in lines
    assert "domain=novalocal" in lines
    assert "host-record=metadata,metadata.novalocal,169.254.169.254" in lines


def test_network_state_files_are_persistent(tmp_path):
    state = StateFiles(str(tmp_path))
    net = state_files.network_of_vif(vif())
    guest = Guest(uuid="u1", hostname="h", vifs=[vif()], ingress=RuleSet(version=3, rules=[FilterRule(protocol="tcp")]))
    state.save_network(net)
    state.save_guest(net.id, guest)
    again = StateFiles(str(tmp_path))
    assert again.networks() == [net.id]
    assert again.network(net.id) == net
    assert list(again.guests(net.id)) == [guest]
    assert again.networks_of("u1") == [net.id]
    again.delete_guest(net.id, "u1")
    again.delete_guest(net.id, "u1")
    assert state.guest_ids(net.id) == []
    again.delete_network(net.id)
    assert state.networks() == []


def test_damaged_state_file_is_a_guest_without_interfaces(tmp_path):
    state = StateFiles(str(tmp_path))
    state.save_guest("n1", Guest(uuid="u1"))
    (tmp_path / "networks" / "n1" / "instances" / "u1.json").write_text("{")
    assert [guest.uuid for guest in state.guests("n1")] == ["u1"]
