"""Locks of guests: one action at a time unless it hangs; and a stop ends with its guest."""

from __future__ import annotations

import threading

import libvirt
import pytest

from nova import exception
from nova.virt.libvirt import power
from nova.virt.libvirt.locks import GuestLocks


def test_actions_on_one_guest_follow_each_other_and_guests_do_not_wait_for_others() -> None:
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
    assert locks._guests == {}, "nothing is remembered of guests that nobody works on"


def test_an_action_with_patience_goes_past_one_that_hangs_which_then_does_nothing_more() -> None:
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
    with locks.hold("a", patience=0.05):
        locks.check()
        go.set()
        threads[0].join(10)
        assert len(outcome) == 1
        assert "bypassed" in outcome[0]
        with locks.hold("a"):
            locks.check()
    threads[1].join(10)
    assert outcome[1:] == ["waited"], "who waited for the one that hung goes on as well"
    assert locks._guests == {}


class _Guest:
    """A domain that turns itself off so many seconds after its power button was pressed."""

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
        """libvirt tells when it went off."""
        self.now = min(self.now + seconds, max(self.now, self.off_at))

    def no_event(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("seconds", [0.1, 3.2])
def test_a_stop_ends_with_its_guest(seconds: float) -> None:
    guest = _Guest(seconds)
    assert power.shut_down(guest, "u", 60, guest.event, lambda: guest.now)
    assert guest.now == pytest.approx(seconds)


def test_a_stop_whose_event_is_lost_ends_soon_after_its_guest() -> None:
    guest = _Guest(0.1)
    assert power.shut_down(guest, "u", 60, guest.no_event, lambda: guest.now)
    assert guest.now <= 0.25


def test_a_guest_that_does_not_listen_is_asked_again_until_the_time_is_over() -> None:
    guest = _Guest(float("inf"))
    assert not power.shut_down(guest, "u", 25, guest.event, lambda: guest.now)
    assert guest.now == pytest.approx(25)
    assert len(guest.presses) == 3
