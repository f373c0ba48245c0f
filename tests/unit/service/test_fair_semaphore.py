"""Admission of threads by a fair semaphore."""

import contextlib
import threading

import pytest

from nova.service.fair_pool import FairSemaphore

SECONDS = 20
# Longer than any test, so that no thread counts as stalled.
NEVER = 3600.0


class Holders:
    """Threads that hold a slot of a semaphore until the test releases them."""

    def __init__(self, semaphore):
        self.semaphore = semaphore
        self.holding = []
        self.entered = []
        self._changed = threading.Condition()
        self._released = set()
        self._threads = []

    def release_all(self):
        with self._changed:
            self._released.update(f"{project}{number}" for project in "ab" for number in range(20))
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(SECONDS)

    def start(self, project, name):
        """Start a thread and return when it holds a slot or waits for one."""
        waited = self.semaphore.waiting()
        thread = threading.Thread(target=self._hold, args=(project, name), daemon=True)
        self._threads.append(thread)
        thread.start()
        self.until(lambda: name in self.entered or self.semaphore.waiting() > waited)

    def release(self, name):
        """Release the slot of a thread and return when the next thread holds it."""
        waiting, holding = self.semaphore.waiting(), len(self.holding)
        with self._changed:
            self._released.add(name)
            self._changed.notify_all()
        self.until(lambda: name not in self.holding and len(self.holding) >= (holding if waiting else holding - 1))

    def until(self, condition):
        with self._changed:
            while not condition():
                assert self._changed.wait(0.001) or condition() or self._alive()

    def _alive(self):
        return any(thread.is_alive() for thread in self._threads)

    def _hold(self, project, name):
        with self.semaphore.slot(project):
            with self._changed:
                self.holding.append(name)
                self.entered.append(name)
                self._changed.notify_all()
                self._changed.wait_for(lambda: name in self._released, SECONDS)
                self.holding.remove(name)
                self._changed.notify_all()


@contextlib.contextmanager
def holders(slots, stalled_after=NEVER):
    threads = Holders(FairSemaphore(slots, stalled_after))
    try:
        yield threads
    finally:
        threads.release_all()


def test_fair_semaphore_limits_the_number_of_holders() -> None:
    with holders(2) as threads:
        for number in range(5):
            threads.start("a", f"a{number}")
        assert threads.holding == ["a0", "a1"]
        threads.release("a0")
        assert threads.holding == ["a1", "a2"]


def test_fair_semaphore_serves_projects_round_robin() -> None:
    with holders(1) as threads:
        for number in range(6):
            threads.start("a", f"a{number}")
        threads.start("b", "b0")
        threads.release("a0")
        threads.release("a1")
        threads.release("b0")
        assert threads.entered == ["a0", "a1", "b0", "a2"]


def test_stalled_thread_delays_no_other_thread() -> None:
    with holders(2, stalled_after=0.02) as threads:
        for number in range(6):
            threads.start("a", f"a{number}")
        threads.until(lambda: len(threads.holding) == 6)
        threads.release_all()
        # A thread whose slot was reassigned does not release another slot.
        assert threads.semaphore.free() == 2


def test_failed_thread_releases_its_slot() -> None:
    semaphore = FairSemaphore(1, NEVER)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), semaphore.slot("a"):
            raise ZeroDivisionError
    assert semaphore.free() == 1
