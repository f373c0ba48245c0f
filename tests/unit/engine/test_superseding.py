"""Superseding of operations: all effects of the superseded operation are compensated, and no other effects."""

import pytest

from nova import exception
from nova.conductor.acceptance import start
from nova.conductor.saga import deferred_cleanup, step_executor
from nova.conductor.saga.engine import Engine
from nova.conductor.service_events import process_network_events
from nova.db.accounts import quotas
from nova.db.servers import actions
from nova.objects.base import Object
from nova.objects.servers import states
from nova.objects.servers.external_event import ExternalEvent
from nova.operations import REGISTRY
from nova.operations.framework.base import CONDUCTOR, VOLUMES, Wait, step
from tests.unit.engine.test_engine_properties import CTX
from tests.unit.engine.world import Bind


class Keep(Bind):
    """An operation that creates an external resource, which the server keeps."""

    name = action = "keep_outside"

    @step(CONDUCTOR, undo="unbind", external=VOLUMES)
    def bind(self, ctl):
        self.outside.make(self.instance.uuid)

    @step("host", undo="leave")
    def use(self, host):
        host.driver.guests.power_state(self.instance.uuid)

    def succeeded(self, ctl):
        super().succeeded(ctl)
        ctl.set(metadata={"has": "it"})

    def clean_up(self, of, ctl):
        if not ctl.instance.metadata:
            super().clean_up(of, ctl)


class Deferred(Bind):
    """A resource is created for a server in an external service, and deleted when the service is available."""

    name = action = "defer_outside"
    bind = Bind.bind

    @step(CONDUCTOR, external=VOLUMES, deferrable=True)
    def release(self, ctl):
        self.outside.remove(self.instance.uuid)


class Behind(Bind):
    """An operation whose external step is compensated before a step on the host."""

    name = action = "behind_outside"

    @step("host", undo="leave")
    def inspect(self, host):
        host.driver.guests.power_state(self.instance.uuid)

    bind, use, release = Bind.bind, Bind.use, Bind.release


class Retried(Bind):
    """An operation that is tried twice, and whose second try fails before its external step."""

    name = action = "retry_outside"
    retry_from = "choose"

    class Data(Object, kw_only=True):
        host: str = ""
        tries: int = 0

    data_type = Data

    @step(CONDUCTOR, undo="unchoose")
    def choose(self, ctl):
        if self.data.tries:
            raise exception.NoValidHost(reason="none left")

    bind, use, release = Bind.bind, Bind.use, Bind.release

    def unchoose(self, ctl):
        self.data.tries += 1

    def may_retry(self, failure):
        return failure.kind != "NoValidHost"


class Killed(BaseException):
    """A kill of the process, which no handler catches."""


@pytest.fixture(autouse=True)
def _server(machine, monkeypatch):
    monkeypatch.setitem(REGISTRY, Keep.name, Keep)
    monkeypatch.setitem(REGISTRY, Behind.name, Behind)
    monkeypatch.setitem(REGISTRY, Retried.name, Retried)
    monkeypatch.setitem(REGISTRY, Deferred.name, Deferred)
    machine.boot(1, twice=False)


def actions_of(machine):
    return machine.world.db.read(lambda connection: actions.index(connection, machine.uuids[0], None, None, None, None))


# --- unreported effects on hosts -------------------------------------------------------------------------
def test_guest_started_without_report_is_removed_if_its_build_is_superseded(machine):
    machine.deliver_order(0, twice=False, fails=0.0)
    [(host, _order, _report)] = machine.reports
    machine.lose_report(0)
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ERROR})
    machine.deliver_all()
    assert machine.hosts[host].power_states == {}
    assert machine.row().host is None


def test_superseded_evacuation_removes_the_guest_from_the_new_host(machine):
    machine.calm_down()
    source = machine.row().host
    machine.host_dies(source)
    machine.move(0, "evacuate", "1")
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.lose_report(0)
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
    machine.deliver_all()
    machine.hosts_return()
    machine.deliver_all()
    assert {host for host, guests in machine.hosts.items() if guests.power_states} == {source} == {machine.row().host}


