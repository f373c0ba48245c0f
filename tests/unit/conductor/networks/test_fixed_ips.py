"""Fixed IPs: exclusive allocation, and allocation and release of all addresses of an interface together."""

from __future__ import annotations

import hashlib
import ipaddress
import threading

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from oslo_db import exception as db_exception

from nova import exception
from nova.conductor.endpoints.networks import Networks
from nova.conductor.resources import addresses
from nova.db.networks import fixed_ips
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network, NetworkRequest, slaac_address
from tests.unit.conductor.books import Books, ctx, server


def _network(core: Books, cidr: str = "10.0.0.0/24", **changes: object) -> Network:
    return Networks(core).create(ctx(), Network(
        **{"uuid": "", "label": cidr, "cidr": cidr, "gateway": "", "bridge": "", **changes}))  # type: ignore[arg-type]


def _take(core: Books, network: Network, wanted: str | None = None, owner: str = "",
          vif: str = "") -> fixed_ips.Taken:
    return core.db.write(lambda connection: fixed_ips.take(
        connection, network, owner or new_uuid(), vif or new_uuid(), wanted))


@pytest.mark.parametrize(("changes", "first"), [
    ({}, "10.0.0.2"), ({"gateway": "10.0.0.2"}, "10.0.0.1"), ({"dhcp_start": "10.0.0.50"}, "10.0.0.50")])
def test_first_fixed_ip_of_a_network(core: Books, changes: dict[str, object], first: str) -> None:
    assert _take(core, _network(core, **changes)).addresses == [first]


def test_each_fixed_ip_is_allocated_once_until_none_is_left(core: Books) -> None:
    made = _network(core, "10.0.0.0/29")
    assert [_take(core, made).addresses[0] for _ in range(5)] == [
        str(host) for host in ipaddress.ip_network("10.0.0.0/29").hosts()][1:]
    with pytest.raises(exception.NoMoreFixedIps):
        _take(core, made)


@pytest.mark.parametrize("cidr_v6", [None, "fd00::/64"])
def test_pool_of_fixed_ips_is_extended_when_exhausted(
        core: Books, cidr_v6: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_ips, "POOL", 4)
    made = _network(core, "10.0.0.0/28", cidr_v6=cidr_v6, gateway="10.0.0.7")
    _take(core, made, "10.0.0.10")
    taken = [_take(core, made) for _ in range(12)]
    assert sorted(int(one.addresses[0].rsplit(".", 1)[1]) for one in taken) == [1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 14]
    assert len({one.mac for one in taken}) == 12
    assert {len(one.addresses) for one in taken} == {2 if cidr_v6 else 1}
    with pytest.raises(exception.NoMoreFixedIps):
        _take(core, made)


def test_released_fixed_ip_is_reused_after_all_unused_ones(core: Books) -> None:
    made, owners = _network(core, "10.0.0.0/29"), [new_uuid() for _ in range(4)]
    first = [_take(core, made, owner=owner) for owner in owners]
    for owner in (owners[2], owners[0]):
        core.db.write(lambda connection, owner=owner: fixed_ips.release(connection, owner))
    assert _take(core, made).addresses == ["10.0.0.6"], "addresses never allocated before come first"
    assert [_take(core, made), _take(core, made)] == [first[2], first[0]], "the MAC address is not reused"


@pytest.mark.parametrize(("cidr_v6", "mode"), [
    (None, "slaac"), ("fd00::/64", "slaac"), ("fd00::/64", "dhcpv6-stateful")])
def test_allocation_of_an_interface_takes_two_statements(core: Books, cidr_v6: str | None, mode: str) -> None:
    made = _network(core, cidr_v6=cidr_v6, ipv6_mode=mode)
    for _time in range(2):
        core.statements()
        owner = new_uuid()
        _take(core, made, owner=owner)
        assert len(core.statements()) == 2
        core.db.write(lambda connection, owner=owner: fixed_ips.release(connection, owner))


def test_slaac_address_is_derived_from_the_mac_address(core: Books) -> None:
    made = _network(core, cidr_v6="fd00:1::/64")
    mac, (_v4, v6) = _take(core, made)
    assert v6 == slaac_address(ipaddress.IPv6Network("fd00:1::/64"), mac)
    assert slaac_address(ipaddress.IPv6Network("2001:db8::/64"), "fa:16:3e:01:02:03") == "2001:db8::f816:3eff:fe01:203"


