"""Scheduling of the fair thread pool."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova.service import fair_pool
from nova.service.fair_pool import FairThreadPool

SECONDS = 20


class Stepped:
    """A pool with one thread whose functions wait until the test lets them continue."""

    def __init__(self):
        self.pool = FairThreadPool({"build": 1})
        self.begun = []
        self.submitted = []
        self._changed = threading.Condition()
        self._permits = 0

    def submit(self, project):
        piece = (project, sum(1 for other, _ in self.submitted if other == project))
        self.submitted.append(piece)
        self.pool.submit("build", project, self._work, piece)
        self._wait_for_thread()

    def step(self):
        """Let the running function end."""
        with self._changed:
            self._permits += 1
            self._changed.notify_all()
        self._wait_for_thread()

    def _work(self, piece):
        with self._changed:
            self.begun.append(piece)
            self._changed.notify_all()
            number = len(self.begun)
            self._changed.wait_for(lambda: self._permits >= number, SECONDS)

    def _wait_for_thread(self):
        """Wait until the thread runs the expected function."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.begun) == min(self._permits + 1, len(self.submitted)), SECONDS)

    def finish(self):
        while self._permits < len(self.submitted):
            self.step()
        self.pool.shutdown()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.sampled_from("ABCD"), st.none()), max_size=40))
def test_fair_pool_runs_all_functions_round_robin_per_project(script):
    """A letter in the script submits for that project, None ends the running function."""
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
        # A function waits since it was submitted, or since the previous function of its project started.
        since = submitted_at[number]
        if piece[1]:
            since = max(since, stepped.begun.index((piece[0], piece[1] - 1)) + 1)
        before = [other for other, _ in stepped.begun[since:stepped.begun.index(piece)]]
        assert len(before) == len(set(before)), f"{piece} waited for {before}"


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["build", "power"]), st.sampled_from("ABC")), max_size=200),
       st.integers(1, 4), st.integers(1, 4))
def test_fair_pool_runs_all_functions_within_its_thread_limits(script, builders, powers):
    limits = {"build": builders, "power": powers}
    pool, mutex, ran, at_work, most = FairThreadPool(limits), threading.Lock(), [], {"build": 0, "power": 0}, {}

    def work(kind, number):
        with mutex:
            at_work[kind] += 1
            most[kind] = max(most.get(kind, 0), at_work[kind])
        time.sleep(0)
        with mutex:
            at_work[kind] -= 1
            ran.append(number)
        return number

    futures = [pool.submit(kind, project, work, kind, number) for number, (kind, project) in enumerate(script)]
    assert [future.result(SECONDS) for future in futures] == list(range(len(script)))
    pool.shutdown()
    assert sorted(ran) == list(range(len(script)))
    assert all(most[kind] <= limits[kind] for kind in most)


def test_full_kind_does_not_block_another_kind():
    pool, release = FairThreadPool({"build": 2, "power": 1}), threading.Event()
    builds = [pool.submit("build", "a", release.wait, SECONDS) for _ in range(10)]
    assert pool.submit("power", "a", lambda: "stopped").result(SECONDS) == "stopped"
    until = time.monotonic() + SECONDS
    while sum(build.running() for build in builds) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert [build.running() for build in builds] == [True] * 2 + [False] * 8
    release.set()
    assert all(build.result(SECONDS) for build in builds)
    pool.shutdown()


def test_thousand_functions_of_a_project_delay_another_project_by_one_function():
    pool, gate, order = FairThreadPool({"build": 1}), threading.Event(), []
    pool.submit("build", "big", gate.wait, SECONDS)
    for number in range(1000):
        pool.submit("build", "big", order.append, number)
    pool.submit("build", "small", order.append, "small")
    gate.set()
    pool.shutdown()
    assert order.index("small") <= 1
    assert len(order) == 1001


def test_function_can_submit_another_function():
    pool, results = FairThreadPool({"build": 1}), []

    def first():
        pool.submit("build", "a", results.append, "second")

    pool.submit("build", "a", first).result(SECONDS)
    pool.shutdown()
    assert results == ["second"]


