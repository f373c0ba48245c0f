"""A host compares its guests with the rows, page by page, and touches only what differs."""

from __future__ import annotations

from typing import Any

import pytest

from nova.compute.host import Machine
from nova.compute.reconcile import Reconciler
from nova.conductor.endpoints.guests import Guests
from nova.db import instances
from nova.network.base import NoNetwork
from nova.objects import states
from nova.objects.base import new_uuid, utcnow
from nova.objects.compute import GuestStatus
from nova.objects.instance import Instance
from nova.virt.fake import FakeDriver
from tests.unit.conductor.books import Books, ctx, flavor

# More than two pages.
MANY = 1100


class _Conductor(Guests):
    """The real answers; what is reported is kept, and how much was asked is counted."""

    def __init__(self, core: Books) -> None:
        super().__init__(core, None)  # type: ignore[arg-type]
        self.reported: list[GuestStatus] = []
        self.asked_for: list[str] = []

    def power_states(self, _ctx: Any, _host: str, guests: list[GuestStatus]) -> None:
        self.reported += guests

    def known(self, context: Any, uuids: list[str]) -> dict[str, str | None]:
        self.asked_for += uuids
        return super().known(context, uuids)


class _Runner:
    """What is under way on the host."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def busy(self, uuid: str) -> bool:
        return uuid in self.held


@pytest.fixture
def runner() -> _Runner:
    return _Runner()


@pytest.fixture
def conductor(core: Books) -> _Conductor:
    return _Conductor(core)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver("h1")


@pytest.fixture
def reconciler(conductor: _Conductor, driver: FakeDriver, runner: _Runner) -> Reconciler:
    machine = Machine(name="h1", driver=driver, network=NoNetwork(), images=None, cache=None)  # type: ignore[arg-type]
    return Reconciler(machine, conductor, runner)  # type: ignore[arg-type]


def _rows(core: Books, count: int, host: str = "h1", **changes: Any) -> list[str]:
    made = [Instance(**{"uuid": new_uuid(), "project_id": "p1", "user_id": "u1", "display_name": "vm", "hostname": "vm",
                        "host": host, "flavor": flavor(), "created_at": utcnow(), "launched_at": utcnow(),
                        "vm_state": states.ACTIVE, "power_state": states.RUNNING, **changes}) for _ in range(count)]
    core.db.write(lambda connection: instances.insert(connection, made))
    return sorted(one.uuid for one in made)


def _here(driver: FakeDriver) -> list[str]:
    return sorted(guest.uuid for guest in driver.guests())


def test_a_host_whose_guests_are_as_the_rows_say_asks_for_its_pages_only(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler) -> None:
    for uuid in _rows(core, MANY):
        driver.adopt(uuid, states.RUNNING)
    core.statements()
    reconciler.compare()
    assert len(core.statements()) == 3
    assert (conductor.reported, conductor.asked_for) == ([], [])
    assert len(_here(driver)) == MANY


def test_only_differences_are_reported_wherever_they_are(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler) -> None:
    uuids = _rows(core, MANY)
    stopped, gone = [uuids[0], uuids[499], uuids[500], uuids[-1]], [uuids[1], uuids[700]]
    for uuid in uuids:
        if uuid not in gone:
            driver.adopt(uuid, states.CRASHED if uuid in stopped else states.RUNNING)
    reconciler.compare()
    assert {guest.uuid: guest.power_state for guest in conductor.reported} == {
        **dict.fromkeys(stopped, states.CRASHED), **dict.fromkeys(gone, states.SHUTDOWN)}


def test_strangers_are_removed_wherever_they_are(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler, runner: _Runner) -> None:
    uuids = _rows(core, MANY)
    [elsewhere] = _rows(core, 1, host="h2")
    strangers = ["00000000-first", uuids[499] + "-after", uuids[-1] + "-last", "zzz", elsewhere]
    runner.held = {uuids[600] + "-busy"}
    for uuid in [*uuids, *strangers, *runner.held]:
        driver.adopt(uuid, states.RUNNING)
    reconciler.compare()
    assert _here(driver) == sorted([*uuids, *runner.held])
    assert set(conductor.asked_for) == {*strangers, *runner.held}
    assert conductor.reported == []


def test_what_is_under_way_or_was_never_started_is_left_alone(
        core: Books, conductor: _Conductor, reconciler: Reconciler, runner: _Runner) -> None:
    _rows(core, 1, launched_at=None)
    _rows(core, 1, task_state="rebooting")
    runner.held = set(_rows(core, 1))
    reconciler.compare()
    assert conductor.reported == []


def test_a_host_without_rows_keeps_nothing(core: Books, driver: FakeDriver, reconciler: Reconciler) -> None:
    driver.adopt("some", states.RUNNING)
    reconciler.start(ctx())
    assert _here(driver) == []