def test_dhcpv6_address_has_the_host_number_of_the_ipv4_address(core: Books) -> None:
    made = _network(core, cidr_v6="fd00:1::/64", ipv6_mode="dhcpv6-stateful", gateway="10.0.0.254")
    assert _take(core, made).addresses[0] == "10.0.0.1"  # fd00:1::1 is the gateway
    assert _take(core, made).addresses == ["10.0.0.2", "fd00:1::2"]
    assert _take(core, made, "10.0.0.77").addresses == ["10.0.0.77", "fd00:1::4d"]


def test_dhcpv6_addresses_are_unique_in_a_subnet_smaller_than_ipv4(core: Books) -> None:
    made = _network(core, "10.0.0.0/16", cidr_v6="fd00:1::/120", ipv6_mode="dhcpv6-stateful", dhcp_start="10.0.9.0")
    found = [_take(core, made).addresses[1] for _ in range(20)]
    assert len(set(found)) == 20
    assert all(ipaddress.ip_address(address) in ipaddress.ip_network("fd00:1::/120") for address in found)


def test_requested_fixed_ip_is_allocated_once(core: Books) -> None:
    made = _network(core, cidr_v6="fd00:1::/64", ipv6_mode="dhcpv6-stateful")
    owner = new_uuid()
    assert _take(core, made, "fd00:1:0::5", owner=owner).addresses == ["10.0.0.2", "fd00:1::5"]
    assert _take(core, made, "10.0.0.9").addresses == ["10.0.0.9", "fd00:1::9"]
    for address in ("fd00:1::5", "fd00:1:0:0:0::5", "10.0.0.9", "10.0.0.2"):
        with pytest.raises(exception.FixedIpInUse):
            _take(core, made, address)
    # The interface that gets the corresponding IPv4 address gets a different IPv6 address.
    _v4, v6 = _take(core, made, "10.0.0.5").addresses
    assert v6 != "fd00:1::5"
    core.db.write(lambda connection: fixed_ips.release(connection, owner))
    assert _take(core, made, "fd00:1::5").addresses[1] == "fd00:1::5"


@pytest.mark.parametrize("address", [
    "10.0.0.1", "10.0.0.0", "10.0.0.255", "10.0.1.5", "x", "", "fd00:1::1", "fd00:1::", "fd00:2::5", "::10.0.0.5"])
def test_invalid_requested_fixed_ip_is_refused(core: Books, address: str) -> None:
    made = _network(core, cidr_v6="fd00:1::/64", ipv6_mode="dhcpv6-stateful")
    with pytest.raises(exception.FixedIpInvalid):
        fixed_ips.check(made, address)
    with pytest.raises(exception.FixedIpInvalid):
        fixed_ips.check(_network(core, "10.9.0.0/24", cidr_v6="fd00:9::/64"), "fd00:9::5")  # SLAAC


@pytest.mark.parametrize(("address", "mine"), [
    ("10.0.0.99", False), ("10.0.0.2", False), ("10.0.0.100", True), ("10.0.0.110", False), ("10.0.0.254", True)])
def test_fixed_ip_outside_the_pool_is_reserved_for_operators(core: Books, address: str, mine: bool) -> None:
    made = _network(core, dhcp_start="10.0.0.100", dns=["10.0.0.110", "9.9.9.9"])
    if mine:
        assert _take(core, made, address).addresses == [address]
    else:
        with pytest.raises(exception.FixedIpInvalid):
            _take(core, made, address)


def test_dns_server_address_is_never_allocated(core: Books) -> None:
    made = _network(core, "10.0.0.0/29", dns=["10.0.0.3"])
    assert [_take(core, made).addresses[0] for _ in range(4)] == ["10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"]


# --- MAC addresses ---------------------------------------------------------------------------
def test_mac_addresses_are_unique_across_networks(core: Books) -> None:
    """The ranges are chosen so that rows of the second network would get the addresses of the first."""
    starts: dict[int, str] = {}
    while True:
        one = new_uuid()
        start = int.from_bytes(hashlib.sha256(one.encode()).digest()[:3], "big")
        # The first network's rows are numbers 1 to 13, the second's 14 to 26.
        other = starts.get(start + 13)
        if other is not None:
            break
        starts[start] = one
    first, second = _network(core, "10.1.0.0/28", uuid=other), _network(core, "10.2.0.0/28", uuid=one)
    macs = [_take(core, network).mac for network in (first, second) for _number in range(13)]
    assert len(set(macs)) == 26
    assert all(mac.startswith("fa:16:3e:") for mac in macs)
    # A released address has the same MAC address when it is allocated again.
    core.db.write(lambda connection: connection.execute(sa.update(fixed_ips.IPS).values(instance_uuid=None)))
    assert {_take(core, network).mac for network in (first, second) for _number in range(13)} == set(macs)


