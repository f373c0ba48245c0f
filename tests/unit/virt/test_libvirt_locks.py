"""Locks of guests, which serialize actions unless an action hangs, and the end of a guest shutdown."""

from __future__ import annotations

import threading

import libvirt
import pytest

from nova import exception
from nova.virt.guest_locks import GuestLocks
from nova.virt.libvirt import power


def test_guest_lock_serializes_actions_per_guest() -> None:
    locks, order = GuestLocks(), []
    inside, go = threading.Event(), threading.Event()

    def first() -> None:
        with locks.hold("a"):
            inside.set()
            go.wait(10)
            order.append("first")

    def second() -> None:
        with locks.hold("a"):
            order.append("second")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert inside.wait(10)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    with locks.hold("b"):
        assert order == []
    go.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first", "second"]
    assert locks._guests == {}, "locks of idle guests remain in memory"


def test_lock_with_patience_bypasses_a_hanging_action() -> None:
    locks, outcome = GuestLocks(), []
    inside, go = threading.Event(), threading.Event()

    def hanging() -> None:
        try:
            with locks.hold("a"):
                locks.check()
                inside.set()
                go.wait(10)
                locks.check()
                outcome.append("went on")
        except exception.Conflict as error:
            outcome.append(str(error))

    def waiting() -> None:
        with locks.hold("a"):
            locks.check()
            outcome.append("waited")

    threads = [threading.Thread(target=hanging), threading.Thread(target=waiting)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    with locks.hold("a", timeout=0.05):
        locks.check()
        go.set()
        threads[0].join(10)
        assert len(outcome) == 1
        assert "bypassed" in outcome[0]
        with locks.hold("a"):
            locks.check()
    threads[1].join(10)
    assert outcome[1:] == ["waited"], "the action that waited for the hanging action did not run"
    assert locks._guests == {}


def test_bypassed_action_does_not_get_the_new_lock_by_a_nested_hold() -> None:
    """Actions call each other: a rescue that hung while it made its disk starts the guest at its end."""
    locks, outcome = GuestLocks(), []
    inside, go = threading.Event(), threading.Event()

    def hanging() -> None:
        with locks.hold("a"):
            inside.set()
            go.wait(10)
            try:
                with locks.hold("a"):
                    outcome.append("went on")
            except exception.Conflict as error:
                outcome.append(str(error))

    thread = threading.Thread(target=hanging)
    thread.start()
    assert inside.wait(10)
    with locks.hold("a", timeout=0.05):
        pass
    go.set()
    thread.join(10)
    assert "bypassed" in outcome[0]
    assert locks._guests == {}


class _Guest:
    """A fake domain that powers off ``seconds`` after its power button was pressed."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.off_at = float("inf")
        self.presses: list[float] = []
        self._seconds = seconds

    def lookupByUUIDString(self, uuid: str) -> _Guest:
        return self

    def ID(self) -> int:
        return 7

    def isActive(self) -> bool:
        return self.now < self.off_at

    def state(self) -> list[int]:
        return [libvirt.VIR_DOMAIN_RUNNING, 0]

    def shutdown(self) -> None:
        self.presses.append(self.now)
        self.off_at = min(self.off_at, self.now + self._seconds)

    def event(self, seconds: float) -> None:
        """Wait for the event of the power-off."""
        self.now = min(self.now + seconds, max(self.now, self.off_at))

    def no_event(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("seconds", [0.1, 3.2])
def test_shutdown_ends_when_the_guest_is_off(seconds: float) -> None:
    guest = _Guest(seconds)
    assert power.shut_down(guest, "u", 60, guest.event, lambda: guest.now)
    assert guest.now == pytest.approx(seconds)


def test_shutdown_without_an_event_ends_soon_after_the_guest() -> None:
    guest = _Guest(0.1)
    assert power.shut_down(guest, "u", 60, guest.no_event, lambda: guest.now)
    assert guest.now <= 0.25


def test_shutdown_request_is_repeated_until_the_timeout() -> None:
    guest = _Guest(float("inf"))
    assert not power.shut_down(guest, "u", 25, guest.event, lambda: guest.now)
    assert guest.now == pytest.approx(25)
    assert len(guest.presses) == 3
