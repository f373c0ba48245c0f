"""Publication of security group changes to hosts: recipients, contents and cost."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from nova.conductor.endpoints.networks import Networks, SecurityGroups
from nova.conductor.feeds import feed
from nova.db import tables
from nova.db.networks import fixed_ips, security_filters, security_groups
from nova.db.servers import server_migrations
from nova.objects.base import new_uuid, utcnow
from nova.objects.networks.network import FilterRule, GroupFilter, Network, RuleSet, SecurityGroup, SecurityGroupRule
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration
from tests.unit.conductor.books import Books, ctx, server


@pytest.fixture
def groups(core: Books) -> SecurityGroups:
    return SecurityGroups(core)


@pytest.fixture
def network(core: Books) -> Network:
    return Networks(core).create(ctx(), Network(uuid="", label="lan", cidr="10.0.0.0/20", gateway="", bridge=""))


def _rule(groups: SecurityGroups, group: SecurityGroup, **values: object) -> SecurityGroupRule:
    return groups.add_rule(ctx(), SecurityGroupRule(parent_group_id=group.id, **values))  # type: ignore[arg-type]


def _member(core: Books, network: Network, *groups: SecurityGroup, host: str | None = "h1") -> tuple[Instance, str]:
    """Add a server to the groups, publish the change, and return the server and its address."""
    one = server(core, host, security_groups=[group.name for group in groups])

    def place(connection: sa.Connection) -> tuple[str, set[str]]:
        security_groups.add_members(connection, [group.id for group in groups], [one.uuid])
        taken = fixed_ips.take(connection, network, one.uuid, new_uuid())
        return taken.addresses[0], security_filters.moved(connection, one.uuid)

    address, changed = core.db.write(place)
    core.filters.touch(changed)
    return one, address


def test_changed_security_group_rule_is_sent_to_hosts_of_members(groups: SecurityGroups, core: Books,
                                                                 network: Network) -> None:
    web, app = groups.create(ctx(), "web", ""), groups.create(ctx(), "app", "")
    _front, address = _member(core, network, web, host="h1")
    _member(core, network, app, host="h2")
    _member(core, network, web, host=None)
    made = _rule(groups, app, protocol="tcp", from_port=1, to_port=9, group_id=web.id)
    [(host, told)] = core.told().items()
    assert host == "h2"
    by_id = {each.id: each for each in told}
    assert by_id[app.id].rules == [FilterRule(protocol="tcp", from_port=1, to_port=9, group=web.id)]
    assert address in by_id[web.id].members, "members of the remote group are missing"
    _rule(groups, web, protocol="icmp")
    assert core.told() == {"h1": [GroupFilter(id=web.id, rules_version=_version(core, web), rules=[
        FilterRule(protocol="icmp", sources=["0.0.0.0/0"])])]}
    groups.delete_rule(ctx(), made.id)
    assert core.told() == {"h2": [GroupFilter(id=app.id, rules_version=_version(core, app))]}


def test_ipv6_zone_in_a_stored_cidr_is_not_sent_to_hosts(groups: SecurityGroups, core: Books, network: Network) -> None:
    web = groups.create(ctx(), "web", "")
    _member(core, network, web, host="h1")
    core.db.write(lambda connection: security_groups.add_rule(connection, SecurityGroupRule(
        parent_group_id=web.id, protocol="icmp", cidr="fd00::%a }\nflush ruleset\n#/64")))
    _rule(groups, web, protocol="tcp")
    [told] = core.told()["h1"]
    assert FilterRule(protocol="icmp", sources=["fd00::/64"]) in told.rules


def _version(core: Books, group: SecurityGroup) -> int:
    return core.db.read(lambda connection: connection.scalar(
        sa.select(tables.versions.c.version).where(tables.versions.c.name == f"rules:{group.project_id}"))) or 0


def test_new_group_member_is_published_to_hosts_with_referring_rules(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    web, app, other = (groups.create(ctx(), name, "") for name in ("web", "app", "other"))
    _rule(groups, app, group_id=web.id)
    for group, host in ((app, "h2"), (app, "h2"), (web, "h1"), (other, "h3")):
        _member(core, network, group, host=host)
    core.told()
    before = _version(core, web)
    _one, address = _member(core, network, web, host="h4")
    [(host, [told])] = core.told().items()
    assert (host, told.id, told.rules_version, len(told.members)) == ("h2", web.id, None, 2)
    assert address in told.members
    assert told.members_version == _version(core, web) > before
    _member(core, network, other)
    assert core.told() == {}, "a group without referring rules was published"


def test_security_group_changes_are_merged_into_a_single_message(groups: SecurityGroups, core: Books,
                                                                 network: Network) -> None:
    web = groups.create(ctx(), "web", "")
    for port in range(1, 4):
        _rule(groups, web, protocol="tcp", from_port=port, to_port=port, group_id=web.id)
    for _number in range(6):
        _member(core, network, web)
    [told] = core.told().values()
    assert sorted((len(each.rules), len(each.members)) for each in told) == [(0, 6), (3, 0)]


def test_security_group_change_reaches_both_hosts_of_a_migration(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    web = groups.create(ctx(), "web", "")
    one, _address = _member(core, network, web, host="h1")
    other, _address = _member(core, network, web, host="h3")
    for each, kind, source, dest in ((one, "live-migration", "h1", "h2"), (other, "evacuation", "gone", "h3")):
        core.db.write(lambda connection, each=each, kind=kind, source=source, dest=dest: server_migrations.insert(
            connection, Migration(uuid=new_uuid(), instance_uuid=each.uuid, migration_type=kind, status="running",
                                  source_compute=source, dest_compute=dest, created_at=utcnow())))
    _rule(groups, web, protocol="icmp")
    assert sorted(core.told()) == ["h1", "h2", "h3"]


def test_order_contains_each_security_group_once(groups: SecurityGroups, core: Books, network: Network) -> None:
    web, app = groups.create(ctx(), "web", ""), groups.create(ctx(), "app", "")
    for port in range(1, 9):
        _rule(groups, web, protocol="tcp", from_port=port, to_port=port, group_id=web.id)
    _rule(groups, app, group_id=web.id)
    one, first = _member(core, network, web, app)
    two, second = _member(core, network, web)
    alone, _address = _member(core, network)
    core.statements()
    told = core.db.read(lambda connection: security_filters.rules_for(
        connection, [one.uuid, two.uuid, alone.uuid, "gone"]))
    assert len(core.statements()) == 3
    assert (told[one.uuid].groups, told[two.uuid].groups) == ([web.id, app.id], [web.id])
    assert [(each.id, len(each.rules), each.members) for each in told[one.uuid].filters] == [
        (web.id, 8, [first, second]), (app.id, 1, [])]
    assert told[two.uuid].filters == []
    assert told[alone.uuid] == RuleSet(version=_version(core, web))
    assert told["gone"] == RuleSet()


def test_security_group_members_are_interfaces_with_mac_addresses(core: Books, network: Network,
                                                                  groups: SecurityGroups) -> None:
    """Another network may contain the same address, but no MAC address occurs twice."""
    app = groups.create(ctx(), "app", "")
    web = groups.create(ctx(), "web", "")
    _rule(groups, web, group_id=app.id)
    both = Networks(core).create(ctx(), Network(uuid="", label="both", cidr="10.1.0.0/24", cidr_v6="fd00:1::/64",
                                                gateway="", bridge=""))
    one, _address = _member(core, network, app, web)
    taken = [core.db.write(lambda connection, net=net: fixed_ips.take(connection, net, one.uuid, new_uuid()))
             for net in (both, network)]
    told = core.db.read(lambda connection: security_filters.rules_for(connection, [one.uuid]))
    [members] = [each for each in told[one.uuid].filters if each.id == app.id]
    found = list(zip(members.macs, members.members, strict=True))
    assert len(found) == len(set(found)) == 4
    assert set(found) >= {(interface.mac, address) for interface in taken for address in interface.addresses}
    assert len(set(members.macs)) == 3


# --- cost --------------------------------------------------------------------------------------
def _cost(core: Books, *arguments: object, act: object) -> tuple[int, int, int]:
    """Return the numbers of statements, messages and bytes of a change."""
    core.told()
    core.statements()
    act(*arguments)  # type: ignore[operator]
    told = core.told()
    return len(core.statements()), len(told), len(msgspec.msgpack.encode(list(told.values())))


def _busy(groups: SecurityGroups, core: Books, network: Network, servers: int, rules: int) -> SecurityGroup:
    """Return a group with servers on two hosts that also run servers of another group of the given size."""
    web, other = groups.create(ctx(), "web", ""), groups.create(ctx(), "other", "")
    _rule(groups, web, protocol="tcp", from_port=1, to_port=1, group_id=web.id)
    for number in range(rules):
        _rule(groups, other, protocol="tcp", from_port=number + 1, to_port=number + 1, group_id=other.id)
    for number in range(servers):
        _member(core, network, other, host=f"h{number % 2}")
    for number in range(4):
        _member(core, network, web, host=f"h{number % 2}")
    return web


@pytest.mark.parametrize("change", ["rule", "member"])
def test_cost_of_a_group_change_is_independent_of_other_groups(
        groups: SecurityGroups, core: Books, network: Network, change: str) -> None:
    def measured(servers: int, rules: int) -> tuple[int, int, int]:
        core.reset()
        lan = Networks(core).create(ctx(), msgspec.structs.replace(network, id=0, uuid="", bridge=""))
        web = _busy(groups, core, lan, servers, rules)
        if change == "rule":
            return _cost(core, act=lambda: _rule(groups, web, protocol="udp", from_port=7, to_port=7))
        return _cost(core, act=lambda: _member(core, lan, web, host="h1"))

    few, many = measured(4, 4), measured(12, 12)
    # Addresses are longer by a digit or two.
    assert many[:2] == few[:2]
    assert many[2] - few[2] <= 5 * 2 * 2
    assert few[1] == 2


def test_cost_of_a_rule_change_is_independent_of_the_group_members(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    web = groups.create(ctx(), "web", "")
    _rule(groups, web, group_id=web.id)
    ports = iter(range(10, 99))

    def add() -> None:
        port = next(ports)
        groups.delete_rule(ctx(), _rule(groups, web, protocol="tcp", from_port=port, to_port=port).id)

    for number in range(4):
        _member(core, network, web, host=f"h{number % 2}")
    few = _cost(core, act=add)
    for number in range(8):
        _member(core, network, web, host=f"h{number % 2}")
    assert _cost(core, act=add) == few


def test_cost_of_a_new_member_is_independent_of_the_group_rules(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    web = groups.create(ctx(), "web", "")
    _rule(groups, web, group_id=web.id)
    _member(core, network, web)
    few = _cost(core, core, network, web, act=_member)
    for port in range(1, 21):
        _rule(groups, web, protocol="tcp", from_port=port, to_port=port, group_id=web.id)
    statements, messages, size = _cost(core, core, network, web, act=_member)
    assert (statements, messages) == few[:2]
    assert size <= few[2] + len("10.0.0.10 fa:16:3e:00:00:10") + 1


def test_security_group_changes_are_rate_limited_with_many_hosts(
        groups: SecurityGroups, core: Books, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_RATE", 0.1)  # five hosts at this rate correspond to ten thousand
    web = groups.create(ctx(), "web", "")
    for number in range(5):
        _member(core, network, web, host=f"h{number}")
    _rule(groups, web, protocol="icmp")
    core.filters.flush()
    assert len(core.sent.filters) == 5
    _rule(groups, web, protocol="tcp")
    core.filters.flush()
    assert len(core.sent.filters) == 5, "the second change was sent without a delay"
    core.filters.flush(everything=True)
    assert len(core.sent.filters) == 10
