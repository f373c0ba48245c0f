"""The thread pool that works in turns."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova.service.turns import Turns

SECONDS = 20


class Stepped:
    """A pool with one thread of which every piece of work waits until it is told to go on."""

    def __init__(self):
        self.turns = Turns({"build": 1})
        self.begun = []
        self.submitted = []
        self._changed = threading.Condition()
        self._permits = 0

    def submit(self, project):
        piece = (project, sum(1 for other, _ in self.submitted if other == project))
        self.submitted.append(piece)
        self.turns.submit("build", project, self._work, piece)
        self._settle()

    def step(self):
        """End what is at work."""
        with self._changed:
            self._permits += 1
            self._changed.notify_all()
        self._settle()

    def _work(self, piece):
        with self._changed:
            self.begun.append(piece)
            self._changed.notify_all()
            number = len(self.begun)
            self._changed.wait_for(lambda: self._permits >= number, SECONDS)

    def _settle(self):
        """Until the thread is at what it should be at."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.begun) == min(self._permits + 1, len(self.submitted)), SECONDS)

    def finish(self):
        while self._permits < len(self.submitted):
            self.step()
        self.turns.shutdown()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.sampled_from("ABCD"), st.none()), max_size=40))
def test_nothing_is_lost_and_no_project_waits_for_more_than_one_turn_of_each_other(script):
    """A letter submits for that project, None ends what is at work."""
    stepped, submitted_at = Stepped(), {}
    for project in script:
        if project is not None:
            submitted_at[len(stepped.submitted)] = len(stepped.begun)
            stepped.submit(project)
        elif len(stepped.begun) > stepped._permits:
            stepped.step()
    stepped.finish()
    assert sorted(stepped.begun) == sorted(stepped.submitted)
    for project in "ABCD":
        mine = [piece for piece in stepped.begun if piece[0] == project]
        assert mine == [piece for piece in stepped.submitted if piece[0] == project]
    for number, piece in enumerate(stepped.submitted):
        # It waits from when it was submitted, or from when the one before it of its project began.
        since = submitted_at[number]
        if piece[1]:
            since = max(since, stepped.begun.index((piece[0], piece[1] - 1)) + 1)
        before = [other for other, _ in stepped.begun[since:stepped.begun.index(piece)]]
        assert len(before) == len(set(before)), f"{piece} waited for {before}"


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["build", "power"]), st.sampled_from("ABC")), max_size=200),
       st.integers(1, 4), st.integers(1, 4))
def test_many_threads_lose_nothing_and_keep_their_number(script, builders, powers):
    limits = {"build": builders, "power": powers}
    turns, mutex, ran, at_work, most = Turns(limits), threading.Lock(), [], {"build": 0, "power": 0}, {}

    def work(kind, number):
        with mutex:
            at_work[kind] += 1
            most[kind] = max(most.get(kind, 0), at_work[kind])
        time.sleep(0)
        with mutex:
            at_work[kind] -= 1
            ran.append(number)
        return number

    futures = [turns.submit(kind, project, work, kind, number) for number, (kind, project) in enumerate(script)]
    assert [future.result(SECONDS) for future in futures] == list(range(len(script)))
    turns.shutdown()
    assert sorted(ran) == list(range(len(script)))
    assert all(most[kind] <= limits[kind] for kind in most)


def test_a_kind_that_is_full_does_not_hold_up_another():
    turns, release = Turns({"build": 2, "power": 1}), threading.Event()
    builds = [turns.submit("build", "a", release.wait, SECONDS) for _ in range(10)]
    assert turns.submit("power", "a", lambda: "stopped").result(SECONDS) == "stopped"
    until = time.monotonic() + SECONDS
    while turns.running("build") < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (turns.waiting("build"), turns.waiting("power")) == (8, 0)
    release.set()
    assert all(build.result(SECONDS) for build in builds)
    turns.shutdown()


def test_a_thousand_of_one_project_delay_the_one_of_another_by_one_turn():
    turns, gate, order = Turns({"build": 1}), threading.Event(), []
    turns.submit("build", "big", gate.wait, SECONDS)
    for number in range(1000):
        turns.submit("build", "big", order.append, number)
    turns.submit("build", "small", order.append, "small")
    gate.set()
    turns.shutdown()
    assert order.index("small") <= 1
    assert len(order) == 1001


def test_what_is_run_may_submit_more():
    turns, found = Turns({"build": 1}), []

    def first():
        turns.submit("build", "a", found.append, "second")

    turns.submit("build", "a", first).result(SECONDS)
    turns.shutdown()
    assert found == ["second"]


def test_an_error_is_the_futures_and_the_thread_goes_on():
    turns = Turns({"build": 1})
    broken = turns.submit("build", "a", lambda: 1 / 0)
    assert turns.submit("build", "a", lambda: "fine").result(SECONDS) == "fine"
    assert isinstance(broken.exception(SECONDS), ZeroDivisionError)
    turns.shutdown()


def test_a_cancelled_one_never_runs():
    turns, gate, ran = Turns({"build": 1}), threading.Event(), []
    turns.submit("build", "a", gate.wait, SECONDS)
    second = turns.submit("build", "a", ran.append, 1)
    assert second.cancel()
    gate.set()
    turns.shutdown()
    assert ran == []


@pytest.mark.parametrize("cancel", [True, False])
def test_shutdown_waits_for_what_runs_and_takes_nothing_more(cancel):
    turns, gate, began, ran = Turns({"build": 1}), threading.Event(), threading.Event(), []

    def first():
        began.set()
        gate.wait(SECONDS)
        ran.append("first")

    turns.submit("build", "a", first)
    second = turns.submit("build", "b", ran.append, "second")
    assert began.wait(SECONDS)
    ending = threading.Thread(target=lambda: turns.shutdown(cancel_futures=cancel))
    ending.start()
    while True:
        try:
            turns.submit("build", "a", ran.append, "other").cancel()
        except RuntimeError:
            break
    gate.set()
    ending.join(SECONDS)
    assert not ending.is_alive()
    assert ran == (["first"] if cancel else ["first", "second"])
    assert second.cancelled() == cancel


def test_threads_end_when_they_are_idle_and_are_made_again():
    turns = Turns({"build": 3}, "idling", idle=0.01)

    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "idling-build"]

    for _ in range(2):
        for future in [turns.submit("build", "a", time.sleep, 0.01) for _ in range(6)]:
            future.result(SECONDS)
        until = time.monotonic() + SECONDS
        while threads() and time.monotonic() < until:
            time.sleep(0.01)
        assert threads() == []
    turns.shutdown()


def test_how_long_the_oldest_has_waited_is_told():
    turns, gate = Turns({"build": 1, "power": 1}), threading.Event()
    began = threading.Event()
    turns.submit("build", "a", lambda: (began.set(), gate.wait(SECONDS)))
    assert began.wait(SECONDS)
    assert turns.longest_wait() == 0.0
    turns.submit("build", "b", gate.wait, SECONDS)
    time.sleep(0.02)
    assert turns.longest_wait("build") >= 0.02
    assert turns.longest_wait("power") == 0.0
    gate.set()
    turns.shutdown()


def test_a_kind_without_threads_is_refused():
    turns = Turns({"build": 1})
    with pytest.raises(ValueError, match="'resize'"):
        turns.submit("resize", "a", print)
    turns.shutdown()
