"""Orders whose driver changes a guest for minutes: the step is called again, and no thread waits meanwhile."""

# ruff: noqa: F811

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nova import conf, context, exception
from nova.compute import runner as runner_module
from nova.compute.runner import Runner
from nova.metadata import config_drive
from nova.objects.base import new_uuid
from nova.objects.servers.instance import Instance
from nova.operations.framework.base import DEADLINE
from nova.operations.framework.guest_driver import InProgress, step_notes
from nova.virt.fake.driver import FakeDriver
from tests.polling import poll
from tests.unit.compute.test_runner import (  # noqa: F401 (fixtures)
    Conductor,
    conductor,
    driver,
    guests,
    instance,
    order,
    runner,
    submit,
)


class Slow:
    """Replaces a verb of a role: it raises InProgress until ``done``, without a pause between two calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, role: Any, verb: str) -> None:
        self.calls, self.done, self._real = 0, False, getattr(role, verb)
        self.error: exception.NovaException = InProgress(reason="it is being deployed", seconds=0)
        monkeypatch.setattr(role, verb, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if not self.done:
            raise self.error
        return self._real(*args, **kwargs)


def ticks_until(runner: Runner, condition: Callable[[], bool]) -> bool:
    """Repeat the check for deadlines, which continues orders, until the condition is true."""
    def tick() -> bool:
        runner.check_deadlines()
        return condition()

    return bool(poll(tick, 10))


def test_step_in_progress_is_called_again_until_it_is_done(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    slow, prepared = Slow(monkeypatch, driver.guests, "spawn"), Slow(monkeypatch, driver.disks, "prepare")
    prepared.done = True
    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    runner.submit(context.admin(), build)
    assert ticks_until(runner, lambda: slow.calls >= 3)
    assert (conductor.ended, runner.running()) == ([], [build.action.uuid])
    slow.done = True
    assert ticks_until(runner, lambda: bool(conductor.ended))
    assert (conductor.ended, prepared.calls, guests(driver)) == ([("start", 2)], 1, [instance.uuid])
    assert poll(lambda: not runner.busy(instance.uuid), 10)


def test_step_in_progress_uses_no_thread(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, driver.guests, "spawn")
    many = [msgspec.structs.replace(instance, uuid=new_uuid()) for _ in range(2 * conf.CONF.max_concurrent_builds)]
    orders = [order(each, "build", "network") for each in many]
    conductor.current = {each.action.uuid for each in orders}
    for each in orders:
        runner.submit(context.admin(), each)
    assert poll(lambda: slow.calls == len(many), 10)
    slow.done = True
    assert ticks_until(runner, lambda: len(conductor.ended) == len(many))


def test_newer_operation_runs_at_once_while_a_step_is_in_progress(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, driver.guests, "spawn")
    build, delete = order(instance, "build", "network"), order(instance, "delete", "destroy", attempt=5, ident=7)
    conductor.current = {build.action.uuid, delete.action.uuid}
    runner.submit(context.admin(), build)
    assert poll(lambda: slow.calls == 1, 10)
    submit(runner, delete)
    runner.check_deadlines()
    assert (conductor.ended, slow.calls) == ([("destroy", 5)], 1)


def test_step_in_progress_fails_at_its_deadline(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, driver.guests, "spawn")
    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    runner.submit(context.admin(), build)
    assert poll(lambda: slow.calls == 1, 10)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + DEADLINE + 1)
    runner.check_deadlines()
    monkeypatch.undo()
    assert poll(lambda: conductor.failures, 10)
    assert conductor.failures[0].kind == "StepTimeout"
    assert not runner.busy(instance.uuid)


def test_notes_of_a_step_last_until_it_ends(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes of a step that failed would end the next step too early."""
    seen: list[int] = []

    def reboot(*_args: Any, **_kwargs: Any) -> None:
        notes = step_notes()
        seen.append(notes.setdefault("calls", 0))
        notes["calls"] += 1
        if len(seen) < 3:
            raise InProgress(reason="it reboots", seconds=0)
        if len(seen) == 3:
            raise exception.BareMetalError(reason="it does not reboot")

    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    submit(runner, build)
    monkeypatch.setattr(driver.power, "reboot", reboot)
    first, second = (order(instance, "reboot_hard", "reboot", ident=number) for number in (2, 3))
    conductor.current |= {first.action.uuid, second.action.uuid}
    runner.submit(context.admin(), first)
    assert ticks_until(runner, lambda: bool(conductor.failures) and not runner.busy(instance.uuid))
    submit(runner, second)
    assert (seen, conductor.ended) == ([0, 1, 2, 0], [("start", 2), ("reboot", 2)])


def test_new_config_drive_is_built_once_for_a_step(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance, tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(_instance: Instance, path: str, *_args: Any, **_options: Any) -> None:
        built.append(path)
        pathlib.Path(path).write_bytes(b"an ISO file system")

    monkeypatch.setattr(config_drive, "build", build)
    monkeypatch.setattr(FakeDriver, "virtual", False)
    conf.CONF.set_override("instances_path", str(tmp_path))
    instance.config_drive = True
    left = tmp_path / instance.uuid / "disk.config.new"
    left.parent.mkdir()
    left.write_bytes(b"the drive of another rebuild")
    slow = Slow(monkeypatch, driver.disks, "replace")
    rebuild = order(instance, "rebuild", "replace")
    conductor.current = {rebuild.action.uuid}
    runner.submit(context.admin(), rebuild)
    assert ticks_until(runner, lambda: slow.calls >= 3)
    monkeypatch.setattr(driver.disks, "replace", lambda *_args, **_options: None)
    assert ticks_until(runner, lambda: not runner.busy(instance.uuid))
    conf.CONF.clear_override("instances_path")
    assert built.count(str(left)) == 1
    assert not left.exists()


def test_step_in_progress_survives_a_hypervisor_that_is_unavailable_for_long(
        runner: Runner, conductor: Conductor, driver: FakeDriver, instance: Instance,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of Ironic must not end the deployments that it goes on with."""
    monkeypatch.setattr(runner_module, "_HYPERVISOR_TIMEOUT", 0.0)
    monkeypatch.setattr(runner_module, "_UNAVAILABLE_INTERVAL", 0.0)
    slow = Slow(monkeypatch, driver.guests, "spawn")
    build = order(instance, "build", "network")
    conductor.current = {build.action.uuid}
    runner.submit(context.admin(), build)
    assert ticks_until(runner, lambda: slow.calls >= 2)
    slow.error = exception.HypervisorUnavailable(reason="it restarts")
    seen = slow.calls
    assert ticks_until(runner, lambda: slow.calls >= seen + 3)
    slow.done = True
    assert ticks_until(runner, lambda: bool(conductor.ended))
    assert (conductor.ended, conductor.failures) == ([("start", 2)], [])
