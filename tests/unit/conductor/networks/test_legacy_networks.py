"""Records of the legacy APIs: reserved addresses, owners of networks, default rules, names."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from nova import exception
from nova.conductor.endpoints.networks import (
    FixedIps,
    FloatingIpDns,
    Networks,
    SecurityGroupDefaultRules,
    SecurityGroups,
)
from nova.db.networks import fixed_ips
from nova.objects.base import new_uuid
from nova.objects.networks.network import DefaultRule, Domain, Entry, Network
from tests.unit.conductor.books import Books, ctx, server


def _network(core: Books, cidr: str = "10.0.0.0/24", **changes: object) -> Network:
    return Networks(core).create(ctx(), Network(
        **{"uuid": "", "label": cidr, "cidr": cidr, "gateway": "", "bridge": "", **changes}))  # type: ignore[arg-type]


def _take(core: Books, network: Network, wanted: str | None = None) -> str:
    taken = core.db.write(lambda connection: fixed_ips.take(connection, network, new_uuid(), new_uuid(), wanted))
    return taken.addresses[0]


def _at_once(*calls: Callable[[], object]) -> list[Exception]:
    """Run the calls concurrently and return the exceptions raised."""
    errors: list[Exception] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors


def test_fixed_ips_end_at_dhcp_end(core: Books) -> None:
    network = _network(core, dhcp_start="10.0.0.10", dhcp_end="10.0.0.11")
    assert [_take(core, network) for _number in range(2)] == ["10.0.0.10", "10.0.0.11"]
    with pytest.raises(exception.NoMoreFixedIps):
        _take(core, network)
    with pytest.raises(exception.FixedIpInvalid):
        _take(core, network, "10.0.0.12")


def test_fixed_ip_is_reserved_before_its_first_allocation(core: Books) -> None:
    """An address at the end of a large network has no row yet."""
    network, addresses = _network(core, "10.0.0.0/16"), FixedIps(core)
    for address in ("10.0.0.2", "10.0.200.1"):
        addresses.reserve(ctx(), address, True)
        assert addresses.show(ctx(), address).reserved
        with pytest.raises(exception.FixedIpInUse):
            _take(core, network, address)
    assert _take(core, network) == "10.0.0.3"
    addresses.reserve(ctx(), "10.0.200.1", False)
    assert _take(core, network, "10.0.200.1") == "10.0.200.1"


def test_ipv6_fixed_ip_cannot_be_reserved(core: Books) -> None:
    _network(core, cidr_v6="fd00::/64")
    assert FixedIps(core).show(ctx(), "fd00::5").cidr == "fd00::/64"
    with pytest.raises(exception.InvalidInput, match="reserve the related IPv4 address"):
        FixedIps(core).reserve(ctx(), "fd00::5", True)


def test_concurrent_associations_of_the_last_network_succeed_once(core: Books) -> None:
    _network(core)
    errors = _at_once(*(lambda project=project: Networks(core).associate(ctx(), project)  # type: ignore[misc]
                        for project in ("p1", "p2")))
    assert [type(error) for error in errors] == [exception.NoMoreNetworks]


def test_network_association_with_a_duplicate_label_is_refused(core: Books) -> None:
    mine = _network(core, label="lan", project_id="p1")
    shared = _network(core, "10.1.0.0/24", label="lan")
    with pytest.raises(exception.NetworkDuplicate):
        Networks(core).associate(ctx(), "p1", shared.uuid)
    with pytest.raises(exception.NetworkDuplicate):
        Networks(core).disassociate(ctx(), mine.uuid, project=True, host=False)


def test_network_used_by_another_project_cannot_be_associated(core: Books) -> None:
    network, other = _network(core), server(core, project="p2")
    core.db.write(lambda connection: fixed_ips.take(connection, network, other.uuid, new_uuid()))
    with pytest.raises(exception.NetworkInUse):
        Networks(core).associate(ctx(), "p1", network.uuid)
    with pytest.raises(exception.NoMoreNetworks):
        Networks(core).associate(ctx(), "p1")
    assert Networks(core).associate(ctx(), "p2").uuid == network.uuid


def test_concurrent_identical_default_rules_are_created_once(core: Books) -> None:
    rules = SecurityGroupDefaultRules(core)
    errors = _at_once(*[lambda: rules.create(ctx(), DefaultRule(protocol="tcp", from_port=22, to_port=22))] * 3)
    assert [type(error) for error in errors] == [exception.SecurityGroupDefaultRuleExists] * 2
    [rule] = rules.index(ctx())
    [default] = SecurityGroups(core).index(ctx("newcomer"), "newcomer")
    assert [(each.protocol, each.from_port, each.cidr) for each in default.rules] == [("tcp", 22, None)]
    rules.delete(ctx(), rule.id)
    assert rules.index(ctx()) == []


def test_dns_entry_created_during_domain_deletion_is_removed(core: Books) -> None:
    names = FloatingIpDns(core)
    for _number in range(5):
        names.put_domain(ctx(), Domain(domain="example.org", scope="public"))
        errors = _at_once(
            lambda: names.delete_domain(ctx(), "example.org"),
            lambda: names.put_entry(ctx(), Entry(domain="example.org", name="www", address="192.0.2.1"), "p1"))
        assert {type(error) for error in errors} <= {exception.DnsDomainNotFound}
        names.put_domain(ctx(), Domain(domain="example.org", scope="public"))
        with pytest.raises(exception.DnsEntryNotFound):
            names.entry(ctx(), "example.org", "www")
        names.delete_domain(ctx(), "example.org")


def test_dns_names_are_case_insensitive(core: Books) -> None:
    names = FloatingIpDns(core)
    names.put_domain(ctx(), Domain(domain="Example.ORG", scope="public"))
    names.put_entry(ctx(), Entry(domain="EXAMPLE.org", name="WWW", address="192.0.2.1"), "p1")
    assert names.entry(ctx(), "example.org", "Www", "p2").address == "192.0.2.1"
    assert [each.name for each in names.entries_of(ctx(), "example.org", "192.0.2.1")] == ["www"]
    assert [each.domain for each in names.index(ctx())] == ["example.org"]
