"""Following the fleet: whatever is lost, late or doubled, the fleet ends as the books are."""

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
    """The conductor's responses, in pages of two nodes."""

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
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


@pytest.fixture
def following(monkeypatch):
    """Makes started followers, with short times, and stops them."""
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


def test_the_fleet_is_read_at_the_start(following):
    books = Books(*(node(name) for name in "abcde"))
    fleet, _follower = following(books)
    assert len(fleet) == 5
    assert books.readings == 1


def test_a_failed_reading_is_tried_again(following):
    books = Books(node("a"))
    books.fail = 3
    fleet, _follower = following(books)
    assert len(fleet) == 1
    assert books.readings == 4


def test_deltas_are_applied(following):
    fleet, follower = following(Books(node("a"), node("b")))
    follower.delta(delta(5, usage=[used("a", 2)], states=[node("c")], services={"b": (False, True)}))
    follower.delta(delta(6, removed=["b"]))
    assert fleet.state("a").num_instances == 2
    assert fleet.state("b") is None
    assert fleet.state("c") is not None


def test_no_reading_without_a_gap(following):
    books = Books(node("a"))
    _fleet, follower = following(books)
    for seq in (41, 43, 42, 44, 42):  # threads handle messages side by side
        follower.delta(delta(seq))
    follower.delta(delta(1, source="another"))
    time.sleep(0.3)
    assert books.readings == 1


def test_a_gap_is_healed_by_a_reading(following):
    books = Books(node("a"), node("b"))
    fleet, follower = following(books)
    follower.delta(delta(1))
    books.states["a"] = msgspec.structs.replace(books.states["a"], num_instances=9, generation=9)  # delta 2 is lost
    follower.delta(delta(3, usage=[used("b", 4)]))
    until(lambda: fleet.state("a").num_instances == 9)
    assert fleet.state("b").num_instances == 4
    assert books.readings == 2
    follower.delta(delta(4))
    time.sleep(0.2)
    assert books.readings == 2


def test_reload_reads_everything(following):
    books = Books(node("a"))
    fleet, follower = following(books)
    books.states = {"b": node("b")}
    follower.delta(delta(1, reload=True))
    until(lambda: fleet.state("b") is not None and fleet.state("a") is None)


def test_it_is_read_again_now_and_then(following, settings):
    settings("scheduler", refresh_interval=1)
    books = Books(node("a"))
    fleet, _follower = following(books)
    books.states["a"] = node("a", up=False)
    until(lambda: not fleet.state("a").up)


def test_what_happens_during_a_reading_is_not_lost():
    """Each page is outdated when it arrives: deltas sent meanwhile must win."""
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


def test_a_service_report_that_comes_late_does_not_undo_a_newer_one():
    fleet = Fleet()
    follower = follow.Follower(fleet, Books(node("a")).page)
    follower.read_all()
    follower.delta(delta(7))
    follower.delta(delta(9, services={"a": (False, False)}))
    follower.delta(delta(8, services={"a": (True, False)}))
    assert not fleet.state("a").up


def test_a_conductor_that_is_slow_to_tell_of_a_service_does_not_undo_what_another_told():
    fleet = Fleet()
    follower = follow.Follower(fleet, Books(node("a")).page)
    follower.read_all()

    def tell(source, up, generation):
        follower.delta(FleetDelta(source=source, seq=1, services={"a": (up, False)},
                                  service_generations={"a": generation}))

    tell("quick", False, 12)
    tell("slow", True, 11)
    assert not fleet.state("a").up


def test_a_reading_that_breaks_off_leaves_the_fleet_usable():
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
def test_deltas_in_any_order_with_losses_end_as_the_books_are(data):
    """Random changes of the books; deltas shuffled, doubled, dropped; then one reading."""
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


def test_many_threads_at_once():
    """Choosing, deltas and readings side by side: nothing breaks and the last word counts."""
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
