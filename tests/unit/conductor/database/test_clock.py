"""Steps of the database clock: live services stay up, dead services go down, and leases stay valid."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from nova.conductor.service import IsolationGuard
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import services
from nova.db.maintenance import overview
from nova.db.servers import actions
from nova.db.sql import clock
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.action import Action
from tests.unit.conductor.books import Books

MINUTES = datetime.timedelta(minutes=5)


class Conductor:
    """A conductor process with its clock; ``ahead`` is the offset of the database clock from the machine clock."""

    def __init__(self, core: Books, monkeypatch: pytest.MonkeyPatch) -> None:
        self.core = core
        self.ahead = datetime.timedelta()
        self.passed = 0.0
        monkeypatch.setattr(clock.time, "monotonic", lambda: self.passed)
        self._began = utcnow()
        sa.event.listen(core.db.engine, "connect", self._connect)
        core.db.engine.dispose()  # existing connections still use the machine clock
        self.ask()

    def _connect(self, connection: Any, _record: Any) -> None:
        connection.create_function("strftime", 2, lambda _format, _when: str(self.now().replace(tzinfo=None)))

    def now(self) -> datetime.datetime:
        """Return the database's time."""
        return self._began + self.ahead + datetime.timedelta(seconds=self.passed)

    def ask(self) -> None:
        self.core.db.read(clock.synchronize)

    def beat(self, *hosts: str) -> None:
        for host in hosts:
            self.core.db.write(lambda connection, host=host: services.beat(connection, host, services.COMPUTE))

    def up(self, host: str) -> bool:
        return self.core.db.read(lambda connection: services.host_up(connection, host))

    def marked(self) -> list[str]:
        return self.core.db.write(services.mark_down)

    def wait(self, seconds: float, *beating: str) -> None:
        """Advance the time while the given hosts send heartbeats."""
        for _beat in range(int(seconds / CONF.report_interval)):
            self.passed += CONF.report_interval
            self.ask()
            self.beat(*beating)


@pytest.fixture
def nova(core: Books, monkeypatch: pytest.MonkeyPatch) -> Conductor:
    made = Conductor(core, monkeypatch)
    for host in ("lives", "dies", "dead"):
        core.db.write(lambda connection, host=host: services.register(connection, host, services.COMPUTE, "c", 1))
    made.wait(CONF.service_down_time + 2 * CONF.report_interval, "lives", "dies")
    assert made.marked() == ["dead"]
    return made


@pytest.mark.parametrize("jumps", [[7200], [-7200], [7200, -7200], [-7200, 7200], [3600, 3600], [900] * 3])
def test_clock_step_makes_no_row_overdue_early(nova: Conductor, jumps: list[int]) -> None:
    """A row written before, between or after the clock steps is overdue after an hour at the earliest."""
    written = [(clock.now(), nova.passed)]
    for jump in jumps:
        nova.ahead += datetime.timedelta(seconds=jump)
        nova.wait(2 * CONF.service_down_time)
        written.append((clock.now(), nova.passed))
    missed = set(range(len(written)))
    while missed:
        nova.wait(60)
        found = {number for number, (at, _passed) in enumerate(written) if at <= clock.overdue(3600)}
        assert all(nova.passed - written[number][1] >= 3600 - 1 for number in found)
        missed -= found
        assert nova.passed < 3600 + 7200 + 3600 + 1000, "a row never became overdue"


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "backward"])
def test_clock_step_marks_no_live_host_down(nova: Conductor, jump: datetime.timedelta) -> None:
    nova.ahead = jump
    assert [nova.up(host) for host in ("lives", "dies", "dead")] == [True, True, False]
    assert nova.marked() == []


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "backward"])
def test_clock_step_noticed_by_another_conductor_marks_no_host_down(nova: Conductor, jump: datetime.timedelta) -> None:
    """Another conductor has stored a heartbeat with the new time; this conductor has not queried the clock since."""
    nova.ahead = jump
    nova.core.db.write(lambda connection: connection.execute(
        sa.update(tables.services).where(tables.services.c.host == "lives").values(last_seen=nova.now())))
    assert nova.up("lives")
    assert nova.up("dies")


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "backward"])
def test_host_that_dies_during_a_clock_step_is_marked_down_in_time(nova: Conductor, jump: datetime.timedelta) -> None:
    """The last heartbeat may be in the future."""
    nova.ahead = jump
    nova.wait(CONF.service_down_time + 2 * CONF.report_interval, "lives")
    assert nova.up("lives")
    assert not nova.up("dies")
    assert nova.marked() == ["dies"]
    counts = nova.core.db.read(overview.services_by_state)
    assert (counts[services.COMPUTE, "up"], counts[services.COMPUTE, "down"]) == (1, 2)


