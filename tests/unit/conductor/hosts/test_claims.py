"""Claims check the constraints of the scheduler again, since its data may be out of date."""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor import announcer
from nova.db import tables
from nova.db.hosts import aggregates, claims, services
from nova.db.servers import server_groups, server_migrations
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.scheduling import GroupSpec, RequestSpec, Selection, metadata_digest
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration
from nova.objects.servers.server_group import ServerGroup
from nova.scheduler import stages
from nova.scheduler.filters.base import Filter
from tests.unit.conductor.books import Books, flavor, node, server, set_columns


@pytest.fixture
def hosts(core: Books) -> dict[str, Selection]:
    """Return the selections of a scheduler by host, for hosts a to d with a node each."""
    found = {}
    for host in "abcd":
        core.db.write(lambda connection, host=host: services.register(connection, host, "nova-compute", "compute", 1))
        [made] = announcer.report_nodes(core, host, [node(host)])
        found[host] = Selection(node_uuid=made.uuid, host=host, node=host)
    return found


def asking(**changes: Any) -> RequestSpec:
    return RequestSpec(instance_uuids=["x"], project_id="p1", flavor=flavor(), resources={"VCPU": 1}, **changes)


def claim(core: Books, selection: Selection, spec: RequestSpec, instance: Instance | None = None) -> Instance:
    """Claim resources for an existing instance in the same way as the placement transaction."""
    instance = instance or server(core, server_group=spec.group.uuid if spec.group else None)

    def write(connection: sa.Connection) -> None:
        claims.claim(connection, instance, selection, spec)
        connection.execute(sa.update(tables.instances).where(tables.instances.c.uuid == instance.uuid)
                           .values(host=selection.host, node=selection.node))

    core.db.write(write)
    return instance


def refused(core: Books, selection: Selection, spec: RequestSpec) -> str:
    """Return the reason of the refusal, and assert that nothing was claimed."""
    def used(connection: sa.Connection) -> Any:
        return [connection.execute(sa.select(tables.inventories.c.used)).all(),
                connection.execute(sa.select(tables.compute_nodes.c.num_instances)).all()]

    before = core.db.read(used)
    with pytest.raises(exception.ClaimLost) as lost:
        claim(core, selection, spec)
    assert core.db.read(used) == before
    return str(lost.value.kwargs["reason"])


# --- the host ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("changes", "says"), [
    ({"disabled": True}, "disabled"), ({"up": False}, "down"), ({"forced_down": True}, "down")])
def test_claim_on_a_disabled_or_down_host_is_refused(core: Books, hosts: dict[str, Selection], changes: dict[str, bool],
                                                     says: str) -> None:
    set_columns(core, tables.services, tables.services.c.host == "a", **changes)
    assert says in refused(core, hosts["a"], asking())
    claim(core, hosts["b"], asking())


def test_claim_with_force_host_accepts_a_down_but_no_disabled_host(core: Books, hosts: dict[str, Selection]) -> None:
    set_columns(core, tables.services, tables.services.c.host == "a", up=False)
    claim(core, hosts["a"], asking(force_host="a"))
    set_columns(core, tables.services, tables.services.c.host == "a", disabled=True)
    assert "disabled" in refused(core, hosts["a"], asking(force_host="a"))


@pytest.mark.parametrize("moves", [False, True], ids=["built there", "moving there"])
def test_claim_enforces_the_hint_different_host(core: Books, hosts: dict[str, Selection], moves: bool) -> None:
    """The other server was placed after the scheduler's decision."""
    other, stranger = server(core, host="b" if moves else "a"), server(core, host="a", project="p2")
    if moves:
        core.db.write(lambda connection: server_migrations.insert(connection, Migration(
            uuid=new_uuid(), instance_uuid=other.uuid, migration_type="migration", status="migrating",
            source_compute="b", dest_compute="a", created_at=utcnow())))
    spec = asking(hints={"different_host": [other.uuid, stranger.uuid]})
    enforced = {host: msgspec.structs.replace(selection, hints=["different_host"]) for host, selection in hosts.items()}
    assert "different_host" in refused(core, enforced["a"], spec)
    claim(core, enforced["c"], spec)
    claim(core, hosts["a"], spec)  # the filter is not enabled, or the host was forced
    claim(core, enforced["a"], asking(hints={"different_host": stranger.uuid}))


def test_claim_enforces_the_hint_same_host(core: Books, hosts: dict[str, Selection]) -> None:
    """The other server moved after the scheduler's decision."""
    other = server(core, host="b")
    spec = asking(hints={"same_host": other.uuid})
    enforced = {host: msgspec.structs.replace(selection, hints=["same_host"]) for host, selection in hosts.items()}
    assert "same_host" in refused(core, enforced["a"], spec)
    claim(core, enforced["b"], spec)
    claim(core, hosts["a"], spec)


