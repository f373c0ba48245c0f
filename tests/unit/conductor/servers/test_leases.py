"""Renewal of the action leases of a conductor, and the clock of the expiry times."""

from __future__ import annotations

import datetime
import threading
import time

import pytest

from nova.conductor.saga import engine as engine_module
from nova.conductor.saga.engine import KINDS, Engine
from nova.conductor.saga.leases import InFlightLeases
from nova.conductor.saga.run import Run
from nova.db.servers import actions
from nova.db.sql import clock
from nova.objects.base import utcnow
from nova.objects.servers.action import Action
from nova.operations import REGISTRY
from nova.service.fair_pool import FairThreadPool
from tests.unit.conductor.books import Books, ctx, server


def _stopping(core: Books, engine: Engine) -> Run:
    """Insert a stop action of a new server whose row names this conductor as owner, and return its run."""
    instance = server(core, "h1")
    action = engine.new_action(ctx(), REGISTRY["stop"], instance, {"host": "h1"})
    action.lease_until = utcnow() - datetime.timedelta(seconds=1)
    core.db.write(lambda connection: actions.insert(connection, [action]))
    return Run(action, instance)


def _stored(core: Books, action: Action) -> Action:
    found = core.db.read(lambda connection: actions.get(connection, action.uuid))
    assert found is not None
    return found


def test_lease_of_an_action_not_executed_here_is_not_renewed(core: Books) -> None:
    """No thread executes the action, so its lease must expire for recovery."""
    engine = Engine(core)
    run = _stopping(core, engine)
    engine.renew()
    assert _stored(core, run.action).lease_until == run.action.lease_until
    engine.stop()


def test_lease_of_a_queued_action_is_renewed(core: Books) -> None:
    pool = FairThreadPool(dict.fromkeys(KINDS, 1))
    busy = threading.Event()
    pool.submit("database", None, busy.wait, 30)
    engine = Engine(core, pool)
    run = _stopping(core, engine)
    engine.submit(ctx(), run)
    engine.renew()
    lease = _stored(core, run.action).lease_until
    assert lease is not None
    assert lease > utcnow()
    core.db.write(lambda connection: actions.supersede(connection, run.action, []))
    busy.set()
    pool.shutdown()
    core.statements()
    engine.renew()
    assert core.statements() == [], "the lease of a finished action was renewed"


def test_stopping_engine_does_not_wait_for_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch,
                                                                            core: Books) -> None:
    """The step has changed nothing, so another conductor repeats it; meanwhile no conductor would serve requests."""
    monkeypatch.setattr(engine_module, "_SCHEDULER_SECONDS", 0.1)
    pool, answer, asked = FairThreadPool(dict.fromkeys(KINDS, 1)), threading.Event(), threading.Event()
    engine = Engine(core, pool)
    pool.submit("scheduler", None, lambda: (asked.set(), answer.wait(30)))
    assert asked.wait(30)
    ending = threading.Thread(target=engine.stop)
    ending.start()
    ending.join(10)
    stopped = not ending.is_alive()
    answer.set()
    assert stopped


def test_in_flight_lease_taken_twice_is_dropped_twice() -> None:
    held = InFlightLeases()
    held.take(["a", "b"])
    held.take(["a"])
    held.drop(["a", "b"])
    assert list(held.pages()) == [["a"]]
    held.drop(["a"])
    assert list(held.pages()) == []


def test_lease_times_follow_the_database_clock(core: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    real = utcnow()
    monkeypatch.setattr(clock, "utcnow", lambda: real + datetime.timedelta(hours=1))
    assert clock.now() - real >= datetime.timedelta(hours=1)
    core.db.read(clock.synchronize)
    first = clock.now()
    assert abs(first - real) < datetime.timedelta(minutes=1)
    time.sleep(0.05)
    assert clock.now() - first >= datetime.timedelta(seconds=0.05)
    assert clock.after(-10) < first