def test_function_error_is_stored_in_the_future_and_the_thread_continues():
    pool = FairThreadPool({"build": 1})
    broken = pool.submit("build", "a", lambda: 1 / 0)
    assert pool.submit("build", "a", lambda: "fine").result(SECONDS) == "fine"
    assert isinstance(broken.exception(SECONDS), ZeroDivisionError)
    pool.shutdown()


def test_cancelled_function_never_runs():
    pool, gate, ran = FairThreadPool({"build": 1}), threading.Event(), []
    pool.submit("build", "a", gate.wait, SECONDS)
    second = pool.submit("build", "a", ran.append, 1)
    assert second.cancel()
    gate.set()
    pool.shutdown()
    assert ran == []


@pytest.mark.parametrize("cancel", [True, False])
def test_pool_shutdown_waits_for_running_functions_and_refuses_new_functions(cancel):
    pool, gate, began, ran = FairThreadPool({"build": 1}), threading.Event(), threading.Event(), []

    def first():
        began.set()
        gate.wait(SECONDS)
        ran.append("first")

    pool.submit("build", "a", first)
    second = pool.submit("build", "b", ran.append, "second")
    assert began.wait(SECONDS)
    ending = threading.Thread(target=lambda: pool.shutdown(cancel_futures=cancel))
    ending.start()
    while True:
        try:
            pool.submit("build", "a", ran.append, "other").cancel()
        except RuntimeError:
            break
    gate.set()
    ending.join(SECONDS)
    assert not ending.is_alive()
    assert ran == (["first"] if cancel else ["first", "second"])
    assert second.cancelled() == cancel


def test_pool_shutdown_waits_for_a_limited_kind_only_so_long():
    pool, gate, built = FairThreadPool({"ask": 1, "build": 1}), threading.Event(), threading.Event()
    began = [threading.Event(), threading.Event()]
    hangs = pool.submit("ask", "a", lambda: (began[0].set(), gate.wait(SECONDS)))
    build = pool.submit("build", "a", lambda: (began[1].set(), built.wait(SECONDS)))
    assert all(event.wait(SECONDS) for event in began)
    threading.Timer(0.2, built.set).start()
    pool.shutdown(longest={"ask": 0.05})
    assert build.done(), "a kind without a limit was not waited for"
    assert not hangs.done()
    gate.set()
    assert hangs.result(SECONDS)[1]


def test_hanging_thread_is_replaced_and_ends_with_its_function():
    pool, gate, began = FairThreadPool({"build": 1}, "hanging"), threading.Event(), threading.Event()
    hangs = pool.submit("build", "a", lambda: (began.set(), gate.wait(SECONDS)))
    waits = pool.submit("build", "a", lambda: "done")
    assert began.wait(SECONDS)
    assert pool.replace(hangs)
    assert waits.result(SECONDS) == "done"
    pool.shutdown()  # does not wait for the thread that hangs
    assert not hangs.done()
    gate.set()
    assert hangs.result(SECONDS)[1]
    until = time.monotonic() + SECONDS
    while any(thread.name == "hanging-build" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_replaced_threads_have_a_limit(monkeypatch):
    monkeypatch.setattr(fair_pool, "_MOST_REPLACED", 2)
    pool, gate = FairThreadPool({"build": 1}), threading.Event()
    replaced = []
    for _number in range(3):
        began = threading.Event()
        hangs = pool.submit("build", "a", lambda began=began: (began.set(), gate.wait(SECONDS)))
        assert began.wait(SECONDS)
        replaced.append(pool.replace(hangs))
    assert replaced == [True, True, False]
    gate.set()
    pool.shutdown()


def test_idle_threads_end_and_are_restarted():
    pool = FairThreadPool({"build": 3}, "idling", idle=0.01)

    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "idling-build"]

    for _ in range(2):
        for future in [pool.submit("build", "a", time.sleep, 0.01) for _ in range(6)]:
            future.result(SECONDS)
        until = time.monotonic() + SECONDS
        while threads() and time.monotonic() < until:
            time.sleep(0.01)
        assert threads() == []
    pool.shutdown()


def test_kind_without_threads_is_refused():
    pool = FairThreadPool({"build": 1})
    with pytest.raises(ValueError, match="'resize'"):
        pool.submit("resize", "a", print)
    pool.shutdown()
