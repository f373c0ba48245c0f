"""Orders of a host: executed once, in any order of arrival; superseded orders leave no guest."""

from __future__ import annotations

import datetime
import inspect
import itertools
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nova import conf, context, exception
from nova.compute.host import Machine
from nova.compute.runner import Runner
from nova.network.base import NoNetwork
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.objects.servers.action import Action
from nova.objects.servers.guest import GuestStatus, Whereabouts
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepOrder, StepReport
from nova.operations import REGISTRY
from nova.operations.framework.base import DEADLINE
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.fake.driver import FakeDriver
from tests.polling import poll
from tests.unit.conductor.books import flavor

HOST = "h1"


class Conductor:
    """A fake conductor that accepts the reports of ``current`` actions.

    ``where`` is the host of the server in the database; ``gone`` is True if its guest must be removed."""

    def __init__(self) -> None:
        self.current: set[str] = set()
        self.where: str | None = HOST
        self.gone = self.unfit = False
        self.failures: list[Any] = []
        self.asked: list[str] = []
        self.removed: list[str] = []
        self.ended: list[tuple[str, int]] = []
        self.told: list[GuestStatus] = []

    def step_done(self, _ctx: Any, report: StepReport) -> None:
        if report.action_uuid not in self.current:
            raise exception.StaleReport(action=report.action_uuid, step=report.step, attempt=report.attempt)
        if self.unfit and report.changes:
            raise exception.InvalidInput(reason="a value cannot be stored in the database")
        if report.failure is not None:
            self.failures.append(report.failure)
            return
        self.ended.append((report.step, report.attempt))

    def begin(self, _ctx: Any, action_uuid: str, attempt: int, _host: str) -> None:
        self.asked.append(action_uuid)
        if action_uuid not in self.current:
            raise exception.StaleReport(action=action_uuid, step="", attempt=attempt)

    def whereabouts(self, _ctx: Any, host: str, uuids: list[str]) -> list[Whereabouts]:
        return [Whereabouts(uuid=uuid, possible_hosts=[self.where] if self.where else [], must_leave=self.gone)
                for uuid in uuids]

    def evicted(self, _ctx: Any, _host: str, uuids: list[str], _since: dict[str, Any]) -> None:
        self.removed += uuids

    def power_states(self, _ctx: Any, _host: str, guests: list[GuestStatus]) -> None:
        self.told += guests


@pytest.fixture
def conductor() -> Conductor:
    return Conductor()


@pytest.fixture
def driver() -> FakeDriver:
    conf.register()
    return FakeDriver(HOST)


@pytest.fixture
def runner(conductor: Conductor, driver: FakeDriver) -> Runner:
    machine = Machine(name=HOST, driver=driver, network=NoNetwork(), images=None, cache=None)  # type: ignore[arg-type]
    return Runner(machine, conductor, conductor)  # type: ignore[arg-type]


@pytest.fixture
def instance() -> Instance:
    return Instance(uuid=new_uuid(), project_id="p1", user_id="u1", display_name="vm", hostname="vm", host=HOST,
                    flavor=flavor(), created_at=utcnow(), vm_state=states.BUILDING)


def order(instance: Instance, operation: str, step: str, attempt: int = 2, ident: int = 0) -> StepOrder:
    data: dict[str, Any] = {"host": HOST}
    if operation == "build":
        spec = RequestSpec(instance_uuids=[instance.uuid], project_id="p1", flavor=instance.flavor)
        data["spec"] = msgspec.to_builtins(spec)
    action = Action(id=ident, uuid=new_uuid(), instance_uuid=instance.uuid, action=operation, operation=operation,
                    request_id="req-1", start_time=utcnow(), payload={"data": data})
    return StepOrder(action=action, step=step, attempt=attempt, instance=instance)


def again(first: StepOrder, attempt: int, ident: int = 0) -> StepOrder:
    """Return an order of the same action, read from the journal, with another attempt."""
    return msgspec.structs.replace(first, attempt=attempt, action=msgspec.structs.replace(first.action, id=ident))


def submit(runner: Runner, *orders: StepOrder) -> None:
    for each in orders:
        runner.submit(context.admin(), each)
        end = time.monotonic() + 10
        while runner.busy(each.instance.uuid):
            assert time.monotonic() < end
            time.sleep(0.002)


