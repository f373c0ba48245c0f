"""The clock of the database jumps: whoever lives goes on living, whoever is dead is found, and leases hold."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from nova.conductor.saga.isolation_guard import IsolationGuard
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import services
from nova.db.maintenance import census
from nova.db.servers import actions
from nova.db.sql import clock
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.action import Action
from tests.unit.conductor.books import Books

MINUTES = datetime.timedelta(minutes=5)


class Conductor:
    """A conductor process with its clock; ``ahead`` is the difference of the database's clock to the machine's."""

    def __init__(self, core: Books, monkeypatch: pytest.MonkeyPatch) -> None:
        self.core = core
        self.ahead = datetime.timedelta()
        self.passed = 0.0
        monkeypatch.setattr(clock.time, "monotonic", lambda: self.passed)
        self._began = utcnow()
        sa.event.listen(core.db.engine, "connect", self._connect)
        core.db.engine.dispose()  # connections from before have the machine's clock
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
        """Time passes as usual; these hosts go on telling that they live."""
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
def test_what_waits_for_its_time_is_not_overdue_because_the_clock_jumped(nova: Conductor, jumps: list[int]) -> None:
    """A row that is written before, between or after the jumps is found when it is an hour old, at the earliest."""
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
        assert nova.passed < 3600 + 7200 + 3600 + 1000, "never found"


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "backward"])
def test_a_jump_makes_nobody_dead(nova: Conductor, jump: datetime.timedelta) -> None:
    nova.ahead = jump
    assert [nova.up(host) for host in ("lives", "dies", "dead")] == [True, True, False]
    assert nova.marked() == []


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "backward"])
def test_a_jump_that_another_conductor_noticed_first_makes_nobody_dead(nova: Conductor,
                                                                       jump: datetime.timedelta) -> None:
    """The other conductor has written the new time already; this one has not queried the clock since."""
    nova.ahead = jump
    nova.core.db.write(lambda connection: connection.execute(
        sa.update(tables.services).where(tables.services.c.host == "lives").values(last_seen=nova.now())))
    assert nova.up("lives")
    assert nova.up("dies")


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "backward"])
def test_who_dies_with_the_jump_is_found_in_time(nova: Conductor, jump: datetime.timedelta) -> None:
    """The last heartbeat may be in the future."""
    nova.ahead = jump
    nova.wait(CONF.service_down_time + 2 * CONF.report_interval, "lives")
    assert nova.up("lives")
    assert not nova.up("dies")
    assert nova.marked() == ["dies"]
    counts = nova.core.db.read(census.services)
    assert (counts[services.COMPUTE, "up"], counts[services.COMPUTE, "down"]) == (1, 2)


def test_who_comes_back_after_a_jump_lives_at_once(nova: Conductor) -> None:
    nova.ahead = MINUTES
    assert not nova.up("dead")
    nova.beat("dead")
    assert nova.up("dead")


@pytest.mark.parametrize("seconds", [2, -2])
def test_a_small_correction_is_no_jump(nova: Conductor, seconds: int) -> None:
    nova.ahead = datetime.timedelta(seconds=seconds)
    nova.ask()
    assert clock.steady(1)
    assert abs((clock.now() - nova.now()).total_seconds()) < 0.1


def test_a_slow_answer_is_no_jump(nova: Conductor) -> None:
    """The time may have been read at any moment in between; the clock uses a better reply."""
    before = clock.now()
    asked, said = nova.passed, nova.now()
    nova.passed += 30
    clock.record(str(said.replace(tzinfo=None)), asked)
    assert clock.steady(1)
    assert (clock.now() - before).total_seconds() == pytest.approx(30)


def test_nobody_is_dead_who_could_not_tell_that_he_lives(nova: Conductor) -> None:
    """The database was away, for all of them; who is heard first afterwards says nothing about the others."""
    nova.passed += CONF.service_down_time + CONF.report_interval
    counts = nova.core.db.read(census.services)
    assert (counts[services.COMPUTE, "up"], counts[services.COMPUTE, "down"]) == (2, 1)
    nova.beat("lives")
    assert nova.marked() == []
    assert [nova.up(host) for host in ("lives", "dies", "dead")] == [True, True, False]
    nova.wait(CONF.service_down_time / 2, "lives")
    assert nova.up("dies")
    nova.wait(CONF.service_down_time / 2 + CONF.report_interval, "lives")
    assert [nova.up(host) for host in ("lives", "dies")] == [True, False]
    assert nova.marked() == ["dies"]


def test_after_a_new_start_silence_means_nothing_for_a_while(nova: Conductor) -> None:
    """All conductors were down for long, so no heartbeat could be stored."""
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


def test_who_hears_nobody_calls_nobody_dead(nova: Conductor) -> None:
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


def test_leases_are_not_judged_until_they_were_renewed_after_a_jump(nova: Conductor) -> None:
    nova.ahead = MINUTES
    nova.ask()
    assert not clock.steady(CONF.conductor.lease)
    nova.wait(CONF.conductor.lease)
    assert clock.steady(CONF.conductor.lease)


def test_a_lease_from_before_the_clock_was_set_back_has_ended(nova: Conductor) -> None:
    """Unless nobody has it: then it is a time to wait for."""
    later = nova.now() + MINUTES
    written = [_action(owner, until) for owner, until in (
        ("compute@dead", later), ("compute@lives", clock.after(CONF.conductor.lease)), (None, later),
        (None, clock.after(-1)))]
    nova.core.db.write(lambda connection: actions.insert(connection, written))

    def expired(of_hosts: bool) -> set[str]:
        return {action.uuid for action in nova.core.db.read(
            lambda connection: actions.expired(connection, clock.now(), 10, of_hosts))}

    assert expired(of_hosts=True) == {written[0].uuid, written[3].uuid}
    # Nobody's belong to no host.
    assert expired(of_hosts=False) == {written[3].uuid}
