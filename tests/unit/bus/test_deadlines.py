"""The age of messages from hosts with different clocks, and the deadline of a thread's work."""

import time

import pytest

from nova import context
from nova.bus import deadlines


@pytest.fixture
def now(monkeypatch):
    """Return a clock: ``now(5)`` advances the time by five seconds, ``now.skew`` sets the wall clock."""
    class Now:
        wall, steady = 1_000_000.0, 50.0

        def __call__(self, seconds):
            self.wall += seconds
            self.steady += seconds

        def skew(self, seconds):
            self.wall += seconds

    world = Now()
    monkeypatch.setattr(deadlines.time, "time", lambda: world.wall)
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: world.steady)
    return world


def message(now, skew=0.0, seconds=20.0, clock="api-1"):
    """Return the fields of a message sent now by a host whose clock is ``skew`` seconds ahead."""
    return {"clock": clock, "sent_at": now.wall, "steady": now.steady + skew, "seconds": seconds}


class Clocks(deadlines.Clocks):
    """The clocks of a server that receives verified messages."""

    def left(self, message):
        """Return the seconds until a message that arrives now expires, or None."""
        arrival = self.arrival(message)
        arrival.learn()
        return None if arrival.until is None else arrival.until - deadlines.time.monotonic()


def test_message_without_delay_has_its_whole_lifetime(now):
    clocks = Clocks()
    assert clocks.left(message(now)) == pytest.approx(20)


def test_delay_of_a_message_reduces_its_lifetime(now):
    clocks = Clocks()
    clocks.left(message(now))
    stuck = message(now)
    now(25)
    assert clocks.left(stuck) == pytest.approx(-5, abs=0.1)
    assert clocks.left(message(now)) == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize("skew", [-500.0, -5.0, 5.0, 500.0])
def test_clock_offset_of_a_host_is_compensated(now, skew):
    clocks = Clocks()
    for _second in range(15):
        clocks.left(message(now, skew))
        now(1)
    assert clocks.left(message(now, skew)) == pytest.approx(20, abs=0.1)
    stuck = message(now, skew)
    now(30)
    assert clocks.left(stuck) < 0
    assert clocks.left(message(now, skew)) > 10


@pytest.mark.parametrize("jump", [-300.0, 300.0])
def test_clock_step_expires_only_a_few_messages(now, jump):
    clocks = Clocks()
    for _second in range(100):
        assert clocks.left(message(now)) > 0
        now(1)
    refused = 0
    for _second in range(30):
        refused += clocks.left(message(now, jump)) < 0
        now(1)
    assert refused <= 12
    assert clocks.left(message(now, jump)) == pytest.approx(20, abs=0.2)


def test_a_few_delayed_messages_do_not_change_the_clock_offset(now):
    clocks = Clocks()
    clocks.left(message(now))
    stuck = [message(now) for _ in range(4)]
    now(60)
    assert all(clocks.left(delayed) < 0 for delayed in stuck)


def test_clock_drift_is_followed(now):
    clocks = Clocks()
    for second in range(0, 100_000, 10):
        assert clocks.left(message(now, skew=-second * 0.0001)) == pytest.approx(20, abs=0.1)
        now(10)


def test_clock_offset_is_stored_per_host(now):
    clocks = Clocks()
    clocks.left(message(now, skew=1000.0, clock="ahead"))
    assert clocks.left(message(now, clock="right")) == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize("wire", [{}, {"sent_at": 1.0}, {"seconds": 5}, {"seconds": "x", "sent_at": None}])
def test_message_of_an_older_release_never_expires(now, wire):
    assert Clocks().left(wire) is None


def test_unverified_message_and_other_senders_do_not_change_a_clock(now):
    clocks = Clocks()
    assert clocks.left(message(now)) == pytest.approx(20)
    clocks.arrival(message(now, skew=1000.0))
    clocks.arrival(message(now, skew=1000.0), "evil").learn()
    assert clocks.left(message(now)) == pytest.approx(20)


def test_number_of_stored_clocks_is_limited(now, monkeypatch):
    monkeypatch.setattr(deadlines, "_MAX_CLOCKS", 10)
    clocks = Clocks()
    for number in range(100):
        clocks.left(message(now, clock=f"host-{number}"))
    assert len(clocks._clocks) == 10


def test_thread_can_check_its_deadline():
    assert not context.too_late()
    with context.deadline(time.monotonic() - 1):
        assert context.too_late()
        context.begun()
        assert not context.too_late()
    with context.deadline(time.monotonic() + 60):
        assert not context.too_late()
    assert not context.too_late()