def test_server_with_a_half_reverted_resize_is_on_the_host_of_its_disks(machine):
    machine.calm_down()
    source = machine.row().host
    machine.move(0, "resize", "2")
    machine.calm_down()
    assert machine.row().vm_state == states.RESIZED
    destination = machine.row().host
    machine.move(0, "revert_resize", "1")
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.deliver_report(0, twice=False)
    machine.lose_order(0)  # the guest is removed from the destination and not yet restored on the source
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ERROR})
    machine.deliver_all()
    machine.operate(0, "reboot_hard")
    machine.calm_down()
    server = machine.row()
    assert (server.host, server.vm_state, server.flavor.flavorid) == (source, states.ACTIVE, "1")
    assert machine.hosts[source].power_states == {server.uuid: states.RUNNING}
    assert machine.hosts[destination].power_states == {}


@pytest.mark.parametrize("came", [0, 1])
def test_delete_during_revert_resize_leaves_no_resources(machine, came):
    machine.calm_down()
    machine.move(0, "resize", "2")
    machine.calm_down()
    machine.move(0, "revert_resize", "1")
    for _step in range(came):
        machine.deliver_order(0, twice=False, fails=0.0)
        machine.deliver_report(0, twice=False)
    machine.operate(0, "delete")
    assert machine.row().task_state == states.DELETING
    while not machine.row().deleted:
        machine.deliver_order(0, twice=False, fails=0.0)
        machine.deliver_report(0, twice=False)
        assert machine.row().task_state == (None if machine.row().deleted else states.DELETING)
    machine.calm_down()
    machine.books_balance_at_every_moment()
    used = machine.world.db.read(lambda connection: quotas.usage(connection, "p"))
    assert (used["instances"], used["cores"]) == (0, 0)


def test_evacuate_of_a_server_being_deleted_is_refused(machine):
    machine.calm_down()
    machine.operate(0, "delete")
    machine.host_dies(machine.row().host)
    with pytest.raises(exception.InstanceInvalidState, match="task_state deleting"):
        start(machine.engine, CTX, machine.uuids[0], "evacuate", {})
    machine.calm_down()
    assert machine.row().vm_state == states.DELETED


def test_reset_state_of_a_server_being_deleted_is_refused(machine):
    machine.calm_down()
    machine.operate(0, "delete")
    with pytest.raises(exception.InstanceInvalidState, match="task_state deleting"):
        start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
    machine.calm_down()
    assert machine.row().vm_state == states.DELETED


# --- requests during compensation --------------------------------------------------------------------------
def test_request_during_compensation_of_reset_state_is_executed_later(machine):
    machine.calm_down()
    machine.move(0, "migrate", "1")
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
    machine.operate(0, "stop")
    assert machine.row().task_state == states.POWERING_OFF
    machine.deliver_all()
    assert (machine.row().vm_state, machine.row().task_state) == (states.STOPPED, None)


def test_delete_succeeds_if_the_superseded_hook_of_an_operation_fails(machine, monkeypatch):
    def superseded(self, ctl):
        raise RuntimeError("a defect")

    monkeypatch.setattr(Keep, "superseded", superseded)
    machine.calm_down()
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    machine.operate(0, "delete")
    for _time in range(step_executor.MAX_TRIES + 1):
        machine.deliver_all()
        machine.leases_end()
    machine.deliver_all()
    assert machine.row().vm_state == states.DELETED
    assert machine.outside.things == set()


# --- effects in external services----------------------------------------------------------------------------
def freeze_in_the_call(machine, meanwhile):
    """Suspend the conductor after the effect of the external call, while another conductor continues."""
    def make(uuid):
        machine.outside.things.add(uuid)
        del machine.outside.make
        meanwhile()
        machine.deliver_all()

    machine.outside.make = make


