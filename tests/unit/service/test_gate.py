"""The gate that lets some threads through at a time."""

import contextlib
import threading

import pytest

from nova.service.gate import Gate

SECONDS = 20
# Longer than any test: nobody is taken to stand still.
PATIENT = 3600.0


class Visitors:
    """Threads that go through a gate, and stay inside until they are told to leave."""

    def __init__(self, gate):
        self.gate = gate
        self.inside = []
        self.entered = []
        self._changed = threading.Condition()
        self._told = set()
        self._threads = []

    def let_all_leave(self):
        with self._changed:
            self._told.update(f"{project}{number}" for project in "ab" for number in range(20))
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(SECONDS)

    def come(self, project, name):
        """Returns when the visitor is inside, or waits."""
        waited = self.gate.waiting()
        thread = threading.Thread(target=self._visit, args=(project, name), daemon=True)
        self._threads.append(thread)
        thread.start()
        self.until(lambda: name in self.entered or self.gate.waiting() > waited)

    def leave(self, name):
        """Returns when the visitor has left, and whoever is next is inside."""
        waiting, inside = self.gate.waiting(), len(self.inside)
        with self._changed:
            self._told.add(name)
            self._changed.notify_all()
        self.until(lambda: name not in self.inside and len(self.inside) >= (inside if waiting else inside - 1))

    def until(self, condition):
        with self._changed:
            while not condition():
                assert self._changed.wait(0.001) or condition() or self._alive()

    def _alive(self):
        return any(thread.is_alive() for thread in self._threads)

    def _visit(self, project, name):
        with self.gate.turn(project):
            with self._changed:
                self.inside.append(name)
                self.entered.append(name)
                self._changed.notify_all()
                self._changed.wait_for(lambda: name in self._told, SECONDS)
                self.inside.remove(name)
                self._changed.notify_all()


@contextlib.contextmanager
def visitors(places, patience=PATIENT):
    found = Visitors(Gate(places, patience))
    try:
        yield found
    finally:
        found.let_all_leave()


def test_no_more_are_inside_than_there_are_places() -> None:
    with visitors(2) as crowd:
        for number in range(5):
            crowd.come("a", f"a{number}")
        assert crowd.inside == ["a0", "a1"]
        crowd.leave("a0")
        assert crowd.inside == ["a1", "a2"]


def test_the_one_of_a_project_does_not_wait_for_the_many_of_another() -> None:
    with visitors(1) as crowd:
        for number in range(6):
            crowd.come("a", f"a{number}")
        crowd.come("b", "b0")
        crowd.leave("a0")
        crowd.leave("a1")
        crowd.leave("b0")
        assert crowd.entered == ["a0", "a1", "b0", "a2"]


def test_who_stands_still_inside_holds_nobody_up() -> None:
    with visitors(2, patience=0.02) as crowd:
        for number in range(6):
            crowd.come("a", f"a{number}")
        crowd.until(lambda: len(crowd.inside) == 6)
        crowd.let_all_leave()
        # Those whose places were given away have none to give back.
        assert crowd.gate.free() == 2


def test_who_fails_inside_gives_the_place_back() -> None:
    gate = Gate(1, PATIENT)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), gate.turn("a"):
            raise ZeroDivisionError
    assert gate.free() == 1
