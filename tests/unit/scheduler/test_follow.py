"""Updates of the fleet: despite lost, late or duplicate deltas the fleet ends equal to the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nova import exception
from nova.objects.hosts.scheduling import FleetDelta, FleetPage, HostState, NodeUsage
from nova.scheduler import follow
from nova.scheduler.hosts import Fleet
from tests.unit.scheduler.builders import node


class Books:
    """A fake conductor that returns node states in pages of two."""

    def __init__(self, *states: HostState) -> None:
        self.states = {state.node_uuid: state for state in states}
        self.readings = 0
        self.fail = 0
        self.between: Callable[[], None] = lambda: None

    def page(self, marker: str | None) -> FleetPage:
        if marker is None:
            self.readings += 1
            if self.fail:
                self.fail -= 1
                raise exception.ServiceUnavailable()
        uuids = sorted(uuid for uuid in self.states if uuid > (marker or ""))[:2]
        page = FleetPage(states=[self.states[uuid] for uuid in uuids], marker=uuids[-1] if len(uuids) == 2 else None)
        self.between()
        return page


def delta(seq: int, source: str = "c1", **values) -> FleetDelta:
    return FleetDelta(source=source, seq=seq, **values)


def used(uuid: str, generation: int) -> NodeUsage:
    return NodeUsage(node_uuid=uuid, generation=generation, num_instances=generation)


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        time.sleep(0.01)


@pytest.fixture
def following(monkeypatch):
    """Return a function that starts a follower with short intervals; stop the followers at the end."""
    monkeypatch.setattr(follow, "GRACE", 0.05)
    monkeypatch.setattr(follow, "_TICK", 0.02)
    monkeypatch.setattr(follow, "_RETRY", (0.02,))
    started = []

    def start(books: Books) -> tuple[Fleet, follow.Follower]:
        fleet = Fleet()
        follower = follow.Follower(fleet, books.page)
        started.append(follower)
        follower.start()
        assert follower.ready.wait(10)
        return fleet, follower

    yield start
    for follower in started:
        follower.stop()


def test_fleet_is_read_at_startup(following):
    books = Books(*(node(name) for name in "abcde"))
    fleet, _follower = following(books)
    assert len(fleet) == 5
    assert books.readings == 1


def test_failed_fleet_read_is_retried(following):
    books = Books(node("a"))
    books.fail = 3
    fleet, _follower = following(books)
    assert len(fleet) == 1
    assert books.readings == 4


def test_deltas_are_applied_to_the_fleet(following):
    fleet, follower = following(Books(node("a"), node("b")))
    follower.delta(delta(5, usage=[used("a", 2)], states=[node("c")], services={"b": (False, True)}))
    follower.delta(delta(6, removed=["b"]))
    assert fleet.state("a").num_instances == 2
    assert fleet.state("b") is None
    assert fleet.state("c") is not None


def test_reordered_deltas_without_a_gap_cause_no_refresh(following):
    books = Books(node("a"))
    _fleet, follower = following(books)
    for seq in (41, 43, 42, 44, 42):  # Threads handle messages concurrently.
        follower.delta(delta(seq))
    follower.delta(delta(1, source="another"))
    time.sleep(0.3)
    assert books.readings == 1


def test_gap_in_deltas_causes_a_refresh(following):
    books = Books(node("a"), node("b"))
    fleet, follower = following(books)
    follower.delta(delta(1))
    books.states["a"] = msgspec.structs.replace(books.states["a"], num_instances=9, generation=9)  # Delta 2 is lost.
    follower.delta(delta(3, usage=[used("b", 4)]))
    until(lambda: fleet.state("a").num_instances == 9)
    assert fleet.state("b").num_instances == 4
    assert books.readings == 2
    follower.delta(delta(4))
    time.sleep(0.2)
    assert books.readings == 2


def test_reload_delta_causes_a_full_refresh(following):
    books = Books(node("a"))
    fleet, follower = following(books)
    books.states = {"b": node("b")}
    follower.delta(delta(1, reload=True))
    until(lambda: fleet.state("b") is not None and fleet.state("a") is None)


def test_fleet_is_refreshed_periodically(following, settings):
    settings("scheduler", refresh_interval=1)
    books = Books(node("a"))
    fleet, _follower = following(books)
    books.states["a"] = node("a", up=False)
    until(lambda: not fleet.state("a").up)


def test_deltas_during_a_refresh_are_applied():
    """Deltas received during a refresh take precedence over the outdated pages."""
    books = Books(*(node(name) for name in "abcd"))
    fleet = Fleet()
    follower = follow.Follower(fleet, books.page)
    follower.read_all()

    def meanwhile() -> None:
        books.between = lambda: None
        follower.delta(delta(1, usage=[used("a", 5)], services={"b": (False, False)}, states=[node("z")]))
        follower.delta(delta(2, removed=["d"]))

    books.between = meanwhile
    follower.read_all()
    assert fleet.state("a").num_instances == 5
    assert not fleet.state("b").up
    assert fleet.state("d") is None
    assert fleet.state("z") is not None


def test_late_service_delta_does_not_override_a_newer_delta():
    fleet = Fleet()
    follower = follow.Follower(fleet, Books(node("a")).page)
    follower.read_all()
    follower.delta(delta(7))
    follower.delta(delta(9, services={"a": (False, False)}))
    follower.delta(delta(8, services={"a": (True, False)}))
    assert not fleet.state("a").up


def test_slow_conductor_does_not_override_newer_service_state():
    fleet = Fleet()
    follower = follow.Follower(fleet, Books(node("a")).page)
    follower.read_all()

    def tell(source, up, generation):
        follower.delta(FleetDelta(source=source, seq=1, services={"a": (up, False)},
                                  service_generations={"a": generation}))

    tell("quick", False, 12)
    tell("slow", True, 11)
    assert not fleet.state("a").up


def test_interrupted_refresh_leaves_the_fleet_usable():
    books = Books(*(node(name) for name in "abcd"))
    fleet = Fleet()
    follower = follow.Follower(fleet, books.page)
    follower.read_all()
    books.fail = 1
    with pytest.raises(exception.ServiceUnavailable):
        follower.read_all()
    follower.delta(delta(1, usage=[used("a", 5)]))
    assert len(fleet) == 4
    assert fleet.state("a").num_instances == 5


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.data())
def test_reordered_and_lost_deltas_with_a_refresh_match_the_database(data):
    """Apply shuffled, duplicated and dropped deltas of random changes around a full refresh."""
    books = Books(*(node(name) for name in "abc"))
    fleet = Fleet()
    follower = follow.Follower(fleet, books.page)
    follower.read_all()
    deltas = []
    for seq in range(1, data.draw(st.integers(1, 12)) + 1):
        uuid = data.draw(st.sampled_from("abc"))
        state = books.states[uuid]
        books.states[uuid] = state = msgspec.structs.replace(
            state, generation=state.generation + 1, num_instances=state.num_instances + 1)
        deltas.append(delta(seq, usage=[NodeUsage(
            node_uuid=uuid, generation=state.generation, num_instances=state.num_instances)]))
    arriving = data.draw(st.permutations(deltas + data.draw(st.lists(st.sampled_from(deltas), max_size=4))))
    lost = set(data.draw(st.lists(st.sampled_from(range(len(arriving))), max_size=3)))
    kept = [each for index, each in enumerate(arriving) if index not in lost]
    middle = len(kept) // 2
    for each in kept[:middle]:
        follower.delta(each)
    follower.read_all()
    for each in kept[middle:]:
        follower.delta(each)
    for uuid, state in books.states.items():
        assert fleet.state(uuid).num_instances == state.num_instances


def test_concurrent_choices_deltas_and_refreshes_end_consistent():
    """Run choices, deltas and refreshes concurrently; the last delta takes effect."""
    from tests.unit.scheduler.builders import choose, spec

    books = Books(*(node(f"n{number}", vcpus=1000, ram=10**9, disk=10**6) for number in range(20)))
    fleet = Fleet()
    follower = follow.Follower(fleet, books.page)
    follower.read_all()
    errors: list[BaseException] = []

    def repeat(function: Callable[[int], object]) -> threading.Thread:
        def run() -> None:
            try:
                for turn in range(60):
                    function(turn)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [
        repeat(lambda _turn: choose(fleet, spec(3))),
        repeat(lambda turn: follower.delta(delta(turn + 1, usage=[used(f"n{turn % 20}", turn + 2)]))),
        repeat(lambda turn: follower.delta(delta(turn + 1, source="c2", states=[node(f"x{turn % 3}")]))),
        repeat(lambda turn: follower.delta(delta(turn + 1, source="c3", removed=[f"x{turn % 3}"]))),
        repeat(lambda _turn: follower.read_all()),
    ]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    for number in range(20):
        follower.delta(delta(1, source="last", usage=[used(f"n{number}", 1000)]))
        assert fleet.state(f"n{number}").num_instances == 1000