def test_host_that_returns_after_a_clock_step_is_up_at_once(nova: Conductor) -> None:
    nova.ahead = MINUTES
    assert not nova.up("dead")
    nova.beat("dead")
    assert nova.up("dead")


@pytest.mark.parametrize("seconds", [2, -2])
def test_clock_correction_of_two_seconds_is_no_step(nova: Conductor, seconds: int) -> None:
    nova.ahead = datetime.timedelta(seconds=seconds)
    nova.ask()
    assert clock.steady(1)
    assert abs((clock.now() - nova.now()).total_seconds()) < 0.1


def test_slow_clock_query_is_no_step(nova: Conductor) -> None:
    """The time may have been read at any moment in between; the clock uses a better reply."""
    before = clock.now()
    asked, said = nova.passed, nova.now()
    nova.passed += 30
    clock.record(str(said.replace(tzinfo=None)), asked)
    assert clock.steady(1)
    assert (clock.now() - before).total_seconds() == pytest.approx(30)


def test_hosts_are_not_marked_down_after_a_database_outage(nova: Conductor) -> None:
    """After an outage of the database the first heartbeat of a host says nothing about the other hosts."""
    nova.passed += CONF.service_down_time + CONF.report_interval
    counts = nova.core.db.read(overview.services_by_state)
    assert (counts[services.COMPUTE, "up"], counts[services.COMPUTE, "down"]) == (2, 1)
    nova.beat("lives")
    assert nova.marked() == []
    assert [nova.up(host) for host in ("lives", "dies", "dead")] == [True, True, False]
    nova.wait(CONF.service_down_time / 2, "lives")
    assert nova.up("dies")
    nova.wait(CONF.service_down_time / 2 + CONF.report_interval, "lives")
    assert [nova.up(host) for host in ("lives", "dies")] == [True, False]
    assert nova.marked() == ["dies"]


def test_restarted_conductor_waits_before_it_marks_hosts_down(nova: Conductor) -> None:
    """All conductors were down for a long time, so no heartbeat was stored."""
    nova.passed += 600
    clock.reset()
    guard = IsolationGuard()
    nova.ask()
    assert not guard.may_judge_hosts
    assert nova.up("lives")
    assert not nova.up("dead")
    nova.wait(CONF.service_down_time + CONF.report_interval, "lives")
    assert guard.may_judge_hosts
    assert [nova.up(host) for host in ("lives", "dies")] == [True, False]


def test_conductor_without_any_heartbeats_marks_no_host_down(nova: Conductor) -> None:
    guard = IsolationGuard()
    nova.passed += 600
    nova.ask()
    guard.check(nova.core.db.read(services.last_heard))
    assert (guard.connected, guard.may_judge_hosts) == (False, False)
    assert nova.up("lives")


# --- leases ----------------------------------------------------------------------------------
def _action(owner: str | None, until: datetime.datetime) -> Action:
    return Action(uuid=new_uuid(), instance_uuid=new_uuid(), action="stop", operation="stop", step="power_off",
                  owner=owner, lease_until=until, request_id="req-1", start_time=until, updated_at=until)


def test_leases_do_not_expire_until_renewed_after_a_clock_step(nova: Conductor) -> None:
    nova.ahead = MINUTES
    nova.ask()
    assert not clock.steady(CONF.conductor.lease)
    nova.wait(CONF.conductor.lease)
    assert clock.steady(CONF.conductor.lease)


def test_lease_from_before_a_backward_clock_step_has_expired(nova: Conductor) -> None:
    """The lease column of an action without an owner is the time of its next attempt, so it has not expired."""
    later = nova.now() + MINUTES
    written = [_action(owner, until) for owner, until in (
        ("compute@dead", later), ("compute@lives", clock.after(CONF.conductor.lease)), (None, later),
        (None, clock.after(-1)))]
    nova.core.db.write(lambda connection: actions.insert(connection, written))

    def expired(of_hosts: bool) -> set[str]:
        return {action.uuid for action in nova.core.db.read(
            lambda connection: actions.expired(connection, clock.now(), 10, of_hosts))}

    assert expired(of_hosts=True) == {written[0].uuid, written[3].uuid}
    # An action without an owner belongs to no host.
    assert expired(of_hosts=False) == {written[3].uuid}
