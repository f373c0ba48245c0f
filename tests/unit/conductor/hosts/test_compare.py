"""Reconciliation of the guests of a host with the instance rows, page by page."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova.compute import reconcile
from nova.compute.host import Machine
from nova.compute.reconcile import Reconciler
from nova.conductor.endpoints.by_hosts import Guests
from nova.conf import CONF
from nova.db.servers import evictions, servers
from nova.network.base import NoNetwork
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers import states
from nova.objects.servers.guest import GuestStatus, Whereabouts
from nova.objects.servers.instance import Instance
from nova.virt.fake.driver import FakeDriver
from tests.unit.conductor.books import Books, ctx, flavor

# More than two pages.
MANY = 1100


class _Conductor(Guests):
    """The guest endpoint of a conductor that records reports and queries."""

    def __init__(self, core: Books) -> None:
        super().__init__(core, None)  # type: ignore[arg-type]
        self.reported: list[GuestStatus] = []
        self.asked_for: list[str] = []

    def power_states(self, _ctx: Any, _host: str, guests: list[GuestStatus]) -> None:
        self.reported += guests

    def whereabouts(self, context: Any, host: str, uuids: list[str]) -> list[Whereabouts]:
        self.asked_for += uuids
        return super().whereabouts(context, host, uuids)


class _Runner:
    """A runner in which the instances in ``held`` have an operation in progress."""

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


class _Network(NoNetwork):
    """A network driver that records the guests with interfaces."""

    def __init__(self) -> None:
        self.plugged: set[str] = set()

    def guests(self) -> set[str]:
        return set(self.plugged)

    def unplug_guest(self, uuid: str) -> None:
        self.plugged.discard(uuid)


@pytest.fixture
def network() -> _Network:
    return _Network()


@pytest.fixture
def reconciler(conductor: _Conductor, driver: FakeDriver, runner: _Runner, network: _Network) -> Reconciler:
    machine = Machine(name="h1", driver=driver, network=network, images=None, cache=None)  # type: ignore[arg-type]
    return Reconciler(machine, conductor, runner)  # type: ignore[arg-type]


def _rows(core: Books, count: int, host: str = "h1", **changes: Any) -> list[str]:
    made = [Instance(**{"uuid": new_uuid(), "project_id": "p1", "user_id": "u1", "display_name": "vm", "hostname": "vm",
                        "host": host, "flavor": flavor(), "created_at": utcnow(), "launched_at": utcnow(),
                        "vm_state": states.ACTIVE, "power_state": states.RUNNING, **changes}) for _ in range(count)]
    core.db.write(lambda connection: servers.insert(connection, made))
    return sorted(one.uuid for one in made)


def _here(driver: FakeDriver) -> list[str]:
    return sorted(guest.uuid for guest in driver.guests.all())


def test_reconciliation_without_differences_only_reads_pages(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler) -> None:
    for uuid in _rows(core, MANY):
        driver.state.guests.add(uuid, states.RUNNING)
    core.statements()
    reconciler.compare()
    assert len(core.statements()) == 1 + 3
    assert (conductor.reported, conductor.asked_for) == ([], [])
    assert len(_here(driver)) == MANY


def test_reconciliation_reports_only_differing_power_states(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler) -> None:
    uuids = _rows(core, MANY)
    stopped, gone = [uuids[0], uuids[499], uuids[500], uuids[-1]], [uuids[1], uuids[700]]
    for uuid in uuids:
        if uuid not in gone:
            driver.state.guests.add(uuid, states.CRASHED if uuid in stopped else states.RUNNING)
    reconciler.compare()
    assert {guest.uuid: guest.power_state for guest in conductor.reported} == {
        **dict.fromkeys(stopped, states.CRASHED), **dict.fromkeys(gone, states.SHUTDOWN)}


def test_reconciliation_removes_evicted_and_deleted_guests(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler, runner: _Runner) -> None:
    uuids = _rows(core, MANY)
    [evicted], [gone] = _rows(core, 1, host="h2"), _rows(core, 1, deleted=True)
    [busy] = _rows(core, 1, deleted=True)
    runner.held = {busy}
    core.db.write(lambda connection: evictions.add(connection, evicted, "h1", keep_disks=False))
    for uuid in [*uuids, evicted, gone, busy]:
        driver.state.guests.add(uuid, states.RUNNING)
    reconciler.compare()
    assert _here(driver) == sorted([*uuids, busy])
    assert core.db.read(lambda connection: evictions.of_host(connection, "h1")) == []
    assert conductor.reported == []


def test_reconciliation_removes_networks_of_deleted_servers(
        core: Books, driver: FakeDriver, reconciler: Reconciler, network: _Network) -> None:
    [stays], [gone], [alone] = _rows(core, 1), _rows(core, 1, deleted=True), _rows(core, 1, deleted=True)
    network.plugged = {stays, gone, alone, "unknown"}
    for uuid in (stays, gone):
        driver.state.guests.add(uuid, states.RUNNING)
    reconciler.compare()
    assert network.plugged == {stays, "unknown"}


def test_reconciliation_keeps_guests_unknown_to_the_database(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler) -> None:
    uuids = _rows(core, MANY)
    [elsewhere] = _rows(core, 1, host="h2")
    unknown = ["00000000-first", uuids[499] + "-after", uuids[-1] + "-last", "zzz", elsewhere]
    for uuid in [*uuids, *unknown]:
        driver.state.guests.add(uuid, states.RUNNING)
    reconciler.compare()
    assert _here(driver) == sorted([*uuids, *unknown])
    assert set(conductor.asked_for) == set(unknown)
    assert conductor.reported == []


def test_eviction_is_deferred_if_the_server_is_on_the_host_again(
        core: Books, driver: FakeDriver, reconciler: Reconciler) -> None:
    [back] = _rows(core, 1)
    core.db.write(lambda connection: evictions.add(connection, back, "h1", keep_disks=False))
    driver.state.guests.add(back, states.RUNNING)
    reconciler.compare()
    assert _here(driver) == [back]


@pytest.fixture
def choose() -> Iterator[Callable[..., None]]:
    """Set options of [compute]."""
    def choose(**options: Any) -> None:
        for name, value in options.items():
            CONF.set_override(name, value, group="compute")

    yield choose
    for name in ("unknown_guests", "unknown_guests_age", "unknown_guests_max"):
        CONF.clear_override(name, group="compute")


@pytest.mark.parametrize(("choice", "left"), [("keep", [1, 1]), ("stop", [4, 4]), ("destroy", [])])
def test_unknown_guests_option_keeps_stops_or_destroys_unknown_guests(
        core: Books, driver: FakeDriver, reconciler: Reconciler, choose: Callable[..., None], choice: str,
        left: list[int]) -> None:
    choose(unknown_guests=choice, unknown_guests_age=0)
    for uuid in ("one", "two"):
        driver.state.guests.add(uuid, states.RUNNING)
    reconciler.compare()
    assert [guest.power_state for guest in driver.guests.all()] == left


@pytest.mark.parametrize(("age", "most"), [(3600, 5), (0, 1)])
def test_recent_or_too_many_unknown_guests_are_kept(
        core: Books, driver: FakeDriver, reconciler: Reconciler, choose: Callable[..., None], age: int,
        most: int) -> None:
    choose(unknown_guests="destroy", unknown_guests_age=age, unknown_guests_max=most)
    for uuid in ("one", "two"):
        driver.state.guests.add(uuid, states.RUNNING)
    reconciler.compare()
    assert len(driver.guests.all()) == 2


def test_concurrent_guest_changes_are_all_reported(
        core: Books, conductor: _Conductor, driver: FakeDriver, reconciler: Reconciler,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_REBOOT_DELAY", 0.001)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    uuids = _rows(core, 400)
    for uuid in uuids:
        driver.state.guests.add(uuid, states.SHUTDOWN)

    def change(some: list[str]) -> None:
        for uuid in some:
            reconciler.guest_changed(GuestStatus(uuid=uuid, power_state=states.SHUTDOWN))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(change, [uuids[number::8] for number in range(8)]))
    until = time.monotonic() + 30
    while len(conductor.reported) < len(uuids):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert failed == []
    assert {guest.uuid for guest in conductor.reported} == set(uuids)


def test_reconciler_stops_while_guests_change(
        conductor: _Conductor, driver: FakeDriver, runner: _Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(20):
            monkeypatch.setattr(reconcile, "_REBOOT_DELAY", 0.005 + number * 0.001)
            machine = Machine(name="h1", driver=driver, network=NoNetwork(), images=None,  # type: ignore[arg-type]
                              cache=None)  # type: ignore[arg-type]
            stopping = Reconciler(machine, conductor, runner)  # type: ignore[arg-type]
            for number in range(200):
                stopping.guest_changed(GuestStatus(uuid=str(number), power_state=states.SHUTDOWN))
            stopping.stop()
    finally:
        sys.setswitchinterval(often)


def test_reconciliation_ignores_busy_and_never_started_servers(
        core: Books, conductor: _Conductor, reconciler: Reconciler, runner: _Runner) -> None:
    _rows(core, 1, launched_at=None)
    _rows(core, 1, task_state="rebooting")
    runner.held = set(_rows(core, 1))
    reconciler.compare()
    assert conductor.reported == []


def test_host_with_an_empty_database_keeps_its_guests_at_start(
        core: Books, driver: FakeDriver, reconciler: Reconciler) -> None:
    driver.state.guests.add("some", states.RUNNING)
    reconciler.start(ctx())
    assert _here(driver) == ["some"]
