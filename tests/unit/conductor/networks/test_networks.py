"""Embedded networks: defaults, validation, and protection of networks in use."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import exception
from nova.conductor.endpoints.networks import Networks
from nova.db.networks import fixed_ips, networks
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.unit.conductor.books import Books, ctx


def _network(cidr: str = "10.0.0.0/24", **changes: object) -> Network:
    return Network(**{"uuid": "", "label": cidr, "cidr": cidr, "gateway": "", "bridge": "", **changes})  # type: ignore[arg-type]


def test_network_defaults_are_filled_in(core: Books) -> None:
    made = Networks(core).create(ctx(), _network())
    assert (made.gateway, made.mtu, made.dhcp_start, made.project_id) == ("10.0.0.1", 1500, None, None)
    assert made.bridge == "br-" + made.uuid.replace("-", "")[:11]
    assert len(made.bridge) <= 15
    assert made.created_at is not None
    assert Networks(core).get(ctx(), made.uuid) == made


def test_network_values_are_stored(core: Books) -> None:
    uuid = new_uuid()
    made = Networks(core).create(ctx(), _network(
        uuid=uuid, label="lan", gateway="10.0.0.254", dns=["192.0.2.53", "2001:db8::53"], dhcp_start="10.0.0.100",
        mtu=9000, vlan=7, bridge_interface="eth1", project_id="p1"))
    assert (made.uuid, made.label, made.gateway, made.dns, made.dhcp_start, made.mtu, made.vlan,
            made.bridge_interface, made.project_id) == (
        uuid, "lan", "10.0.0.254", ["192.0.2.53", "2001:db8::53"], "10.0.0.100", 9000, 7, "eth1", "p1")


@pytest.mark.parametrize(("changes", "field"), [
    ({"cidr": "10.0.0.0"}, "cidr"), ({"cidr": "10.0.0.1/24"}, "cidr"), ({"cidr": "fd00::/64"}, "cidr"),
    ({"cidr": "10.0.0.0/7"}, "cidr"), ({"cidr": "10.0.0.0/31"}, "cidr"), ({"cidr": "nonsense"}, "cidr"),
    ({"cidr": "127.1.0.0/16"}, "cidr"), ({"cidr": "169.254.169.0/24"}, "cidr"), ({"cidr": "224.0.0.0/8"}, "cidr"),
    ({"cidr": "255.0.0.0/24"}, "cidr"), ({"gateway": "10.0.1.1"}, "gateway"), ({"gateway": "10.0.0.255"}, "gateway"),
    ({"gateway": "x"}, "gateway"), ({"dhcp_start": "10.0.0.0"}, "dhcp_start"), ({"vlan": 4095}, "vlan"),
    ({"vlan": 0}, "vlan"), ({"vlan": 5}, "bridge_interface"), ({"mtu": 100}, "mtu"), ({"dns": ["x"]}, "dns"),
    ({"label": ""}, "label"), ({"bridge_interface": "x" * 16}, "bridge_interface"),
    ({"bridge_interface": "a b"}, "bridge_interface"), ({"vni": -1}, "vni"), ({"vni": 2**24}, "vni"),
    ({"vni": 5, "bridge_interface": "eth1"}, "vni"), ({"gateway_v6": "fd00::1"}, "gateway_v6"),
    ({"cidr_v6": "10.0.0.0/24"}, "cidr_v6"), ({"cidr_v6": "fd00::1/64"}, "cidr_v6"), ({"cidr_v6": "x"}, "cidr_v6"),
    ({"cidr_v6": "fd00::/48"}, "cidr_v6"), ({"cidr_v6": "fd00::/80"}, "cidr_v6"), ({"cidr_v6": "fe80::/64"}, "cidr_v6"),
    ({"cidr_v6": "ff02::/64"}, "cidr_v6"), ({"cidr_v6": "::/64"}, "cidr_v6"),
    ({"cidr_v6": "fd00::/64", "ipv6_mode": "none"}, "ipv6_mode"), ({"cidr_v6": "fd00::/64", "mtu": 1000}, "mtu"),
    ({"cidr_v6": "fd00::/64", "gateway_v6": "fd01::1"}, "gateway_v6"),
    ({"cidr_v6": "fd00::/64", "gateway_v6": "fd00::"}, "gateway_v6")])
def test_invalid_network_values_are_refused_with_the_field_name(core: Books, changes: dict[str, object],
                                                                field: str) -> None:
    with pytest.raises(exception.InvalidInput, match=field):
        Networks(core).create(ctx(), _network(**{"label": "lan", **changes}))
    assert Networks(core).index(ctx()) == []


@given(st.text(max_size=20))
def test_parse_cidr_accepts_or_refuses_any_text(text: str) -> None:
    try:
        found = networks.parse_cidr(text)
    except exception.InvalidInput:
        return
    assert 8 <= found.prefixlen <= 30


def test_overlapping_networks_are_refused(core: Books) -> None:
    endpoint = Networks(core)
    endpoint.create(ctx(), _network("10.1.0.0/16"))
    for cidr in ("10.1.0.0/16", "10.1.2.0/24", "10.0.0.0/8"):
        with pytest.raises(exception.NetworkDuplicate):
            endpoint.create(ctx(), _network(cidr))
    endpoint.create(ctx(), _network("10.2.0.0/16", label="lan"))
    with pytest.raises(exception.NetworkDuplicate):
        endpoint.create(ctx(), _network("10.3.0.0/16", label="lan"))
    endpoint.create(ctx(), _network("10.3.0.0/16", label="lan", project_id="p1"))


def test_vlan_is_unique_per_bridge_interface(core: Books) -> None:
    endpoint = Networks(core)
    endpoint.create(ctx(), _network("10.1.0.0/16", vlan=5, bridge_interface="eth1"))
    with pytest.raises(exception.InvalidInput, match="vlan 5 is in use"):
        endpoint.create(ctx(), _network("10.2.0.0/16", vlan=5, bridge_interface="eth1"))
    endpoint.create(ctx(), _network("10.2.0.0/16", vlan=5, bridge_interface="eth2"))


def test_vni_is_unique_and_can_be_allocated(core: Books) -> None:
    endpoint = Networks(core)
    endpoint.create(ctx(), _network("10.1.0.0/16", vni=1))
    with pytest.raises(exception.InvalidInput, match="vni 1 is in use"):
        endpoint.create(ctx(), _network("10.2.0.0/16", vni=1))
    assert endpoint.create(ctx(), _network("10.2.0.0/16", vni=0)).vni == 2
    assert endpoint.create(ctx(), _network("10.3.0.0/16")).vni is None


def test_ipv6_subnets_get_a_gateway_and_must_not_overlap(core: Books) -> None:
    endpoint = Networks(core)
    made = endpoint.create(ctx(), _network("10.1.0.0/16", cidr_v6="fd00:1::/64"))
    assert (made.cidr_v6, made.gateway_v6, made.ipv6_mode) == ("fd00:1::/64", "fd00:1::1", "slaac")
    with pytest.raises(exception.NetworkDuplicate):
        endpoint.create(ctx(), _network("10.2.0.0/16", cidr_v6="fd00:1::/64"))
    made = endpoint.create(ctx(), _network("10.2.0.0/16", cidr_v6="fd00:2:0:0::/80", gateway_v6="FD00:2::99",
                                           ipv6_mode="dhcpv6-stateful"))
    assert (made.cidr_v6, made.gateway_v6) == ("fd00:2::/80", "fd00:2::99")


def test_concurrent_identical_networks_are_created_once(core: Books) -> None:
    errors: list[Exception] = []

    def create(number: int) -> None:
        try:
            Networks(core).create(ctx(), _network(label=f"n{number}"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in errors] == [exception.NetworkDuplicate] * 4
    assert len(Networks(core).index(ctx())) == 1


def test_project_sees_shared_and_own_networks(core: Books) -> None:
    endpoint = Networks(core)
    shared = endpoint.create(ctx(), _network("10.1.0.0/16"))
    mine = endpoint.create(ctx(), _network("10.2.0.0/16", project_id="p1"))
    other = endpoint.create(ctx(), _network("10.3.0.0/16", project_id="p2"))
    assert [one.uuid for one in endpoint.index(ctx())] == [shared.uuid, mine.uuid, other.uuid]
    assert [one.uuid for one in endpoint.index(ctx(), "p1")] == [shared.uuid, mine.uuid]
    assert [one.uuid for one in core.db.read(lambda connection: networks.index(connection, "p1"))] == [
        shared.uuid, mine.uuid]
    assert endpoint.get(ctx(), shared.uuid, "p1").uuid == shared.uuid
    for uuid in (other.uuid, new_uuid()):
        with pytest.raises(exception.NetworkNotFound):
            endpoint.get(ctx(), uuid, "p1")


def test_network_in_use_cannot_be_deleted(core: Books) -> None:
    endpoint = Networks(core)
    made = endpoint.create(ctx(), _network())
    owner = new_uuid()
    core.db.write(lambda connection: fixed_ips.take(connection, made, owner, new_uuid()))
    with pytest.raises(exception.NetworkInUse):
        endpoint.delete(ctx(), made.uuid)
    core.db.write(lambda connection: fixed_ips.release(connection, owner))
    endpoint.delete(ctx(), made.uuid)
    with pytest.raises(exception.NetworkNotFound):
        endpoint.delete(ctx(), made.uuid)
    again = endpoint.create(ctx(), _network())
    taken = core.db.write(lambda connection: fixed_ips.take(connection, again, owner, new_uuid()))
    assert taken.addresses == ["10.0.0.2"]
