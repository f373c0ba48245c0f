"""The events of actions (os-instance-actions) and the notifications of operations that fail, retry or are compensated.
"""

import pytest

from nova import exception
from nova.db.maintenance import outbox
from nova.db.servers import actions
from nova.notifications.messages import NotificationSettings
from nova.objects.servers import states
from nova.objects.servers.order import StepReport
from nova.operations import REGISTRY
from tests.unit.engine.test_engine_properties import CTX
from tests.unit.engine.test_moves import InOrder, nodes_of_four


@pytest.fixture(autouse=True)
def _notifications(machine):
    machine.world.outbox.on, machine.world.outbox.settings = True, NotificationSettings(versioned=True)


def events_of_last_action(machine, uuid):
    """Return the names and results of the events of the server's last action."""
    action = machine.world.db.read(lambda connection: actions.index(connection, uuid))[0]
    return [(event.event, event.result) for event in action.events]


def notified(machine):
    """Return the types of all notifications in the outbox."""
    return [message.event_type for partition in range(outbox.PARTITIONS) for message in machine.world.db.read(
        lambda connection, partition=partition: outbox.page(connection, partition, 1000))]


def deliver_with_progress(machine, fails=0.0):
    """Execute the next order and report each of its steps, as a host whose steps take long."""
    host, order = machine.world.orders[0]
    machine.deliver_order(0, twice=False, fails=fails)
    operation = REGISTRY[order.action.operation](order.instance, order.action.payload["data"])
    for step in operation.batch(operation.step_named(order.step), order.undo):
        machine.engine.progress(CTX, StepReport(action_uuid=order.action.uuid, step=step.name, attempt=order.attempt,
                                                undo=order.undo, final=False, host=host))
    machine.deliver_report(0, twice=False)


def test_compensation_that_reports_progress_has_no_event(booted):
    booted.move(0, "resize", "2")
    deliver_with_progress(booted)
    deliver_with_progress(booted, fails=1.0)
    while booted.world.orders:
        deliver_with_progress(booted)
    assert booted.row().vm_state == states.ACTIVE
    assert events_of_last_action(booted, booted.uuids[0]) == [
        ("cold_migrate", "Success"), ("compute_resize_instance", "Success"), ("compute_finish_resize", "Error")]


@pytest.mark.parametrize("name", ["resize", "migrate", "evacuate"])
def test_failed_move_has_one_event_with_an_error(booted, name):
    if name == "evacuate":
        booted.host_dies(booted.row().host)
    booted.move(0, name, "2")
    booted.deliver_order(0, twice=False, fails=1.0)
    booted.calm_down()
    results = [result for _event, result in events_of_last_action(booted, booted.uuids[0])]
    assert results == ["Success"] * (len(results) - 1) + ["Error"]


def test_move_that_loses_a_claim_and_succeeds_on_the_next_host_notifies_no_failed_search(machine):
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    nodes_of_four(machine)
    assert [event for event in notified(machine) if "compute_task" in event] == []
    machine.move(3, "migrate", "1")
    machine.calm_down()
    assert machine.row(machine.uuids[3]).vm_state == states.RESIZED
    assert [event for event in notified(machine) if "compute_task" in event] == []


def test_evacuation_that_loses_a_claim_notifies_once_that_it_was_scheduled(machine):
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    *_full, source = nodes_of_four(machine)
    machine.host_dies(source)
    machine.move(3, "evacuate", "1")
    machine.calm_down()
    assert machine.row(machine.uuids[3]).node != source
    assert notified(machine).count("instance.rebuild_scheduled") == 1


def test_first_conductor_step_that_fails_has_the_first_event_of_its_operation(booted, monkeypatch):
    def check(self, ctl):
        raise exception.InvalidInput(reason="no")

    rescue = REGISTRY["rescue"]
    monkeypatch.setattr(rescue, rescue.steps[0].method, check)
    booted.operate(0, "rescue")
    assert events_of_last_action(booted, booted.uuids[0]) == [("compute_rescue_instance", "Error")]


def test_build_without_a_host_has_the_event_of_its_scheduling(machine, monkeypatch):
    def select(ctx, spec):
        raise exception.NoValidHost(reason="none")

    monkeypatch.setattr(machine.world.scheduler, "select", select)
    machine.boot(1, twice=False)
    assert events_of_last_action(machine, machine.uuids[0]) == [("conductor_schedule_and_build_instances", "Error")]
