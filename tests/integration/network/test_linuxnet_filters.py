"""Syntax check of the generated packet filters by nft, without applying them."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova.network.linux import filters, guest_filters, state_files
from nova.objects.networks.network import FilterRule, GroupFilter, RuleSet
from tests.unit.network.test_filters import vif

needs_nft = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin"),
                               reason="needs nft and root")


def accepted(lines):
    """Return True if nft accepts the commands (without executing them)."""
    done = subprocess.run(["/usr/sbin/nft", "-c", "-f", "-"], input="\n".join(lines) + "\n", text=True,
                          capture_output=True, check=False)
    return done.returncode == 0 or done.stderr


ports = st.one_of(st.none(), st.integers(-1, 70000))
rules = st.lists(st.builds(
    FilterRule, protocol=st.sampled_from([None, "tcp", "udp", "icmp", "132", "any", "TCP", "nonsense"]),
    from_port=ports, to_port=ports,
    sources=st.lists(st.one_of(
        st.ip_addresses(v=4).flatmap(lambda a: st.integers(0, 32).map(lambda p: f"{a}/{p}")),
        st.ip_addresses(v=6).flatmap(lambda a: st.integers(0, 128).map(lambda p: f"{a}/{p}")),
        st.just("nonsense")), max_size=4)), max_size=6)


@needs_nft
@settings(max_examples=30, deadline=None)
@given(rules)
def test_nft_accepts_filters_for_arbitrary_rules(found):
    for one in (vif(), vif(v6={})):
        lines = guest_filters.guest("nova_unit", one, state_files.network_of_vif(one), RuleSet(rules=found, groups=[7]))
        group = GroupFilter(id=7, rules=[*found, FilterRule(group=7), FilterRule(protocol="tcp", group=8)],
                            members=["10.0.0.5", "fd00::5", "10.0.0.6"],
                            macs=["fa:16:3e:00:00:05", "fa:16:3e:00:00:05", "fa:16:3e:00:00:06"])
        lines += guest_filters.replace_group("nova_unit", group)
        assert accepted([*filters.base("nova_unit"), *lines]) is True


@needs_nft
def test_nft_accepts_all_tables():
    net = state_files.network_of_vif(vif(bridge_interface="eth9", v6={}))
    net.link = 3
    base = filters.base("nova_unit")
    for lines in (
        [*base, *guest_filters.remove("nova_unit", "tapaaaa-bb"), *filters.remove_port("nova_unit", "tapb")],
        [*base, *guest_filters.remove_groups("nova_unit", [7, 8])],
        [*base, *filters.wire("nova_unit", "eth9", net)], [*base, *filters.remove_wire("nova_unit", "eth9")],
        filters.host("nova_unit", [net], "eth0", ["ip daddr { 192.0.2.1 } tcp dport 22"], ["192.0.2.0/24"]),
        filters.host("nova_unit", [net], None),
        filters.namespace(), filters.remove_table("nova_unit"),
    ):
        assert accepted(lines) is True