@pytest.mark.parametrize("limit", ["max_instances", "max_io_ops"])
def test_claim_enforces_the_limits_of_the_node_that_filters_enforced(core: Books, hosts: dict[str, Selection],
                                                                     limit: str) -> None:
    """Several schedulers that select the node at once would otherwise exceed max_instances_per_host."""
    limited = msgspec.structs.replace(hosts["a"], **{limit: 2})
    claim(core, limited, asking())
    claim(core, limited, asking())
    assert "its limit of servers or operations" in refused(core, limited, asking())
    claim(core, hosts["a"], asking())  # a selection without limits, such as that of a host that an administrator named
    set_columns(core, tables.services, tables.services.c.host == "a", up=False)
    assert "down" in refused(core, limited, asking())


def test_claim_on_a_deleted_node_is_refused(core: Books, hosts: dict[str, Selection]) -> None:
    nowhere = Selection(node_uuid=new_uuid(), host="a", node="a")
    assert "was removed" in refused(core, nowhere, asking())


@pytest.mark.parametrize("spec", [{"required_traits": ["CUSTOM_FAST"]}, {"forbidden_traits": ["HW_ARCH_X86_64"]}])
def test_claim_is_refused_if_traits_of_the_host_have_changed(core: Books, hosts: dict[str, Selection],
                                                             spec: dict[str, Any]) -> None:
    assert "traits" in refused(core, hosts["a"], asking(**spec))
    set_columns(core, tables.providers, tables.providers.c.uuid == hosts["a"].node_uuid, traits=["CUSTOM_FAST"])
    claim(core, hosts["a"], asking(**spec))


def test_claim_is_refused_if_the_zone_of_the_host_has_changed(core: Books, hosts: dict[str, Selection]) -> None:
    claim(core, hosts["a"], asking(availability_zone="nova"))
    aggregate = core.db.write(lambda connection: aggregates.create(connection, "east", "east"))
    core.db.write(lambda connection: aggregates.add_host(connection, aggregate.id, "b"))
    assert "zone" in refused(core, hosts["b"], asking(availability_zone="nova"))
    assert "zone" in refused(core, hosts["a"], asking(availability_zone="east"))
    claim(core, hosts["b"], asking(availability_zone="east"))
    claim(core, hosts["b"], asking(availability_zone="nova", force_host="b"))


def test_claim_is_refused_if_relevant_aggregate_metadata_has_changed(core: Books, hosts: dict[str, Selection]) -> None:
    aggregate = core.db.write(lambda connection: aggregates.create(connection, "for p1"))
    core.db.write(lambda connection: aggregates.add_host(connection, aggregate.id, "a"))
    core.db.write(lambda connection: aggregates.set_metadata(connection, aggregate.id, {"filter_tenant_id": "p1"}))
    seen = Selection(node_uuid=hosts["a"].node_uuid, host="a", node="a",
                     aggregates=metadata_digest([{"filter_tenant_id": "p1"}]))
    claim(core, seen, asking())
    core.db.write(lambda connection: aggregates.set_metadata(connection, aggregate.id, {"filter_tenant_id": "p2"}))
    assert "aggregates" in refused(core, seen, asking())
    claim(core, hosts["a"], asking())


# --- server groups -------------------------------------------------------------------------------
@pytest.fixture
def group(core: Books) -> Callable[..., GroupSpec]:
    def make(policy: str, most: int = 1) -> GroupSpec:
        made = core.db.write(lambda connection: server_groups.create(connection, ServerGroup(
            uuid="", name="g", project_id="p1", user_id="u1", policy=policy)))
        return GroupSpec(uuid=made.uuid, policy=policy, max_server_per_host=most)

    return make


def test_claim_enforces_anti_affinity(core: Books, hosts: dict[str, Selection],
                                      group: Callable[..., GroupSpec]) -> None:
    spec = asking(group=group("anti-affinity"))
    claim(core, hosts["a"], spec)
    assert "maximum number of servers of the group" in refused(core, hosts["a"], spec)
    claim(core, hosts["b"], spec)
    two = asking(group=group("anti-affinity", most=2))
    claim(core, hosts["a"], two)
    claim(core, hosts["a"], two)
    assert "maximum number of servers of the group" in refused(core, hosts["a"], two)


def test_claim_enforces_affinity(core: Books, hosts: dict[str, Selection], group: Callable[..., GroupSpec]) -> None:
    spec = asking(group=group("affinity"))
    claim(core, hosts["a"], spec)
    assert "another host" in refused(core, hosts["b"], spec)
    claim(core, hosts["a"], spec)


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
def test_claim_ignores_the_server_itself_as_group_member(core: Books, hosts: dict[str, Selection],
                                                         group: Callable[..., GroupSpec], policy: str) -> None:
    spec = asking(group=group(policy))
    one = claim(core, hosts["a"], spec)
    core.db.write(lambda connection: claims.claim(connection, one, hosts["a"], spec, consumer=new_uuid()))
    core.db.write(lambda connection: claims.claim(connection, one, hosts["b"], spec, consumer=new_uuid()))


