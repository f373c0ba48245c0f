"""Aggregates and zones: one zone per host, and servers never change zones behind their owner's back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nova import exception
from nova.conductor.announcer import report_nodes
from nova.conductor.endpoints.aggregates import Aggregates
from nova.conductor.endpoints.availability_zones import Zones
from nova.conductor.endpoints.heartbeat import Heartbeat
from nova.conductor.endpoints.services import Services
from nova.db import aggregates as db
from tests.unit.conductor.books import Books, ctx, node, server


@pytest.fixture
def aggregates(core: Books) -> Aggregates:
    for host in ("h1", "h2"):
        Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 1)
    Heartbeat(core).register(ctx(), "c1", "nova-conductor", "conductor", 1)
    core.sent.take()
    return Aggregates(core)


def test_create_show_rename_delete(aggregates: Aggregates) -> None:
    made = aggregates.create(ctx(), "rack1", "z1")
    assert (made.metadata, made.hosts, made.updated_at) == ({"availability_zone": "z1"}, [], None)
    assert aggregates.get(ctx(), made.id) == made
    other = aggregates.create(ctx(), "rack2")
    assert other.metadata == {}
    assert [found.name for found in aggregates.index(ctx())] == ["rack1", "rack2"]
    assert aggregates.update(ctx(), made.id, name="rack3").name == "rack3"
    aggregates.delete(ctx(), made.id)
    for call in (lambda: aggregates.get(ctx(), made.id), lambda: aggregates.delete(ctx(), made.id),
                 lambda: aggregates.get(ctx(), 2**70), lambda: aggregates.add_host(ctx(), made.id, "h1"),
                 lambda: aggregates.update(ctx(), made.id, name="x")):
        with pytest.raises(exception.AggregateNotFound):
            call()


def test_names_are_unique(aggregates: Aggregates) -> None:
    aggregates.create(ctx(), "rack1")
    other = aggregates.create(ctx(), "rack2")
    with pytest.raises(exception.AggregateNameExists):
        aggregates.create(ctx(), "rack1")
    with pytest.raises(exception.AggregateNameExists):
        aggregates.update(ctx(), other.id, name="rack1")
    assert aggregates.update(ctx(), other.id, name="rack2").name == "rack2"


def test_a_host_that_comes_or_goes_is_told_with_its_nodes(aggregates: Aggregates, core: Books) -> None:
    report_nodes(core, "h1", [node("h1", "n1"), node("h1", "n2")])
    made = aggregates.create(ctx(), "rack1", "east")
    before = {state.node: state.generation for delta in core.sent.take() for state in delta.states}
    aggregates.add_host(ctx(), made.id, "h1")
    [delta] = core.sent.take()
    assert not delta.reload
    assert {state.node: (state.availability_zone, state.aggregate_ids) for state in delta.states} == {
        "n1": ("east", [made.id]), "n2": ("east", [made.id])}
    # Schedulers take no older state of a node for a newer one.
    assert {state.node: state.generation for state in delta.states} == {
        name: generation + 1 for name, generation in before.items()}
    aggregates.remove_host(ctx(), made.id, "h1")
    [delta] = core.sent.take()
    assert {state.availability_zone for state in delta.states} == {"nova"}


def test_with_many_nodes_on_a_host_schedulers_look_again(aggregates: Aggregates, core: Books) -> None:
    report_nodes(core, "h1", [node("h1", f"n{number}") for number in range(501)])
    made = aggregates.create(ctx(), "rack1")
    core.sent.take()
    aggregates.add_host(ctx(), made.id, "h1")
    assert [delta.reload for delta in core.sent.take()] == [True]


def test_hosts_come_and_go(aggregates: Aggregates, core: Books) -> None:
    made = aggregates.create(ctx(), "rack1")
    assert core.sent.take() == []
    assert aggregates.add_host(ctx(), made.id, "h1").hosts == ["h1"]
    with pytest.raises(exception.AggregateHostExists):
        aggregates.add_host(ctx(), made.id, "h1")
    for host in ("h9", "c1"):
        with pytest.raises(exception.ComputeHostNotFound):
            aggregates.add_host(ctx(), made.id, host)
    with pytest.raises(exception.InvalidAggregateAction, match="not empty"):
        aggregates.delete(ctx(), made.id)
    assert core.sent.take() == [], "what failed is not told"
    assert aggregates.remove_host(ctx(), made.id, "h1").hosts == []
    with pytest.raises(exception.AggregateHostNotFound):
        aggregates.remove_host(ctx(), made.id, "h1")


def test_metadata_is_merged_and_null_deletes(aggregates: Aggregates) -> None:
    made = aggregates.create(ctx(), "rack1")
    aggregates.set_metadata(ctx(), made.id, {"ssd": "true", "gpu": "a"})
    assert aggregates.set_metadata(ctx(), made.id, {"ssd": None, "gpu": "b", "none": None}).metadata == {"gpu": "b"}
    assert aggregates.get(ctx(), made.id).metadata == {"gpu": "b"}


def test_a_host_is_in_one_zone(aggregates: Aggregates) -> None:
    first, second = aggregates.create(ctx(), "rack1", "z1"), aggregates.create(ctx(), "rack2", "z2")
    same = aggregates.create(ctx(), "rack3", "z1")
    none = aggregates.create(ctx(), "ssd")
    aggregates.add_host(ctx(), first.id, "h1")
    with pytest.raises(exception.AggregateHostConflict, match="h1 is already in availability zone z1"):
        aggregates.add_host(ctx(), second.id, "h1")
    aggregates.add_host(ctx(), same.id, "h1")
    aggregates.add_host(ctx(), none.id, "h1")
    with pytest.raises(exception.InvalidAggregateAction, match="already in availability zone z1"):
        aggregates.set_metadata(ctx(), none.id, {"availability_zone": "z3"})
    with pytest.raises(exception.InvalidAggregateAction):
        aggregates.update(ctx(), first.id, availability_zone="z4")


def _moves() -> list[tuple[str, Callable[[Aggregates, int, int], object], type[exception.NovaException]]]:
    return [
        ("add", lambda aggregates, _full, empty: aggregates.add_host(ctx(), empty, "h2"),
         exception.AggregateHostConflict),
        ("remove", lambda aggregates, full, _empty: aggregates.remove_host(ctx(), full, "h1"),
         exception.AggregateHostConflict),
        ("update", lambda aggregates, full, _empty: aggregates.update(ctx(), full, availability_zone="z9"),
         exception.InvalidAggregateAction),
        ("unset", lambda aggregates, full, _empty: aggregates.set_metadata(ctx(), full, {"availability_zone": None}),
         exception.InvalidAggregateAction)]


@pytest.mark.parametrize(("move", "error"), [pytest.param(move, error, id=name) for name, move, error in _moves()])
def test_servers_do_not_change_zones(aggregates: Aggregates, core: Books, move: Callable[..., object],
                                     error: type[exception.NovaException]) -> None:
    full, empty = aggregates.create(ctx(), "rack1", "z1"), aggregates.create(ctx(), "rack2", "z2")
    aggregates.add_host(ctx(), full.id, "h1")
    servers = [server(core, "h1"), server(core, "h2")]
    before = aggregates.index(ctx())
    with pytest.raises(error, match="has servers"):
        move(aggregates, full.id, empty.id)
    assert aggregates.index(ctx()) == before
    from nova.db import servers as rows

    for one in servers:
        core.db.write(lambda connection, one=one: rows.update(connection, one.uuid, {"deleted": True}))
    move(aggregates, full.id, empty.id)


def test_a_change_that_moves_nobody_is_fine_with_servers(aggregates: Aggregates, core: Books) -> None:
    made = aggregates.create(ctx(), "rack1", "nova")
    server(core, "h1")
    aggregates.add_host(ctx(), made.id, "h1")  # nova is the default zone
    aggregates.set_metadata(ctx(), made.id, {"ssd": "true"})


def test_zones(aggregates: Aggregates, core: Books) -> None:
    made = aggregates.create(ctx(), "rack1", "z1")
    aggregates.create(ctx(), "nobody", "z2")
    aggregates.add_host(ctx(), made.id, "h1")
    zones = Zones(core)
    assert zones.index(ctx()) == {"z1": True, "nova": True}
    Services(core).update_by_host(ctx(), "h1", "nova-compute", disabled=True)
    assert zones.index(ctx()) == {"z1": False, "nova": True}
    assert core.db.read(db.zones) == {"nova"}
    assert core.db.read(lambda connection: db.zone_of(connection, "h1")) == "z1"
    assert core.db.read(lambda connection: db.zone_of(connection, "h2")) == "nova"
    detail = zones.detail(ctx())
    assert {zone: [service.host for service in found] for zone, found in detail.items()} == {
        "z1": ["h1"], "nova": ["h2"], "internal": ["c1"]}
