"""Progress reports of a step, throttled for frequent driver callbacks."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from nova import conf, context
from nova.compute.host import PROGRESS_INTERVAL, Machine, Progress
from nova.compute.runner import Runner
from nova.network.base import NoNetwork
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import MigrationProgress
from nova.objects.servers.order import StepOrder, StepReport
from nova.operations.framework import guest_driver
from nova.virt.fake.driver import FakeDriver
from tests.unit.conductor.books import flavor

HOST = "h1"
SAID = 1000


def test_progress_reports_are_throttled_and_the_last_is_sent() -> None:
    told: list[tuple[dict[str, Any], dict[str, Any]]] = []
    step = Progress(lambda changes, values: told.append((changes, values)))
    began = time.monotonic()
    for number in range(SAID):
        step.note({"progress": number}, {"left": SAID - number} if number < SAID - 1 else {})
    step.end()
    # A report at the start, a report at the end, and a report per pause on a slow machine.
    assert len(told) <= 2 + (time.monotonic() - began) / PROGRESS_INTERVAL
    assert told[0][0] == {"progress": 0}
    assert told[-1] == ({"progress": SAID - 1}, {})  # Values of earlier reports are discarded.
    number = len(told)
    step.end()
    assert len(told) == number


class Talkative(guest_driver.LiveMigrationSource):
    """A hypervisor that reports progress for every page of memory."""

    def migrate(self, instance: Any, target: Any, on_progress: Any, cancelled: Any) -> None:
        for number in range(SAID):
            on_progress(MigrationProgress(memory_total=SAID, memory_processed=number + 1,
                                          memory_remaining=SAID - number - 1))


class Conductor:
    def __init__(self) -> None:
        self.said: list[StepReport] = []
        self.ended: list[StepReport] = []

    def progress(self, _ctx: Any, report: StepReport) -> None:
        self.said.append(report)

    def step_done(self, _ctx: Any, report: StepReport) -> None:
        self.ended.append(report)


def test_thousand_progress_callbacks_send_few_messages() -> None:
    conf.register()
    conductor = Conductor()
    driver = FakeDriver(HOST)
    driver.live_source = Talkative()
    machine = Machine(name=HOST, driver=driver, network=NoNetwork(), images=None, cache=None)  # type: ignore[arg-type]
    runner = Runner(machine, conductor, conductor)  # type: ignore[arg-type]
    instance = Instance(uuid=new_uuid(), project_id="p1", user_id="u1", display_name="vm", hostname="vm", host=HOST,
                        flavor=flavor(), created_at=utcnow())
    spec = RequestSpec(instance_uuids=[], project_id="p1", flavor=instance.flavor)
    data = {"source": HOST, "host": "h2", "migration": new_uuid(), "spec": msgspec.to_builtins(spec)}
    action = Action(uuid=new_uuid(), instance_uuid=instance.uuid, action="live-migration", operation="live_migrate",
                    request_id="req-1", start_time=utcnow(), payload={"data": data})
    began = time.monotonic()
    runner.submit(context.admin(), StepOrder(action=action, step="migrate", attempt=2, instance=instance))
    while runner.busy(instance.uuid):
        assert time.monotonic() < began + 60
        time.sleep(0.01)
    assert [(report.step, report.failure) for report in conductor.ended] == [("migrate", None)]
    assert len(conductor.said) <= 2 + (time.monotonic() - began) / PROGRESS_INTERVAL
    assert conductor.said[-1].changes == {"progress": 100}
    assert conductor.said[-1].results.get("memory_remaining", 0) == 0