@pytest.mark.parametrize(("here", "source", "dest"), [("a", "a", "b"), ("b", "a", "b")],
                         ids=["not there yet", "may go back"])
def test_migrating_group_member_counts_on_source_and_destination(core: Books, hosts: dict[str, Selection], here: str,
                                                                 source: str, dest: str,
                                                                 group: Callable[..., GroupSpec]) -> None:
    """The server counts on both hosts until its migration is closed."""
    spec = asking(group=group("anti-affinity"))
    one = claim(core, hosts[here], spec)
    core.db.write(lambda connection: server_migrations.insert(connection, Migration(
        uuid=new_uuid(), instance_uuid=one.uuid, migration_type="resize", status="migrating", source_compute=source,
        dest_compute=dest, created_at=utcnow())))
    assert core.db.read(lambda connection: server_groups.members_by_host(
        connection, spec.group.uuid)) == {"a": 1, "b": 1}  # type: ignore[union-attr]
    for host in "ab":
        assert "maximum number of servers of the group" in refused(core, hosts[host], spec)
    core.db.write(lambda connection: connection.execute(
        sa.update(tables.migrations).where(tables.migrations.c.instance_uuid == one.uuid).values(open=False)))
    claim(core, hosts[dest if here == source else source], spec)


_PICTURES = [dict(zip("ab", members, strict=True)) for members in itertools.product((0, 1, 2), repeat=2)]


@pytest.mark.parametrize("policy", ["soft-affinity", "soft-anti-affinity"])
def test_claim_is_rescheduled_if_new_group_members_favor_another_host(
        core: Books, hosts: dict[str, Selection], group: Callable[..., GroupSpec], policy: str) -> None:
    """All states that a scheduler may have seen of two hosts with up to two members each, and all actual states."""
    covered = Counter[bool]()
    for now in _PICTURES:
        made = group(policy)
        for host, members in now.items():
            for _ in range(members):
                claim(core, hosts[host], asking(group=msgspec.structs.replace(made, hosts=now)))
        for then in _PICTURES:
            spec = asking(group=msgspec.structs.replace(made, hosts=then))
            stale = now["a"] > then["a"] if policy == "soft-anti-affinity" else now["b"] > max(then["b"], now["a"])
            assert spec.group is not None
            assert bool(core.db.write(lambda connection, group=spec.group: server_groups.admit(
                connection, group, "x", "a"))) == spec.group.stale == stale, (now, then)
            spec.group.hosts = now
            assert not core.db.write(lambda connection, group=spec.group: server_groups.admit(
                connection, group, "x", "a")), "a claim with current members was refused"
            covered[stale] += 1
    print(f"{policy}: {covered[True]} claims ask again, {covered[False]} do not")
    assert covered[True] >= 10
    assert covered[False] >= 10


@pytest.mark.parametrize("policy", ["soft-affinity", "soft-anti-affinity"])
def test_soft_group_policies_refuse_no_claim_on_requested_hosts(core: Books, hosts: dict[str, Selection],
                                                                group: Callable[..., GroupSpec], policy: str) -> None:
    made = group(policy)
    claim(core, hosts["a"], asking(group=made))
    claim(core, hosts["a"], asking(group=made, requested_host="a"))
    claim(core, hosts["b"], asking(group=made, force_host="b"))
    often = msgspec.structs.replace(made, selections=server_groups.MAX_SELECTIONS)
    for host in "ab":
        claim(core, hosts[host], asking(group=often))


def test_claim_ignores_the_policy_of_a_deleted_server_group(core: Books, hosts: dict[str, Selection],
                                                            group: Callable[..., GroupSpec]) -> None:
    spec = asking(group=group("anti-affinity"))
    claim(core, hosts["a"], spec)
    core.db.write(lambda connection: server_groups.delete(connection, spec.group.uuid))  # type: ignore[union-attr]
    claim(core, hosts["a"], spec)


@pytest.mark.parametrize(("policy", "won"), [("anti-affinity", 1), ("affinity", 8)])
def test_concurrent_claims_respect_the_group_policy(
        core: Books, hosts: dict[str, Selection], group: Callable[..., GroupSpec], policy: str, won: int) -> None:
    spec = asking(group=group(policy))
    waiting = [server(core, server_group=spec.group.uuid) for _ in range(8)]  # type: ignore[union-attr]
    begin, outcomes = threading.Barrier(len(waiting)), []

    def run(instance: Instance) -> None:
        begin.wait()
        try:
            claim(core, hosts["a"], spec, instance)
            outcomes.append(True)
        except exception.ClaimLost:
            outcomes.append(False)

    threads = [threading.Thread(target=run, args=(instance,)) for instance in waiting]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(True) == won
    assert core.db.read(lambda connection: server_groups.members_by_host(
        connection, spec.group.uuid)) == {"a": won}  # type: ignore[union-attr]


