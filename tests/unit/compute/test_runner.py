"""A host and the orders it gets: each once, in whatever order they come, and nothing of an overtaken one stays."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from nova import conf, context, exception
from nova.compute.host import Machine
from nova.compute.runner import Runner
from nova.network.base import NoNetwork
from nova.objects import states
from nova.objects.action import Action
from nova.objects.base import new_uuid, utcnow
from nova.objects.compute import GuestStatus
from nova.objects.instance import Instance, StepOrder, StepReport
from nova.objects.scheduling import RequestSpec
from nova.virt.fake import FakeDriver
from tests.unit.conductor.books import flavor

HOST = "h1"


class Conductor:
    """Takes the reports of ``current`` actions; ``where`` is the host of the server by its row."""

    def __init__(self) -> None:
        self.current: set[str] = set()
        self.where: str | None = HOST
        self.ended: list[tuple[str, int]] = []
        self.told: list[GuestStatus] = []

    def step_done(self, _ctx: Any, report: StepReport) -> None:
        if report.action_uuid not in self.current:
            raise exception.StaleReport(action=report.action_uuid, step=report.step, attempt=report.attempt)
        assert report.failure is None
        self.ended.append((report.step, report.attempt))

    def known(self, _ctx: Any, uuids: list[str]) -> dict[str, str | None]:
        return dict.fromkeys(uuids, self.where)

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
    """The same action, read from the journal, with another attempt."""
    return msgspec.structs.replace(first, attempt=attempt, action=msgspec.structs.replace(first.action, id=ident))


def submit(runner: Runner, *orders: StepOrder) -> None:
    for each in orders:
        runner.submit(context.admin(), each)
        end = time.monotonic() + 10
        while runner.busy(each.instance.uuid):
            assert time.monotonic() < end
            time.sleep(0.002)


def guests(driver: FakeDriver) -> list[str]:
    return [guest.uuid for guest in driver.guests()]


def test_a_build_that_comes_after_the_delete_that_came_in_between_is_not_begun(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    build, delete = order(instance, "build", "network"), order(instance, "delete", "destroy", ident=7)
    conductor.current = {delete.action.uuid}
    submit(runner, delete, build)
    assert guests(driver) == []
    assert conductor.ended == [("destroy", 2)]
    assert (conductor.told, runner.running()) == ([], [])


def test_an_order_that_comes_twice_or_after_its_next_attempt_is_run_once(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    submit(runner, build, build)
    assert conductor.ended == [("start", 2)]
    submit(runner, again(build, 3, ident=4), again(build, 2, ident=4), build)
    assert conductor.ended == [("start", 2), ("start", 3)]
    assert guests(driver) == [instance.uuid]


def test_the_operations_of_a_server_run_one_after_the_other(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance) -> None:
    orders = [order(instance, "build", "network", attempt=9), order(instance, "stop", "power_off", ident=2),
              order(instance, "delete", "destroy", ident=3)]
    conductor.current = {each.action.uuid for each in orders}
    submit(runner, *orders)
    assert len(conductor.ended) == 3
    assert guests(driver) == []


@pytest.mark.parametrize(("where", "left"), [(HOST, True), ("h2", False), (None, False)])
def test_the_guest_of_a_build_that_was_decided_elsewhere_stays_where_its_row_is_only(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance, where: str | None,
        left: bool) -> None:
    conductor.where = where
    submit(runner, order(instance, "build", "network"))
    assert bool(guests(driver)) == left
    assert [guest.late for guest in conductor.told] == [True] * left