def guests(driver: FakeDriver) -> list[str]:
    return [guest.uuid for guest in driver.guests.all()]


def test_build_order_received_after_the_delete_is_not_executed(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    build, delete = order(instance, "build", "network"), order(instance, "delete", "destroy", ident=7)
    conductor.current = {delete.action.uuid}
    submit(runner, delete, build)
    assert guests(driver) == []
    assert conductor.ended == [("destroy", 2)]
    assert (conductor.told, runner.running()) == ([], [])


def test_duplicate_or_older_order_is_executed_once(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    submit(runner, build, build)
    assert conductor.ended == [("start", 2)]
    submit(runner, again(build, 3, ident=4), again(build, 2, ident=4), build)
    assert conductor.ended == [("start", 2), ("start", 3)]
    assert guests(driver) == [instance.uuid]


def test_operations_of_a_server_run_sequentially(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    orders = [order(instance, "build", "network", attempt=9), order(instance, "stop", "power_off", ident=2),
              order(instance, "delete", "destroy", ident=3)]
    conductor.current = {each.action.uuid for each in orders}
    submit(runner, *orders)
    assert len(conductor.ended) == 3
    assert guests(driver) == []


@pytest.mark.parametrize(("where", "gone", "left"), [
    (HOST, False, True), ("h2", True, False), (None, True, False), ("h2", False, True)])
def test_guest_of_a_superseded_build_is_removed_only_on_must_leave(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance, where: str | None, gone: bool,
        left: bool) -> None:
    conductor.where, conductor.gone = where, gone
    submit(runner, order(instance, "build", "network"))
    assert bool(guests(driver)) == left
    assert [guest.late for guest in conductor.told] == [True] * (where == HOST)
    assert conductor.removed == [instance.uuid] * gone


def late(order: StepOrder, seconds: float) -> StepOrder:
    """Return the same order, issued ``seconds`` ago, with a lease of four seconds."""
    return msgspec.structs.replace(order, issued_at=utcnow() - datetime.timedelta(seconds=seconds), lease=4.0)


def registered_a_minute_ago(runner: Runner) -> None:
    runner.clock.learn(utcnow() - datetime.timedelta(seconds=60), time.monotonic() - 60)


def test_expired_order_has_no_effect(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    registered_a_minute_ago(runner)
    submit(runner, late(order(instance, "build", "network"), seconds=30))
    assert len(conductor.asked) == 1
    assert guests(driver) == []


def test_order_for_the_previous_process_is_confirmed_first(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    young = late(order(instance, "build", "network"), seconds=0.1)
    runner.clock.learn(utcnow())
    submit(runner, young)
    assert len(conductor.asked) == 1
    assert guests(driver) == []


def test_order_without_delay_needs_no_confirmation(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    registered_a_minute_ago(runner)
    build = late(order(instance, "build", "network"), seconds=0)
    conductor.current = {build.action.uuid}
    submit(runner, build)
    assert conductor.asked == []
    assert guests(driver) == [instance.uuid]


class Hanging:
    """A driver method that hangs until it is released, and counts its calls."""

    def __init__(self, role: object, verb: str) -> None:
        self.entered, self.release, self.calls, self.returned = threading.Event(), threading.Event(), 0, False
        self._counting = threading.Lock()
        self._real = getattr(role, verb)
        setattr(role, verb, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._counting:
            self.calls += 1
        self.entered.set()
        assert self.release.wait(30)
        result = self._real(*args, **kwargs)
        self.returned = True
        return result


def test_superseded_order_does_not_start_its_next_step(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    prepare, spawn = Hanging(driver.disks, "prepare"), Hanging(driver.guests, "spawn")
    build, delete = order(instance, "build", "network"), order(instance, "delete", "destroy", ident=7)
    conductor.current = {delete.action.uuid}
    runner.submit(context.admin(), build)
    assert prepare.entered.wait(10)
    runner.submit(context.admin(), delete)
    prepare.release.set()
    wait(lambda: not runner.busy(instance.uuid))
    assert conductor.ended == [("destroy", 2)]
    assert spawn.calls == 0


def test_superseded_orders_in_the_queue_are_not_started(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    """Ten hard reboots, of which nine are superseded, cause one or two power cycles."""
    driver.guests.spawn(instance, BootFiles())
    reboot = Hanging(driver.power, "reboot")
    orders = [order(instance, "reboot_hard", "reboot", ident=ident) for ident in range(1, 11)]
    conductor.current = {orders[-1].action.uuid}
    for each in orders:
        runner.submit(context.admin(), each)
    assert reboot.entered.wait(10)
    reboot.release.set()
    wait(lambda: not runner.busy(instance.uuid))
    assert reboot.calls <= 2
    assert conductor.ended == [("reboot", 2)]


def test_driver_call_past_its_deadline_fails_and_next_operation_starts(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    driver.guests.spawn(instance, BootFiles())
    pause = Hanging(driver.power, "pause")
    hung, delete = order(instance, "pause", "pause", ident=1), order(instance, "delete", "destroy", ident=2)
    conductor.current = {hung.action.uuid, delete.action.uuid}
    runner.submit(context.admin(), hung)
    assert pause.entered.wait(10)
    runner.check_deadlines()
    assert runner.busy(instance.uuid)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + DEADLINE)
    runner.check_deadlines()
    wait(lambda: [failure.kind for failure in conductor.failures] == ["StepTimeout"])
    submit(runner, delete)
    assert guests(driver) == []
    pause.release.set()


def test_hanging_driver_calls_of_many_servers_do_not_block_other_servers(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    pause = Hanging(driver.power, "pause")
    hung = [order(another(instance), "pause", "pause") for _number in range(conf.CONF.compute.threads)]
    stop = order(instance, "stop", "power_off")
    conductor.current = {each.action.uuid for each in (*hung, stop)}
    for each in (*hung, stop):
        driver.guests.spawn(each.instance, BootFiles())
        runner.submit(context.admin(), each)
    wait(lambda: pause.calls == len(hung))
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + DEADLINE)
    runner.check_deadlines()
    wait(lambda: conductor.ended == [("power_off", 2)])
    wait(lambda: len(conductor.failures) == len(hung))
    pause.release.set()


def test_effect_of_a_call_that_returns_after_its_compensation_is_undone(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The build continues on another host, so no eviction requires that this host removes the late guest."""
    spawn, hung = Hanging(driver.guests, "spawn"), order(instance, "build", "network")
    undo = msgspec.structs.replace(again(hung, 3), step="disks", undo=True)
    conductor.current = {hung.action.uuid}
    runner.submit(context.admin(), hung)
    assert spawn.entered.wait(10)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + DEADLINE)
    runner.check_deadlines()
    wait(lambda: [failure.kind for failure in conductor.failures] == ["StepTimeout"])
    submit(runner, undo)
    conductor.current, conductor.where = set(), "h2"
    spawn.release.set()
    wait(lambda: spawn.returned)
    wait(lambda: not guests(driver) and not runner.busy(instance.uuid))


def test_late_return_of_a_call_undoes_nothing_of_a_newer_operation(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    driver.guests.spawn(instance, BootFiles())
    pause, hung = Hanging(driver.power, "pause"), order(instance, "pause", "pause", ident=1)
    stop, start = order(instance, "stop", "power_off", ident=2), order(instance, "start", "power_on", ident=3)
    conductor.current = {each.action.uuid for each in (hung, stop, start)}
    runner.submit(context.admin(), hung)
    assert pause.entered.wait(10)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + DEADLINE)
    runner.check_deadlines()
    submit(runner, stop, start)
    pause.release.set()
    wait(lambda: [status.late for status in conductor.told] == [True])
    assert conductor.ended == [("power_off", 2), ("power_on", 2)]


def test_order_for_which_no_thread_starts_is_not_held(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise heartbeats would renew its lease, and no conductor would send it again."""
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        runner.submit(context.admin(), build)
    assert runner.running() == []
    submit(runner, again(build, 3))
    assert guests(driver) == [instance.uuid]


@pytest.mark.parametrize("current", [True, False])
def test_order_of_lower_rank_runs_if_confirmed_by_a_conductor(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance, current: bool) -> None:
    """Such orders arrive after the database was restored from a backup; otherwise the order was superseded."""
    driver.guests.spawn(instance, BootFiles())
    newer, older = (late(order(instance, "stop", "power_off", ident=ident), seconds=0) for ident in (7, 3))
    conductor.current = {newer.action.uuid} | ({older.action.uuid} if current else set())
    submit(runner, newer)
    conductor.asked.clear()
    submit(runner, older)
    submit(runner, older)
    assert conductor.asked == [older.action.uuid] * (1 if current else 2)
    assert len(conductor.ended) == 1 + current


def test_newer_attempt_of_a_running_order_is_adopted(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    prepare = Hanging(driver.disks, "prepare")
    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    runner.submit(context.admin(), build)
    assert prepare.entered.wait(10)
    runner.submit(context.admin(), again(build, 5))
    prepare.release.set()
    wait(lambda: not runner.busy(instance.uuid))
    assert (prepare.calls, conductor.ended) == (1, [("start", 5)])


def test_report_refused_as_invalid_becomes_a_failure(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    driver.guests.spawn(instance, BootFiles())
    conductor.unfit = True
    stop = order(instance, "stop", "power_off", ident=1)
    conductor.current = {stop.action.uuid}
    monkeypatch.setattr(runner._stopping, "wait", lambda _seconds: False)
    submit(runner, stop)
    assert [failure.kind for failure in conductor.failures] == ["InvalidInput"]


def test_report_is_dropped_after_repeated_internal_errors(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The host can process the server again; the lease of the action ends."""
    told = []

    def refuse(_ctx: Any, report: StepReport) -> None:
        told.append(report)
        raise exception.InternalError("Unexpected error in step_done.")

    monkeypatch.setattr("nova.compute.runner._INTERNAL_ERRORS", 0.0)
    driver.guests.spawn(instance, BootFiles())
    monkeypatch.setattr(conductor, "step_done", refuse)
    monkeypatch.setattr(runner._stopping, "wait", lambda _seconds: False)
    submit(runner, order(instance, "stop", "power_off", ident=1))
    assert 1 < len(told) < 20
    assert runner.running() == []


@pytest.mark.parametrize("error", [exception.InternalError("Unexpected error in step_done."),
                                   exception.ServiceUnavailable("The database is read only at present.")])
def test_completed_step_is_reported_despite_conductor_errors(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance, monkeypatch: pytest.MonkeyPatch,
        error: exception.NovaException) -> None:
    stored, failures = conductor.step_done, itertools.count()

    def fail_at_first(ctx: Any, report: StepReport) -> None:
        if next(failures) < 30:
            raise error
        stored(ctx, report)

    driver.guests.spawn(instance, BootFiles())
    monkeypatch.setattr(conductor, "step_done", fail_at_first)
    monkeypatch.setattr(runner._stopping, "wait", lambda _seconds: False)
    stop = order(instance, "stop", "power_off", ident=1)
    conductor.current = {stop.action.uuid}
    submit(runner, stop)
    assert (conductor.ended, conductor.failures) == ([("power_off", stop.attempt)], [])


@pytest.mark.parametrize("error", [exception.InternalError("Unexpected error in begin."),
                                   exception.ServiceUnavailable("The database is read only at present.")])
def test_step_confirmation_is_retried_after_conductor_errors(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance, monkeypatch: pytest.MonkeyPatch,
        error: exception.NovaException) -> None:
    begin, failures = conductor.begin, itertools.count()

    def fail_at_first(*args: Any) -> None:
        if next(failures) < 5:
            raise error
        begin(*args)

    driver.guests.spawn(instance, BootFiles())
    monkeypatch.setattr(conductor, "begin", fail_at_first)
    monkeypatch.setattr(runner._stopping, "wait", lambda _seconds: False)
    stop = msgspec.structs.replace(order(instance, "stop", "power_off", ident=1),
                                   issued_at=utcnow() - datetime.timedelta(hours=1))
    conductor.current = {stop.action.uuid}
    submit(runner, stop)
    assert set(conductor.asked) == {stop.action.uuid}
    assert (conductor.ended, conductor.failures) == ([("power_off", stop.attempt)], [])


def another(instance: Instance) -> Instance:
    return msgspec.structs.replace(instance, uuid=new_uuid())


def test_queued_builds_do_not_block_other_operations(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    driver.guests.spawn(instance, BootFiles())
    spawn = Hanging(driver.guests, "spawn")
    builds = [order(another(instance), "build", "network") for _number in range(60)]
    stop, delete = order(instance, "stop", "power_off", ident=1), order(instance, "delete", "destroy", ident=2)
    conductor.current = {each.action.uuid for each in (*builds, stop, delete)}
    for build in builds:
        runner.submit(context.admin(), build)
    assert spawn.entered.wait(10)
    submit(runner, stop, delete)
    assert conductor.ended == [("power_off", 2), ("destroy", 2)]
    spawn.release.set()
    wait(lambda: not runner.running())
    assert len(conductor.ended) == 62


def test_slow_guest_shutdowns_do_not_block_other_operations(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    """The number of servers of such an image that a project stops or rebuilds is irrelevant."""
    image = Image(id=new_uuid(), properties={"os_shutdown_timeout": "3000"})
    off = Hanging(driver.power, "off")
    slow = [order(msgspec.structs.replace(another(instance), image=image), "stop", "power_off")
            for _number in range(60)]
    other = msgspec.structs.replace(another(instance), project_id="p2")
    driver.guests.spawn(other, BootFiles())
    for each in slow:
        driver.guests.spawn(each.instance, BootFiles())
    pause = order(other, "pause", "pause")
    conductor.current = {each.action.uuid for each in (*slow, pause)}
    for each in slow:
        runner.submit(context.admin(), each)
    wait(lambda: off.calls == conf.CONF.compute.threads)
    submit(runner, pause)
    assert conductor.ended == [("pause", 2)]
    off.release.set()
    wait(lambda: not runner.running())
    assert len(conductor.ended) == 61


def test_operations_with_a_shutdown_timeout_are_marked() -> None:
    waiting = {name for name, operation in REGISTRY.items() if any(
        re.search(r"host\.(image_)?shutdown_timeout", inspect.getsource(base)) for base in operation.__mro__
        if base.__module__.startswith("nova.operations"))}
    print(sorted(waiting))
    assert waiting == {name for name, operation in REGISTRY.items() if operation.shuts_down}


def test_single_build_of_a_project_does_not_wait_for_builds_of_another(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    submitted, other_project = threading.Event(), threading.Event()
    real = driver.disks.prepare
    limit = 2 * conf.CONF.max_concurrent_builds  # The running builds, and one build per project.

    def prepare(server: Instance, *args: Any, **named: Any) -> Any:
        begun.append(server.project_id)
        assert submitted.wait(10)
        if server.project_id == "p2":
            other_project.set()
        elif len(begun) >= limit:  # A thread that starts slowly is not a build that waits for these builds.
            other_project.wait(10)
        return real(server, *args, **named)

    monkeypatch.setattr(driver.disks, "prepare", prepare)
    crowd = [order(another(instance), "build", "network") for _number in range(60)]
    one = order(msgspec.structs.replace(instance, uuid=new_uuid(), project_id="p2"), "build", "network")
    conductor.current = {each.action.uuid for each in (*crowd, one)}
    for each in (*crowd, one):
        runner.submit(context.admin(), each)
    submitted.set()
    wait(lambda: not runner.running())
    assert begun.index("p2") <= limit + conf.CONF.max_concurrent_builds


def test_delete_does_not_wait_for_a_queued_build(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    """The superseded build is not started either."""
    spawn = Hanging(driver.guests, "spawn")
    builds = [order(another(instance), "build", "network") for _number in range(60)]
    deletes = [order(build.instance, "delete", "destroy", ident=7) for build in builds[-4:]]
    conductor.current = {each.action.uuid for each in (*builds[:-4], *deletes)}
    for build in builds:
        runner.submit(context.admin(), build)
    assert spawn.entered.wait(10)
    submit(runner, *deletes)
    assert conductor.ended == [("destroy", 2)] * 4
    spawn.release.set()
    wait(lambda: not runner.running())
    assert spawn.calls == 56
    assert len(guests(driver)) == 56


def wait(until: Callable[[], bool]) -> None:
    assert poll(until, 30, 0.002)