def test_duplicate_mac_address_is_refused_by_the_database(core: Books) -> None:
    mac = _take(core, _network(core)).mac
    address = _take(core, _network(core, "10.1.0.0/24")).addresses[0]

    def give(found: str) -> None:
        core.db.write(lambda connection: connection.execute(
            sa.update(fixed_ips.IPS).where(fixed_ips.IPS.c.address == address).values(mac=found)))

    give("fa:16:3e:ff:ff:ff")
    with pytest.raises(db_exception.DBDuplicateEntry):
        give(mac)


def test_release_of_an_interface_keeps_addresses_of_other_interfaces(core: Books) -> None:
    made, owner, vifs = _network(core, cidr_v6="fd00:1::/64"), new_uuid(), [new_uuid(), new_uuid()]
    first, second = (_take(core, made, owner=owner, vif=vif) for vif in vifs)
    core.db.write(lambda connection: fixed_ips.release(connection, owner, vifs[0]))

    def owners(taken: fixed_ips.Taken) -> set[str | None]:
        return {core.db.read(lambda connection, address=address: fixed_ips.owner_of(connection, made.uuid, address))
                for address in taken.addresses}

    assert (owners(first), owners(second)) == ({None}, {owner})


def test_concurrent_allocations_get_different_fixed_ips(core: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_ips, "POOL", 8)
    made = _network(core, cidr_v6="fd00:1::/64")
    taken: list[fixed_ips.Taken] = []
    threads = [threading.Thread(target=lambda: taken.extend(_take(core, made) for _ in range(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 40
    for values in ({one.mac for one in taken}, *({one.addresses[number] for one in taken} for number in (0, 1))):
        assert len(values) == 40


@hypothesis.settings(max_examples=30, deadline=None,
                     suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.lists(st.none() | st.integers(0, 16), max_size=25), st.sampled_from(["slaac", "dhcpv6-stateful"]))
def test_random_fixed_ip_requests_never_share_an_address(core: Books, wanted: list[int | None], mode: str) -> None:
    owner = new_uuid()
    made = _network(core, "10.0.0.0/28", cidr_v6="fd00:1::/64", ipv6_mode=mode)
    held: list[str] = []
    for number in wanted:
        address = None if number is None else str(ipaddress.ip_network(made.cidr).network_address + number)
        try:
            held += _take(core, made, address, owner).addresses
        except (exception.FixedIpInvalid, exception.FixedIpInUse, exception.NoMoreFixedIps):
            continue
    assert len(set(held)) == len(held)
    core.db.write(lambda connection: fixed_ips.release(connection, owner))
    Networks(core).delete(ctx(), made.uuid)


# --- the allocator -------------------------------------------------------------------------------
def test_requested_fixed_ip_in_use_fails_validation(core: Books) -> None:
    made = _network(core)
    allocator = addresses.EmbeddedAllocator(core.db)
    wanted = [NetworkRequest(network_id=made.uuid, fixed_ip="10.0.0.9")]
    assert allocator.validate(ctx(), "p", wanted) == wanted
    _take(core, made, "10.0.0.9")
    with pytest.raises(exception.FixedIpInUse):
        allocator.validate(ctx(), "p", wanted)


def test_interfaces_are_allocated_and_released_individually(core: Books) -> None:
    made = _network(core, cidr_v6="fd00:1::/64", dns=["192.0.2.53", "2001:db8::53"], vni=7)
    one = server(core, "h1")
    first, second = (core.db.write(lambda connection: addresses.allocate(
        connection, one, [NetworkRequest(network_id=made.uuid, tag="t")]))[0] for _ in range(2))
    assert [(fixed.version, fixed.mode, fixed.gateway, fixed.dns) for fixed in first.fixed_ips] == [
        (4, "dhcp", "10.0.0.1", ["192.0.2.53"]), (6, "slaac", "fd00:1::1", ["2001:db8::53"])]
    assert (first.vni, first.tag, first.dns) == (7, "t", ["192.0.2.53", "2001:db8::53"])
    core.db.write(lambda connection: addresses.release(connection, one.uuid, [first.id]))
    owner = core.db.read(lambda connection: fixed_ips.owner_of(connection, made.uuid, second.addresses(4)[0]))
    assert owner == one.uuid
    core.db.write(lambda connection: addresses.release(connection, one.uuid))
    Networks(core).delete(ctx(), made.uuid)
