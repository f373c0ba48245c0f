"""Aggregates and availability zones: a single zone per host, and no change of the zone of existing servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nova import exception
from nova.conductor.announcer import report_nodes
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conductor.endpoints.hosts import Aggregates, Services, Zones
from nova.db.hosts import aggregates
from tests.unit.conductor.books import Books, ctx, node, server


@pytest.fixture
def endpoint(core: Books) -> Aggregates:
    for host in ("h1", "h2"):
        Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 1)
    Heartbeat(core).register(ctx(), "c1", "nova-conductor", "conductor", 1)
    core.sent.take()
    return Aggregates(core)


def test_aggregate_create_show_rename_delete(endpoint: Aggregates) -> None:
    made = endpoint.create(ctx(), "rack1", "z1")
    assert (made.metadata, made.hosts, made.updated_at) == ({"availability_zone": "z1"}, [], None)
    assert endpoint.get(ctx(), made.id) == made
    other = endpoint.create(ctx(), "rack2")
    assert other.metadata == {}
    assert [found.name for found in endpoint.index(ctx())] == ["rack1", "rack2"]
    assert endpoint.update(ctx(), made.id, name="rack3").name == "rack3"
    endpoint.delete(ctx(), made.id)
    for call in (lambda: endpoint.get(ctx(), made.id), lambda: endpoint.delete(ctx(), made.id),
                 lambda: endpoint.get(ctx(), 2**70), lambda: endpoint.add_host(ctx(), made.id, "h1"),
                 lambda: endpoint.update(ctx(), made.id, name="x")):
        with pytest.raises(exception.AggregateNotFound):
            call()


def test_aggregate_names_are_unique(endpoint: Aggregates) -> None:
    endpoint.create(ctx(), "rack1")
    other = endpoint.create(ctx(), "rack2")
    with pytest.raises(exception.AggregateNameExists):
        endpoint.create(ctx(), "rack1")
    with pytest.raises(exception.AggregateNameExists):
        endpoint.update(ctx(), other.id, name="rack1")
    assert endpoint.update(ctx(), other.id, name="rack2").name == "rack2"


def test_aggregate_host_change_publishes_the_states_of_its_nodes(endpoint: Aggregates, core: Books) -> None:
    report_nodes(core, "h1", [node("h1", "n1"), node("h1", "n2")])
    made = endpoint.create(ctx(), "rack1", "east")
    before = {state.node: state.generation for delta in core.sent.take() for state in delta.states}
    endpoint.add_host(ctx(), made.id, "h1")
    [delta] = core.sent.take()
    assert not delta.reload
    assert {state.node: (state.availability_zone, state.aggregate_ids) for state in delta.states} == {
        "n1": ("east", [made.id]), "n2": ("east", [made.id])}
    # Schedulers ignore a node state with an older generation.
    assert {state.node: state.generation for state in delta.states} == {
        name: generation + 1 for name, generation in before.items()}
    endpoint.remove_host(ctx(), made.id, "h1")
    [delta] = core.sent.take()
    assert {state.availability_zone for state in delta.states} == {"nova"}


def test_aggregate_host_change_with_many_nodes_publishes_a_reload(endpoint: Aggregates, core: Books) -> None:
    report_nodes(core, "h1", [node("h1", f"n{number}") for number in range(501)])
    made = endpoint.create(ctx(), "rack1")
    core.sent.take()
    endpoint.add_host(ctx(), made.id, "h1")
    assert [delta.reload for delta in core.sent.take()] == [True]


def test_aggregate_hosts_are_added_and_removed_once(endpoint: Aggregates, core: Books) -> None:
    made = endpoint.create(ctx(), "rack1")
    assert core.sent.take() == []
    assert endpoint.add_host(ctx(), made.id, "h1").hosts == ["h1"]
    with pytest.raises(exception.AggregateHostExists):
        endpoint.add_host(ctx(), made.id, "h1")
    for host in ("h9", "c1"):
        with pytest.raises(exception.ComputeHostNotFound):
            endpoint.add_host(ctx(), made.id, host)
    with pytest.raises(exception.InvalidAggregateAction, match="not empty"):
        endpoint.delete(ctx(), made.id)
    assert core.sent.take() == [], "a refused change was published"
    assert endpoint.remove_host(ctx(), made.id, "h1").hosts == []
    with pytest.raises(exception.AggregateHostNotFound):
        endpoint.remove_host(ctx(), made.id, "h1")


def test_aggregate_metadata_is_merged_and_null_deletes_keys(endpoint: Aggregates) -> None:
    made = endpoint.create(ctx(), "rack1")
    endpoint.set_metadata(ctx(), made.id, {"ssd": "true", "gpu": "a"})
    assert endpoint.set_metadata(ctx(), made.id, {"ssd": None, "gpu": "b", "none": None}).metadata == {"gpu": "b"}
    assert endpoint.get(ctx(), made.id).metadata == {"gpu": "b"}


def test_host_belongs_to_a_single_availability_zone(endpoint: Aggregates) -> None:
    first, second = endpoint.create(ctx(), "rack1", "z1"), endpoint.create(ctx(), "rack2", "z2")
    same = endpoint.create(ctx(), "rack3", "z1")
    none = endpoint.create(ctx(), "ssd")
    endpoint.add_host(ctx(), first.id, "h1")
    with pytest.raises(exception.AggregateHostConflict, match="h1 is already in availability zone z1"):
        endpoint.add_host(ctx(), second.id, "h1")
    endpoint.add_host(ctx(), same.id, "h1")
    endpoint.add_host(ctx(), none.id, "h1")
    with pytest.raises(exception.InvalidAggregateAction, match="already in availability zone z1"):
        endpoint.set_metadata(ctx(), none.id, {"availability_zone": "z3"})
    with pytest.raises(exception.InvalidAggregateAction):
        endpoint.update(ctx(), first.id, availability_zone="z4")


def _moves() -> list[tuple[str, Callable[[Aggregates, int, int], object], type[exception.NovaException]]]:
    return [
        ("add", lambda endpoint, _full, empty: endpoint.add_host(ctx(), empty, "h2"),
         exception.AggregateHostConflict),
        ("remove", lambda endpoint, full, _empty: endpoint.remove_host(ctx(), full, "h1"),
         exception.AggregateHostConflict),
        ("update", lambda endpoint, full, _empty: endpoint.update(ctx(), full, availability_zone="z9"),
         exception.InvalidAggregateAction),
        ("unset", lambda endpoint, full, _empty: endpoint.set_metadata(ctx(), full, {"availability_zone": None}),
         exception.InvalidAggregateAction)]


@pytest.mark.parametrize(("move", "error"), [pytest.param(move, error, id=name) for name, move, error in _moves()])
def test_zone_change_of_a_host_with_servers_is_refused(endpoint: Aggregates, core: Books, move: Callable[..., object],
                                                       error: type[exception.NovaException]) -> None:
    full, empty = endpoint.create(ctx(), "rack1", "z1"), endpoint.create(ctx(), "rack2", "z2")
    endpoint.add_host(ctx(), full.id, "h1")
    members = [server(core, "h1"), server(core, "h2")]
    before = endpoint.index(ctx())
    with pytest.raises(error, match="has servers"):
        move(endpoint, full.id, empty.id)
    assert endpoint.index(ctx()) == before
    from nova.db.servers import servers

    for member in members:
        core.db.write(lambda connection, member=member: servers.update(connection, member.uuid, {"deleted": True}))
    move(endpoint, full.id, empty.id)


def test_aggregate_change_without_zone_change_is_allowed_with_servers(endpoint: Aggregates, core: Books) -> None:
    made = endpoint.create(ctx(), "rack1", "nova")
    server(core, "h1")
    endpoint.add_host(ctx(), made.id, "h1")  # "nova" is the default zone
    endpoint.set_metadata(ctx(), made.id, {"ssd": "true"})


def test_availability_zones_list_hosts_and_their_state(endpoint: Aggregates, core: Books) -> None:
    made = endpoint.create(ctx(), "rack1", "z1")
    endpoint.create(ctx(), "nobody", "z2")
    endpoint.add_host(ctx(), made.id, "h1")
    zones = Zones(core)
    assert zones.index(ctx()) == {"z1": True, "nova": True}
    Services(core).update_by_host(ctx(), "h1", "nova-compute", disabled=True)
    assert zones.index(ctx()) == {"z1": False, "nova": True}
    assert core.db.read(aggregates.zones) == {"nova"}
    assert core.db.read(lambda connection: aggregates.zone_of(connection, "h1")) == "z1"
    assert core.db.read(lambda connection: aggregates.zone_of(connection, "h2")) == "nova"
    detail = zones.detail(ctx())
    assert {zone: [service.host for service in found] for zone, found in detail.items()} == {
        "z1": ["h1"], "nova": ["h2"], "internal": ["c1"]}