def come_late(machine, *errors):
    """Let the external call take effect after the delete of the server, and then raise the given errors."""
    def make(uuid):
        del machine.outside.make
        machine.operate(0, "delete")
        machine.deliver_all()
        machine.outside.things.add(uuid)
        for error in errors:
            raise error

    machine.outside.make = make


def test_external_effect_is_kept_if_another_conductor_completed_the_action(machine):
    machine.calm_down()
    freeze_in_the_call(machine, machine.leases_end)
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert actions_of(machine)[0].outcome == "success"
    assert machine.outside.things == {machine.uuids[0]}


def test_late_external_effect_is_undone_if_another_conductor_has_compensated_the_step(machine):
    def meanwhile():
        machine.leases_end()
        machine.deliver_order(0, twice=False, fails=1.0)
        machine.deliver_report(0, twice=False)
        machine.deliver_order(0, twice=False, fails=0.0)
        machine.deliver_report(0, twice=False)
        [(_host, order)] = machine.world.orders
        assert (order.step, order.undo) == ("inspect", True)

    def make(uuid):
        del machine.outside.make
        meanwhile()
        assert machine.outside.things == set()
        machine.outside.things.add(uuid)

    machine.calm_down()
    machine.outside.make = make
    start(machine.engine, CTX, machine.uuids[0], Behind.name, {})
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.deliver_report(0, twice=False)
    for _time in range(3):
        machine.deliver_all()
        machine.leases_end()
    assert [action.outcome for action in actions_of(machine)][:1] == ["error"]
    assert machine.outside.things == set()
    assert not machine.debts()


@pytest.mark.parametrize("errors", [(), (RuntimeError("500"),), (exception.ServiceUnavailable("outside"),),
                                    (Wait(seconds=60),)], ids=["done", "failed", "unavailable", "waits"])
def test_late_external_effect_is_undone_whatever_the_call_reports(machine, errors):
    machine.calm_down()
    come_late(machine, *errors)
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert machine.row().vm_state == states.DELETED
    assert machine.outside.things == set()


def test_late_external_effect_is_undone_after_a_conductor_crash(machine):
    machine.calm_down()
    come_late(machine, Killed())
    with pytest.raises(Killed):
        start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert machine.outside.things == {machine.uuids[0]}
    machine.leases_end()
    assert machine.outside.things == set()


def test_late_external_effect_is_undone_after_a_long_service_outage(machine):
    def away(uuid):
        raise exception.ServiceUnavailable("outside")

    def compensate(uuid):
        remove(uuid)
        machine.outside.remove = away

    machine.calm_down()
    come_late(machine)
    remove, machine.outside.remove = machine.outside.remove, compensate
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert machine.row().vm_state == states.DELETED
    for _time in range(20):
        machine.leases_end()
    assert machine.outside.things == {machine.uuids[0]}
    del machine.outside.remove
    machine.leases_end()
    assert machine.outside.things == set()


def away(uuid):
    raise exception.ServiceUnavailable("outside")


@pytest.mark.parametrize("meanwhile", [None, "delete"], ids=["failed", "deleted"])
def test_abandoned_compensation_is_completed_after_a_service_outage(machine, meanwhile):
    machine.calm_down()
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    machine.outside.remove = away
    if meanwhile:
        machine.operate(0, meanwhile)
    else:
        machine.deliver_order(0, twice=False, fails=1.0)
        machine.deliver_report(0, twice=False)
    for _time in range(step_executor.MAX_TRIES + 5):
        machine.deliver_all()
        machine.leases_end()
    machine.deliver_all()
    assert machine.row().action_uuid is None
    assert machine.outside.things == {machine.uuids[0]}
    assert machine.debts()
    del machine.outside.remove
    for _time in range(3):
        machine.leases_end()
    assert machine.outside.things == set()
    assert not machine.debts()


