"""Transactions of the engine that are rolled back: the run in memory stays as it is stored."""

import collections
import contextlib
import os

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from nova import exception
from nova.conductor.acceptance import start
from nova.conductor.saga.step_executor import MAX_TRIES
from nova.db import tables
from nova.db.servers import actions
from nova.notifications.messages import NotificationSettings
from nova.notifications.operation_events import PHASED_EVENTS
from nova.objects.servers import states
from nova.operations import REGISTRY
from tests.unit.engine.test_engine_properties import CTX, Machine
from tests.unit.engine.test_superseding import Keep

# Errors of a database for longer than a transaction is repeated, and of a defect.
ERRORS = {"unavailable": exception.ServiceUnavailable("the database is away"), "unexpected": RuntimeError("a defect")}


class Rollback(Exception):
    """Rolls back a transaction that would succeed."""


def roll_back(machine, monkeypatch, *errors):
    """Roll the next transitions back with these errors (None: commit), and return the errors that are left."""
    write, report, left = machine.world.db.write, machine.report, list(errors)

    def write_or_roll_back(transaction, made=None):
        error = left.pop(0) if left and transaction.__qualname__.startswith("StepExecutor._apply") else None
        if error is None:
            return write(transaction, made)

        def rolled_back(connection):
            transaction(connection)
            raise Rollback

        with contextlib.suppress(Rollback):
            write(rolled_back)
        raise error

    def report_again_later(host, order, message):
        try:
            report(host, order, message)
        except (exception.ServiceUnavailable, RuntimeError):
            machine.reports.append((host, order, message))

    monkeypatch.setattr(machine.world.db, "write", write_or_roll_back)
    monkeypatch.setattr(machine, "report", report_again_later)
    return left


@pytest.fixture
def server(machine, monkeypatch):
    """Return the uuid of a server whose build was ordered."""
    monkeypatch.setitem(REGISTRY, Keep.name, Keep)
    machine.boot(1, twice=False)
    return machine.uuids[0]


def last_action(machine):
    return machine.world.db.read(lambda connection: actions.index(connection, machine.uuids[0]))[0]


@pytest.mark.parametrize("committed", range(3))
@pytest.mark.parametrize("error", ERRORS)
def test_server_is_deleted_though_a_transition_of_the_inherited_compensations_is_rolled_back(
        machine, server, monkeypatch, error, committed):
    machine.deliver_order(0, twice=False, fails=0.0)
    left = roll_back(machine, monkeypatch, *[None] * committed, ERRORS[error])
    machine.operate(0, "delete")
    machine.calm_down()
    assert left == []
    assert machine.row().vm_state == states.DELETED
    machine.books_balance_at_every_moment()


@pytest.mark.parametrize("error", ERRORS)
def test_failure_whose_transition_is_rolled_back_is_absent_from_a_later_success(machine, server, monkeypatch, error):
    def fail_once(uuid):
        del machine.outside.make
        raise RuntimeError("500")

    machine.calm_down()
    machine.outside.make = fail_once
    left = roll_back(machine, monkeypatch, ERRORS[error])
    start(machine.engine, CTX, server, Keep.name, {})
    machine.leases_end()
    machine.deliver_all()
    assert left == []
    assert (last_action(machine).outcome, last_action(machine).payload.get("failure")) == ("success", None)


@pytest.mark.parametrize("error", ERRORS)
def test_claim_is_released_though_the_transition_that_releases_it_is_rolled_back(machine, server, monkeypatch, error):
    machine.deliver_order(0, twice=False, fails=1.0)
    left = roll_back(machine, monkeypatch, None, None, *[ERRORS[error]] * 2)
    machine.calm_down()
    assert left == []
    assert machine.row().vm_state == states.ACTIVE
    machine.books_balance_at_every_moment()


def test_step_whose_transitions_are_always_rolled_back_fails_after_its_last_try(machine, server, monkeypatch):
    machine.calm_down()
    left = roll_back(machine, monkeypatch, *[ERRORS["unavailable"]] * (MAX_TRIES + 1))
    start(machine.engine, CTX, server, Keep.name, {})
    for _time in range(MAX_TRIES + 1):
        machine.leases_end()
    machine.calm_down()
    assert left == []
    assert last_action(machine).outcome == "error"
    assert machine.outside.things == set()


# --- random schedules ------------------------------------------------------------------------------------
# Notified events whose every start has an end or an error.
PAIRED = {event.event for events in PHASED_EVENTS.values() for event in events if event.fails}


class Faulty(Machine):
    """The world of the engine with a database that rolls back, repeats or refuses transitions at random."""

    def __init__(self):
        super().__init__()
        self.write, self.world.db.write = self.world.db.write, self.write_at_random
        self.world.outbox.on, self.world.outbox.settings = True, NotificationSettings(versioned=True)
        self.rate = 0.0

    @initialize(rate=st.sampled_from([0.0, 0.05, 0.2]))
    def begin(self, rate):
        self.rate = rate

    def write_at_random(self, transaction, made=None):
        if not transaction.__qualname__.startswith("StepExecutor.") or self.chance.random() >= self.rate:
            return self.write(transaction, made)
        fault = self.chance.choice(("deadlock", "unknown result", *ERRORS))
        if fault == "unknown result":
            self.write(transaction)
            return self.write(transaction)  # which is refused: the attempt has ended
        with contextlib.suppress(Rollback):
            self.write(lambda connection: self.roll_back(connection, transaction))
        if fault in ERRORS:
            raise ERRORS[fault]
        return self.write(transaction, made)

    @staticmethod
    def roll_back(connection, transaction):
        transaction(connection)
        raise Rollback

    def report(self, host, order, report):
        try:
            super().report(host, order, report)
        except (exception.ServiceUnavailable, RuntimeError):
            self.reports.append((host, order, report))

    @invariant()
    def no_attempt_is_ordered_twice(self):
        orders = collections.Counter((order.action.uuid, order.attempt) for _host, order in self.world.orders)
        assert all(count == 1 for count in orders.values()), orders

    def calm(self, started=()):
        rate, self.rate = self.rate, 0.0
        super().calm(started)
        self.rate = rate
        self.events_of_ended_actions_have_results()
        self.notified_events_end()

    def events_of_ended_actions_have_results(self):
        for action in self.world.db.read(lambda connection: connection.execute(sa.select(tables.actions)).all()):
            results = [(event.event, event.result) for event in action.events]
            assert action.outcome, results
            assert all(event.finish_time and event.result for event in action.events), results
            assert action.outcome != "success" or all(result == "Success" for _event, result in results[-1:]), results

    def notified_events_end(self):
        started = collections.Counter()
        for message in self.world.db.read(lambda connection: connection.execute(
                sa.select(tables.outbox).order_by(tables.outbox.c.id)).all()):
            name, _dot, phase = message.event_type.removeprefix("instance.").rpartition(".")
            key = (message.payload["nova_object.data"].get("uuid"), name)
            if phase == "start":
                assert name not in PAIRED or not started[key], f"{key} started twice"
                started[key] = 1
            elif phase in ("end", "error") and message.event_type.startswith("instance."):
                assert started[key], f"{message.event_type} of {key} without a start"
                started[key] = 0
        assert not [key for key, count in started.items() if count and key[1] in PAIRED]


Faulty.TestCase.settings = settings(
    max_examples=int(os.environ.get("NOVA_EXAMPLES", "6")), stateful_step_count=30, deadline=None,
    suppress_health_check=list(HealthCheck))
TestRolledBackTransitions = Faulty.TestCase