# --- every filter and weigher ------------------------------------------------------------------------
# Decisions of filters, weighers and stages that claims check again, with the tests of each check.
_RECHECKED: dict[str, tuple[Callable[..., None], ...]] = {
    "ComputeFilter": (test_claim_on_a_disabled_or_down_host_is_refused,),
    "DisabledHosts": (test_claim_with_force_host_accepts_a_down_but_no_disabled_host,),
    "AvailabilityZoneFilter": (test_claim_is_refused_if_the_zone_of_the_host_has_changed,),
    "Traits": (test_claim_is_refused_if_traits_of_the_host_have_changed,),
    "ServerGroupAffinityFilter": (test_claim_enforces_affinity, test_concurrent_claims_respect_the_group_policy),
    "ServerGroupAntiAffinityFilter": (test_claim_enforces_anti_affinity,
                                      test_migrating_group_member_counts_on_source_and_destination),
    "ServerGroupSoftAffinityWeigher": (test_claim_is_rescheduled_if_new_group_members_favor_another_host,),
    "ServerGroupSoftAntiAffinityWeigher": (test_claim_is_rescheduled_if_new_group_members_favor_another_host,),
}
_CLAIMED = {"Room": "test_claims_properties.py", "Trees": "test_claims_properties.py",
            "NUMATopologyFilter": "test_dedicated_resources.py", "PciPassthroughFilter": "test_dedicated_resources.py"}
_NOT_RECHECKED = {
    "AllHostsFilter": "accepts every node", "IgnoredHosts": "in the request", "RequestedHost": "in the request",
    "IsolatedHostsFilter": "an option of the scheduler", "SimpleCIDRAffinityFilter": "the address of a host",
    "ComputeCapabilitiesFilter": "facts of a host, which no request changes",
    "ImagePropertiesFilter": "facts of a host, which no request changes",
    "JsonFilter": "an expression about the load, which changes at any time; resources are claimed",
    "MetricsFilter": "whether a host reports its load",
    **dict.fromkeys((
        "BuildFailureWeigher", "CPUWeigher", "DiskWeigher", "HypervisorVersionWeigher", "ImagePropertiesWeigher",
        "IoOpsWeigher", "MetricsWeigher", "NumInstancesWeigher", "PCIWeigher", "RAMWeigher"),
        "an order of hosts that all fit; a policy of no user depends on it")}


def test_every_decision_of_the_scheduler_is_checked_by_claims_or_listed() -> None:
    """The attributes of filters lead to the checks: of metadata of aggregates, of limits and of hints."""
    found = {point.name: point.load() for kind in ("filters", "weighers")
             for point in importlib.metadata.entry_points(group=f"nova.scheduler.{kind}")}
    found |= {name: kind for name, kind in vars(stages).items() if inspect.isclass(kind) and not name.startswith("_")
              and issubclass(kind, Filter) and kind.__module__ == stages.__name__}
    by_attribute = {
        "aggregates": {name for name, kind in found.items() if getattr(kind, "by_aggregates", False)},
        "limits": {name for name, kind in found.items() if getattr(kind, "claim_limit", "")},
        "hints": {name for name, kind in found.items() if getattr(kind, "claim_hint", "")}}
    print(f"{len(found)} filters, weighers and stages; checked again: {by_attribute}, {sorted(_RECHECKED)}; "
          f"claimed: {_CLAIMED}; not checked again: {_NOT_RECHECKED}")
    assert by_attribute["limits"] == {"IoOpsFilter", "AggregateIoOpsFilter", "NumInstancesFilter",
                                      "AggregateNumInstancesFilter"}
    assert by_attribute["hints"] == {"SameHostFilter", "DifferentHostFilter"}
    groups = [*by_attribute.values(), set(_RECHECKED), set(_CLAIMED), set(_NOT_RECHECKED)]
    assert sum(map(len, groups)) == len(set().union(*groups)), "a filter is in two groups"
    assert set().union(*groups) == found.keys()


# --- cost ------------------------------------------------------------------------------------------
def test_plain_claim_takes_three_statements(core: Books, hosts: dict[str, Selection]) -> None:
    instance = server(core)
    core.statements()
    core.db.write(lambda connection: claims.claim(connection, instance, hosts["a"], asking()))
    assert [statement.split()[:2] for statement in core.statements()] == [
        ["UPDATE", "compute_nodes"], ["UPDATE", "inventories"], ["INSERT", "INTO"]]