def test_cleanup_that_is_given_up_is_logged_as_an_error(machine, caplog, monkeypatch):
    monkeypatch.setattr(deferred_cleanup, "_MAX_TRIES", 2)
    machine.calm_down()
    come_late(machine, Killed())
    with pytest.raises(Killed):
        start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    machine.outside.remove = away
    for _time in range(5):
        machine.leases_end()
    assert not machine.debts()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"[instance: {machine.uuids[0]}] Giving up the cleanup of keep_outside.bind after 3 attempts: remove the "
        "leftovers of the server from the external service"]


def test_deferred_step_is_logged_as_deferred_and_its_operation_succeeds(machine, caplog):
    machine.calm_down()
    machine.outside.remove = away
    start(machine.engine, CTX, machine.uuids[0], Deferred.name, {})
    for _time in range(step_executor.MAX_TRIES):
        machine.leases_end()
    assert actions_of(machine)[0].outcome == "success"
    assert "Step release of operation defer_outside is deferred until its service responds" in caplog.text
    assert "Operation defer_outside failed" not in caplog.text
    del machine.outside.remove
    machine.leases_end()
    assert machine.outside.things == set()


def test_abandoned_compensation_is_deferred_when_the_next_attempt_fails_before_its_step(machine):
    def fail_once(uuid):
        del machine.outside.remove
        raise RuntimeError("500")

    machine.calm_down()
    machine.outside.remove = fail_once
    start(machine.engine, CTX, machine.uuids[0], Retried.name, {})
    machine.deliver_order(0, twice=False, fails=1.0)
    machine.deliver_all()
    assert actions_of(machine)[0].outcome == "error"
    machine.leases_end()
    assert machine.outside.things == set()
    assert not machine.debts()


def test_external_effect_repeated_after_compensation_is_undone_again(machine):
    def make(uuid):
        del machine.outside.make
        machine.operate(0, "delete")
        machine.deliver_all()
        machine.leases_end()
        assert not machine.debts()
        machine.outside.things.add(uuid)

    machine.calm_down()
    machine.outside.make = make
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert machine.outside.things == set()
    assert not machine.debts()


def test_late_external_effect_is_not_undone_during_a_running_operation(machine):
    def make(uuid):
        del machine.outside.make
        start(machine.engine, CTX, uuid, "reset_state", {"state": states.ACTIVE})
        machine.outside.things.add(uuid)
        machine.operate(0, "stop")

    machine.calm_down()
    machine.outside.make = make
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    machine.leases_end()
    assert machine.outside.things == {machine.uuids[0]}
    machine.deliver_all()
    machine.leases_end()
    assert machine.outside.things == set()


def test_external_effect_of_a_superseded_action_is_kept_if_requested_again(machine):
    def once_more():
        start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
        start(machine.engine, CTX, machine.uuids[0], Keep.name, {})

    machine.calm_down()
    freeze_in_the_call(machine, once_more)
    start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert [action.outcome for action in actions_of(machine)][:3] == ["success", "success", "superseded"]
    assert machine.outside.things == {machine.uuids[0]}


class Stored:
    """A thread pool whose threads all hang: it stores functions."""

    def __init__(self):
        self.functions = []

    def submit(self, kind, project_id, function, *args):
        self.functions.append(lambda: function(*args))


def test_background_work_waits_only_once_while_external_services_hang(machine, caplog):
    machine.boot(1, twice=False)
    machine.calm_down()
    come_late(machine, Killed())
    with pytest.raises(Killed):
        start(machine.engine, CTX, machine.uuids[0], Keep.name, {})
    assert machine.debts()
    pool = Stored()
    engine = Engine(machine.world, pool)
    for _time in range(3):
        engine.recovery._cleanup.run_due()
        process_network_events(engine, [ExternalEvent(name="network-changed", instance_uuid=machine.uuids[1])])
    assert len(pool.functions) == 2
    for function in pool.functions:
        function()
    # This test has no external network service.
    assert f"Background task interfaces {machine.uuids[1]} failed unexpectedly" in caplog.text
    assert machine.outside.things == set()
    process_network_events(engine, [ExternalEvent(name="network-changed", instance_uuid=machine.uuids[1])])
    assert len(pool.functions) == 3
