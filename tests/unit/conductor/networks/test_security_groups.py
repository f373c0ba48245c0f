"""Security groups: rules, quotas, versions, and publication of changes to hosts."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints.accounts import Quotas
from nova.conductor.endpoints.by_hosts import NetworkHosts
from nova.conductor.endpoints.networks import Networks, SecurityGroups
from nova.db import versions
from nova.db.networks import fixed_ips, security_filters, security_groups
from nova.db.servers import servers
from nova.objects.base import new_uuid
from nova.objects.networks.network import FilterRule, Network, RuleSet, SecurityGroup, SecurityGroupRule
from nova.objects.servers.instance import Instance
from tests.unit.conductor.books import Books, ctx, server


@pytest.fixture
def groups(core: Books) -> SecurityGroups:
    return SecurityGroups(core)


@pytest.fixture
def network(core: Books) -> Network:
    return Networks(core).create(ctx(), Network(uuid="", label="lan", cidr="10.0.0.0/24", gateway="", bridge=""))


def _rule(group: SecurityGroup, **values: object) -> SecurityGroupRule:
    return SecurityGroupRule(parent_group_id=group.id, **values)  # type: ignore[arg-type]


def _member(core: Books, network: Network, *groups: SecurityGroup, host: str | None = "h1") -> tuple[Instance, str]:
    """Create a server in the groups and return the server and its address."""
    one = server(core, host, security_groups=[group.name for group in groups])
    core.db.write(lambda connection: security_groups.add_members(
        connection, [group.id for group in groups], [one.uuid]))
    return one, core.db.write(
        lambda connection: fixed_ips.take(connection, network, one.uuid, new_uuid())).addresses[0]


def _rules(core: Books, instance: Instance) -> list[FilterRule]:
    rules = _rule_set(core, instance)
    return [rule for group in rules.filters if group.id in rules.groups for rule in group.rules]


def _rule_set(core: Books, instance: Instance) -> RuleSet:
    return core.db.read(
        lambda connection: security_filters.rules_for(connection, [instance.uuid]))[instance.uuid]


# --- groups ----------------------------------------------------------------------------------
def test_default_security_group_has_no_rules(groups: SecurityGroups) -> None:
    for project in ("p1", "p1", "p2"):
        [default] = groups.index(ctx(project), project)
        assert (default.name, default.project_id, default.rules) == ("default", project, [])
    assert len(groups.index(ctx())) == 2


def test_default_security_group_is_created_once_by_concurrent_requests(groups: SecurityGroups) -> None:
    found: list[object] = []

    def look() -> None:
        try:
            found.append(groups.index(ctx(), "p1"))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6
    assert all(one == found[0] and isinstance(one, list) and len(one) == 1 for one in found)


def test_security_group_create_rename_delete(groups: SecurityGroups) -> None:
    made = groups.create(ctx(), "web", "web servers")
    assert groups.get(ctx(), made.id, "p1") == made
    with pytest.raises(exception.SecurityGroupExists, match="Security group web already exists"):
        groups.create(ctx(), "web", "")
    groups.create(ctx("p2"), "web", "")
    assert groups.update(ctx(), made.id, "www", "new", "p1").name == "www"
    with pytest.raises(exception.SecurityGroupExists):
        groups.update(ctx(), groups.create(ctx(), "db", "").id, "www", "")
    groups.delete(ctx(), made.id, "p1")
    for call in (lambda: groups.get(ctx(), made.id), lambda: groups.delete(ctx(), made.id),
                 lambda: groups.get(ctx(), 2**80), lambda: groups.get(ctx(), -1)):
        with pytest.raises(exception.SecurityGroupNotFound):
            call()


def test_security_group_of_another_project_is_not_found(groups: SecurityGroups) -> None:
    made = groups.create(ctx(), "web", "")
    rule = groups.add_rule(ctx(), _rule(made))
    for call in (lambda: groups.get(ctx(), made.id, "p2"), lambda: groups.delete(ctx(), made.id, "p2"),
                 lambda: groups.update(ctx(), made.id, "x", "", "p2"),
                 lambda: groups.add_rule(ctx(), _rule(made, protocol="icmp"), "p2")):
        with pytest.raises(exception.SecurityGroupNotFound):
            call()
    with pytest.raises(exception.SecurityGroupRuleNotFound):
        groups.delete_rule(ctx(), rule.id, "p2")
    foreign = groups.create(ctx("p2"), "web", "")
    with pytest.raises(exception.SecurityGroupNotFound):
        groups.add_rule(ctx(), _rule(made, group_id=foreign.id))


def test_default_security_group_cannot_be_renamed_or_deleted(groups: SecurityGroups) -> None:
    [default] = groups.index(ctx(), "p1")
    with pytest.raises(exception.InvalidInput):
        groups.delete(ctx(), default.id)
    with pytest.raises(exception.InvalidInput):
        groups.update(ctx(), default.id, "other", "")
    assert groups.update(ctx(), default.id, "default", "text").description == "text"


def test_security_group_in_use_cannot_be_deleted_but_renamed(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    made, other = groups.create(ctx(), "web", ""), groups.create(ctx(), "db", "")
    member, _address = _member(core, network, other, made)
    with pytest.raises(exception.SecurityGroupInUse):
        groups.delete(ctx(), made.id)
    groups.update(ctx(), made.id, "www", "")
    assert core.db.read(lambda connection: servers.get(connection, member.uuid)).security_groups == ["db", "www"]
    core.db.write(lambda connection: security_groups.remove_members(connection, member.uuid))
    groups.delete(ctx(), made.id)


def test_security_group_quotas_are_enforced(groups: SecurityGroups, core: Books) -> None:
    Quotas(core).set(ctx(), "p1", {"security_groups": 2, "security_group_rules": 1}, force=True)
    made = groups.create(ctx(), "web", "")
    with pytest.raises(exception.QuotaLimit):
        groups.create(ctx(), "db", "")
    groups.add_rule(ctx(), _rule(made))
    with pytest.raises(exception.QuotaLimit):
        groups.add_rule(ctx(), _rule(made, protocol="icmp"))


def test_default_security_group_quotas_are_enforced(groups: SecurityGroups, core: Books) -> None:
    limits = Quotas(core).get(ctx(), "p1").limits
    assert (limits["security_groups"], limits["security_group_rules"]) == (10, 100)
    made = groups.create(ctx(), "web", "")
    for port in range(1, 101):
        groups.add_rule(ctx(), _rule(made, protocol="tcp", from_port=port, to_port=port))
    with pytest.raises(exception.QuotaLimit, match="too many security group rules"):
        groups.add_rule(ctx(), _rule(made))
    for number in range(8):  # and the default group
        groups.create(ctx(), f"g{number}", "")
    with pytest.raises(exception.QuotaLimit, match="too many security groups"):
        groups.create(ctx(), "one more", "")


def test_new_security_group_rule_reads_no_other_rules(groups: SecurityGroups, core: Books) -> None:
    made = groups.create(ctx(), "web", "")
    for port in (1, 2, 3):
        groups.add_rule(ctx(), _rule(made, protocol="tcp", from_port=port, to_port=port))
    core.statements()
    groups.add_rule(ctx(), _rule(made, protocol="udp", from_port=1, to_port=1))
    asked = [line for line in core.statements() if "FROM security_group_rules" in line and "count(" not in line]
    assert asked
    assert all("LIMIT" in line or "security_group_members" in line for line in asked), asked


def test_security_groups_are_resolved_by_name_or_id(groups: SecurityGroups, core: Books) -> None:
    web = groups.create(ctx(), "web", "")

    def resolve(*names: str, project: str = "p1") -> list[str]:
        return [group.name for group in core.db.write(
            lambda connection: security_groups.resolve(connection, project, names))]

    assert resolve("web", "default", "web", str(web.id)) == ["web", "default"]
    assert resolve("default", project="p3") == ["default"]
    for names, project in ((("gone",), "p1"), (("web",), "p2"), ((str(web.id),), "p2")):
        with pytest.raises(exception.SecurityGroupNotFound):
            resolve(*names, project=project)


# --- rules -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("values", "field"), [
    ({"protocol": "sctp"}, "ip_protocol"), ({"from_port": 1, "to_port": 2}, "ip_protocol"),
    ({"protocol": "tcp", "from_port": 1}, "from_port"), ({"protocol": "tcp", "from_port": 5, "to_port": 4}, "range"),
    ({"protocol": "udp", "from_port": 0, "to_port": 4}, "range"),
    ({"protocol": "tcp", "from_port": 1, "to_port": 65536}, "range"),
    ({"protocol": "icmp", "from_port": -2, "to_port": 0}, "icmp"),
    ({"protocol": "icmp", "from_port": 256, "to_port": 0}, "icmp"), ({"cidr": "nonsense"}, "cidr"),
    ({"cidr": "10.0.0.0/24", "group_id": 1}, "not both")])
def test_invalid_security_group_rule_is_refused_with_the_field_name(groups: SecurityGroups, values: dict[str, object],
                                                                    field: str) -> None:
    made = groups.create(ctx(), "web", "")
    with pytest.raises(exception.InvalidInput, match=field):
        groups.add_rule(ctx(), _rule(made, **values))


def test_duplicate_security_group_rule_is_refused(groups: SecurityGroups) -> None:
    made = groups.create(ctx(), "web", "")
    rule = groups.add_rule(ctx(), _rule(made, protocol="TCP", from_port=80, to_port=80, cidr="10.0.0.7/24"))
    assert (rule.protocol, rule.cidr) == ("tcp", "10.0.0.7/24"), "the CIDR must be stored as requested"
    for same in ("10.0.0.7/24", "10.0.0.7/255.255.255.0"):
        with pytest.raises(exception.InvalidInput, match="already exists"):
            groups.add_rule(ctx(), _rule(made, protocol="tcp", from_port=80, to_port=80, cidr=same))
    assert groups.get(ctx(), made.id).rules == [rule]
    groups.delete_rule(ctx(), rule.id)
    assert groups.get(ctx(), made.id).rules == []
    with pytest.raises(exception.SecurityGroupRuleNotFound):
        groups.delete_rule(ctx(), rule.id)


def test_effective_rules_of_a_server(groups: SecurityGroups, core: Books, network: Network) -> None:
    web, app, lonely = (groups.create(ctx(), name, "") for name in ("web", "app", "lonely"))
    groups.add_rule(ctx(), _rule(web, protocol="tcp", from_port=80, to_port=80))
    groups.add_rule(ctx(), _rule(web, protocol="icmp", from_port=-1, to_port=-1, cidr="192.0.2.7/24"))
    groups.add_rule(ctx(), _rule(app, group_id=web.id))
    groups.add_rule(ctx(), _rule(app, protocol="tcp", from_port=22, to_port=22, group_id=lonely.id))
    front, address = _member(core, network, web)
    back, _other = _member(core, network, app)
    assert _rules(core, front) == [
        FilterRule(protocol="tcp", from_port=80, to_port=80, sources=["0.0.0.0/0"]),
        FilterRule(protocol="icmp", from_port=-1, to_port=-1, sources=["192.0.2.0/24"])]
    assert _rules(core, back) == [
        FilterRule(group=web.id), FilterRule(protocol="tcp", from_port=22, to_port=22, group=lonely.id)]
    members = {group.id: group.members for group in _rule_set(core, back).filters}
    assert (members[web.id], members[lonely.id]) == ([address], []), "an empty group allows no source"
    assert core.db.write(lambda connection: security_filters.moved(connection, front.uuid)) == {f"members:{web.id}"}
    assert core.db.write(lambda connection: security_filters.moved(connection, back.uuid)) == set()


def test_delete_of_a_security_group_removes_rules_that_refer_to_it(groups: SecurityGroups, core: Books,
                                                                   network: Network) -> None:
    web, app = groups.create(ctx(), "web", ""), groups.create(ctx(), "app", "")
    groups.add_rule(ctx(), _rule(app, group_id=web.id))
    _member(core, network, app, host="h2")
    assert core.told()["h2"]
    groups.delete(ctx(), web.id)
    assert groups.get(ctx(), app.id).rules == []
    [[told]] = core.told().values()
    assert (told.id, told.rules) == (app.id, [])


# --- versions --------------------------------------------------------------------------------
def test_change_of_effective_rules_increments_the_version(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    web, app = groups.create(ctx(), "web", ""), groups.create(ctx(), "app", "")
    back, _address = _member(core, network, app, host="h2")
    seen = [_rule_set(core, back).version]

    def newer() -> bool:
        seen.append(_rule_set(core, back).version)
        return seen[-1] > seen[-2]

    rule = groups.add_rule(ctx(), _rule(app, protocol="icmp"))
    assert newer()
    groups.add_rule(ctx(), _rule(app, group_id=web.id))
    assert newer()
    groups.delete_rule(ctx(), rule.id)
    assert newer()
    front, _other = _member(core, network, web)
    core.db.write(lambda connection: security_filters.moved(connection, front.uuid))  # its address has changed
    assert newer()
    core.db.write(lambda connection: security_filters.moved(connection, back.uuid))  # no rule refers to its group
    assert not newer()
    core.db.write(lambda connection: security_groups.remove_members(connection, front.uuid))
    groups.delete(ctx(), web.id)
    assert newer()


def test_server_without_groups_has_the_rules_version_of_its_project(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    web = groups.create(ctx(), "web", "")
    one, _address = _member(core, network, web)
    groups.add_rule(ctx(), _rule(web, protocol="icmp"))
    before = _rule_set(core, one)
    core.db.write(lambda connection: security_groups.remove_members(connection, one.uuid))
    assert _rule_set(core, one) == RuleSet(version=before.version)


def test_rules_version_grows_after_a_database_restore(core: Books) -> None:
    core.db.write(lambda connection: versions.bump(connection, "rules:p1"))
    lost = core.db.read(lambda connection: versions.get(connection, "rules:p1"))
    core.db.write(lambda connection: connection.execute(sa.update(versions.TABLE).values(version=lost - 1_000_000)))
    core.db.write(lambda connection: versions.bump(connection, "rules:p1"))
    assert core.db.read(lambda connection: versions.get(connection, "rules:p1")) >= lost


def test_host_with_an_old_rules_version_gets_current_rules(
        groups: SecurityGroups, core: Books, network: Network) -> None:
    desk = NetworkHosts(core)
    web = groups.create(ctx(), "web", "")
    one, _address = _member(core, network, web)
    other, _address = _member(core, network)
    known = {uuid: _rule_set(core, each).version for uuid, each in ((one.uuid, one), (other.uuid, other))}
    core.statements()
    assert desk.rules(ctx(), known) == {}
    assert len(core.statements()) == 1
    rule = groups.add_rule(ctx(), _rule(web, protocol="icmp"))
    told = desk.rules(ctx(), known, grouped=True)
    assert told == {one.uuid: _rule_set(core, one), other.uuid: _rule_set(core, other)}
    [told_once] = told[one.uuid].filters
    assert (told_once.id, len(told_once.rules)) == (web.id, 1)
    groups.delete_rule(ctx(), rule.id)
    [told_again] = desk.rules(ctx(), {one.uuid: told[one.uuid].version}, grouped=True)[one.uuid].filters
    assert (told_again.id, told_again.rules) == (web.id, [])
    assert desk.rules(ctx(), {"gone": 0}) == {}
