"""Moves, builds and resets of servers while hosts fail and return."""

import contextlib

import pytest

from nova import exception
from nova.conductor.acceptance import start
from nova.conf import CONF
from nova.db.accounts import quotas
from nova.db.hosts import compute_nodes
from nova.db.servers import actions, evictions, server_migrations
from nova.objects.base import new_uuid
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.scheduling import Selection
from nova.objects.servers import states
from tests.unit.engine.test_engine_properties import CTX
from tests.unit.engine.world import Scheduler


@pytest.mark.parametrize(("name", "vm_state"), [("pause", states.PAUSED), ("stop", states.STOPPED)])
def test_server_state_after_a_failed_action_matches_its_guest(booted, name, vm_state):
    booted.operate(0, name)
    booted.deliver_order(0, twice=False, fails=1.0)
    booted.calm_down()
    server = booted.row()
    assert (server.vm_state, server.fault.code) == (vm_state, 500)


def test_late_build_order_after_a_delete_leaves_no_guest(machine):
    """The host has destroyed the guest, and its report is in transit, when the build order arrives."""
    machine.boot(1, twice=False)
    machine.operate(0, "delete")
    assert [(order.action.operation, order.undo) for _host, order in machine.world.orders] == [
        ("build", False), ("build", True)]  # the delete first compensates the build
    machine.deliver_order(1, twice=False, fails=0.0)
    machine.deliver_order(0, twice=False, fails=0.0)
    if len(machine.reports) > 1:
        machine.deliver_report(1, twice=False)
    machine.calm_down()


def given_up_in_the_middle_of_a_move(booted):
    """Return the host of a server that set the disks aside and then died, so that the move was abandoned."""
    booted.move(0, "migrate", "1")
    booted.deliver_order(0, twice=False, fails=0.0)
    host = next(host for host, guests in booted.hosts.items() if guests.disk(booted.uuids[0], aside=True))
    booted.lose_report(0)
    booted.host_dies(host)
    booted.leases_end()
    return host


def test_server_whose_host_was_lost_during_a_move_can_be_started(booted):
    uuid = booted.uuids[0]
    host = given_up_in_the_middle_of_a_move(booted)
    booted.calm_down()
    server = booted.row()
    assert (server.host, server.vm_state) == (host, states.ACTIVE)
    assert booted.hosts[host].power_states == {uuid: states.RUNNING}


def test_delete_of_a_server_whose_host_was_lost_in_a_move_leaves_no_disks(booted):
    uuid = booted.uuids[0]
    host = given_up_in_the_middle_of_a_move(booted)
    booted.deliver_all()
    booted.hosts_return()
    booted.deliver_all()
    assert (booted.row().host, booted.row().task_state) == (host, None)
    booted.operate(0, "delete")
    booted.deliver_all()
    assert booted.row().deleted
    assert {name for name, guests in booted.hosts.items() if uuid in guests.guests.traces()} == set()


class InOrder(Scheduler):
    """A scheduler that selects the first node of ``hosts`` by name, without a check of capacity."""

    hosts = "abc"
    knows_nodes = True

    def select(self, ctx, spec):
        nodes = {node.node: node for node in self.world.db.read(
            lambda connection: compute_nodes.states(connection, None, 100)) if node.host in self.hosts}
        usable = sorted(name for name, node in nodes.items() if node.host not in spec.ignore_hosts
                        and not (self.knows_nodes and node.node in spec.ignore_nodes))
        if not usable:
            raise exception.NoValidHost(reason="none left")
        found = nodes[usable[0]]
        return [[Selection(node_uuid=found.node_uuid, host=found.host, node=found.node)]
                for _uuid in spec.instance_uuids]


def nodes_of_four(machine):
    """Boot four servers, three of which fill a node, and return their nodes."""
    for _server in range(4):
        machine.boot(1, twice=False)
        machine.calm_down()
    found = [machine.row(uuid) for uuid in machine.uuids]
    assert [(server.vm_state, server.fault and server.fault.message) for server in found] == [(states.ACTIVE, None)] * 4
    return [server.node for server in found]


@pytest.mark.parametrize("knows_nodes", [True, False], ids=["", "with a scheduler of the last release"])
def test_build_is_rescheduled_if_the_claim_is_lost(machine, knows_nodes):
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    machine.world.scheduler.knows_nodes = knows_nodes
    assert nodes_of_four(machine) == ["a", "a", "a", "b"]


def test_lost_claim_of_a_migration_is_one_failed_event(machine):
    """The transaction that would end the step successfully is rolled back with its event."""
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    nodes_of_four(machine)
    machine.move(3, "migrate", "1")
    machine.calm_down()
    migration = machine.world.db.read(lambda connection: actions.index(connection, machine.uuids[3]))[0]
    assert machine.row(machine.uuids[3]).node == "c"
    assert [event.result for event in migration.events if event.event == "cold_migrate"] == ["Error", "Success"]


def test_full_node_does_not_exclude_other_nodes_of_the_host(machine):
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    machine.world.scheduler.hosts = "a"

    def another(connection):
        known, = [node for node in compute_nodes.index(connection) if node.host == "a"]
        uuid = new_uuid()
        compute_nodes.report(connection, "a", [known, ComputeNode(
            uuid=uuid, host="a", hypervisor_hostname="a-2", hypervisor_type="fake", hypervisor_version=1,
            provider=Provider(uuid=uuid, name="a-2", inventories={
                "VCPU": Inventory(total=3), "MEMORY_MB": Inventory(total=300), "DISK_GB": Inventory(total=3)}))])

    machine.world.db.write(another)
    assert nodes_of_four(machine) == ["a", "a", "a", "a-2"]


# --- reset-state of a server in VERIFY_RESIZE ----------------------------------------------------------------------
def resized(machine):
    """Resize the server to flavor 2, up to VERIFY_RESIZE, and return the source host."""
    source = machine.row().host
    machine.move(0, "resize", "2")
    machine.calm_down()
    assert (machine.row().vm_state, machine.row().flavor.vcpus) == (states.RESIZED, 2)
    return source


def settled_on(machine, host):
    """Assert that rows, claims, quota usage and guests place the server only on the given host."""
    server, = machine.uuids
    assert machine.row().host == host
    assert machine.world.db.read(lambda connection: server_migrations.open_of(connection, [server])) == []
    assert machine.world.db.read(lambda connection: evictions.hosts(connection, server)) == []
    assert {name for name, guests in machine.hosts.items() if server in guests.guests.traces()} == {host}
    nodes = machine.world.db.read(lambda connection: compute_nodes.states(connection, None, 100))
    used = {node.host: node.inventories["VCPU"].used for node in nodes}
    assert used == {name: machine.row().flavor.vcpus if name == host else 0 for name in machine.hosts}
    charged = machine.world.db.read(lambda connection: quotas.usage(connection, "p"))
    assert charged["cores"] == machine.row().flavor.vcpus


@pytest.mark.parametrize("state", [states.ACTIVE, states.ERROR])
@pytest.mark.parametrize("source_down", [False, True])
def test_reset_state_in_verify_resize_ends_the_resize(booted, state, source_down):
    source = resized(booted)
    destination = booted.row().host
    if source_down:
        booted.host_dies(source)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": state})
    assert booted.row().vm_state == state
    booted.deliver_all()
    booted.hosts_return()
    booted.deliver_all()
    assert (booted.row().vm_state, booted.row().task_state) == (state, None)
    settled_on(booted, destination)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": states.ACTIVE})


def test_reset_state_ends_a_resize_whose_source_fails_to_clean_up(booted):
    source = resized(booted)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": states.ACTIVE})
    booted.deliver_order(0, twice=False, fails=1.0)
    booted.deliver_all()
    assert booted.world.db.read(lambda connection: evictions.hosts(connection, booted.uuids[0])) == [source]
    booted.restart_host(source)
    settled_on(booted, booted.row().host)


def test_partially_confirmed_move_is_confirmed_and_never_reverted(booted, monkeypatch):
    """The source removes the set-aside disks before it fails, so that a revert is impossible."""
    source = resized(booted)
    destination, guests = booted.row().host, booted.hosts[source]
    confirm = guests.cold_migration.confirm

    def fails_at_the_end(instance):
        confirm(instance)
        raise RuntimeError("bad luck")

    monkeypatch.setattr(guests.cold_migration, "confirm", fails_at_the_end)
    booted.operate(0, "confirm_resize")
    booted.deliver_all()
    with contextlib.suppress(exception.InstanceInvalidState):
        start(booted.engine, CTX, booted.uuids[0], "revert_resize", {})
    booted.calm_down()
    assert (booted.row().vm_state, booted.row().flavor.vcpus) == (states.ACTIVE, 2)
    settled_on(booted, destination)


@pytest.fixture
def resizing_at_home(machine):
    """Resize a server on its own host, without a report of the last step, and return the guests of the host."""
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    machine.world.scheduler.hosts = "a"
    machine.boot(1, twice=False)
    machine.calm_down()
    CONF.set_override("allow_resize_to_same_host", True)
    machine.move(0, "resize", "2")
    CONF.clear_override("allow_resize_to_same_host")
    while machine.row().task_state != states.RESIZE_FINISH:
        machine.deliver_order(0, twice=False, fails=0.0)
        machine.deliver_report(0, twice=False)
    machine.deliver_order(0, twice=False, fails=0.0)
    return machine.hosts["a"]


def fail_to_destroy(monkeypatch, guests, times):
    real, failures = guests.guests.destroy, [RuntimeError("bad luck")] * times

    def destroy(*arguments, **named):
        if failures:
            raise failures.pop()
        real(*arguments, **named)

    monkeypatch.setattr(guests.guests, "destroy", destroy)


def test_retried_undo_of_a_same_host_resize_restores_the_guest(machine, resizing_at_home, monkeypatch):
    fail_to_destroy(monkeypatch, resizing_at_home, 1)
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
    machine.calm_down()
    machine.books_balance_at_every_moment()
    assert resizing_at_home.guest(machine.uuids[0]).size.vcpus == 1
    assert resizing_at_home.disk(machine.uuids[0], aside=True) is None
    settled_on(machine, "a")


def test_failed_undo_of_a_same_host_resize_leaves_no_eviction(machine, resizing_at_home, monkeypatch):
    fail_to_destroy(monkeypatch, resizing_at_home, 100)
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
    machine.deliver_all()
    assert machine.row().host == "a"
    assert machine.world.db.read(lambda connection: evictions.hosts(connection, machine.uuids[0])) == []
    machine.books_balance_at_every_moment()


@pytest.mark.parametrize("first", ["confirm_resize", "revert_resize", "reset_state"])
@pytest.mark.parametrize("came", [0, 1, 2])
@pytest.mark.parametrize("then", ["reset_state", "reboot_hard"])
def test_reset_state_during_confirm_or_revert_ends_the_resize(booted, first, came, then):
    request = {"state": states.ACTIVE}
    resized(booted)
    start(booted.engine, CTX, booted.uuids[0], first, request if first == "reset_state" else {})
    for _step in range(came):
        booted.deliver_order(0, twice=False, fails=0.0)
        booted.deliver_report(0, twice=False)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", request)
    if then != "reset_state":
        start(booted.engine, CTX, booted.uuids[0], then, {})
    booted.calm_down()
    if then == "reset_state":
        booted.operate(0, "reboot_hard")
        booted.calm_down()
    assert booted.row().vm_state == states.ACTIVE
    settled_on(booted, booted.row().host)


@pytest.mark.parametrize("name", ["migrate", "live_migrate", "evacuate"])
def test_move_fails_if_the_scheduler_repeatedly_selects_full_hosts(machine, name):
    for _time in range(3):
        machine.boot(3, twice=False)
    machine.calm_down()
    server = machine.row()
    assert server.vm_state == states.ACTIVE
    if name == "evacuate":
        machine.host_dies(server.host)
    machine.move(0, name, "1")
    machine.calm_down()
    after = machine.row()
    assert (after.host, after.task_state) == (server.host, None)
    assert "not enough free resources" in after.fault.message


def test_live_migration_to_a_lost_host_keeps_the_guest_running(booted):
    destination = begin_live_migration(booted)
    booted.host_dies(destination)
    booted.leases_end()
    server = booted.row()
    assert server.host != destination
    assert server.power_state == states.RUNNING


def test_live_migrated_guest_of_a_lost_destination_is_removed_from_source(booted):
    """The source host removes its remains of the guest at once, without waiting for its next reconciliation."""
    uuid, source = booted.uuids[0], booted.row().host
    destination = begin_live_migration(booted)
    while booted.row().host == source:
        booted.deliver_order(0, twice=False, fails=0.0)
        booted.deliver_report(0, twice=False)
    booted.lose_order(0)
    booted.host_dies(destination)
    booted.leases_end()
    booted.deliver_all()
    assert {host for host, guests in booted.hosts.items() if uuid in guests.guests.traces()} == {destination}
    server = booted.row()
    assert (server.host, server.vm_state, server.task_state) == (destination, states.ERROR, None)
    booted.books_balance_at_every_moment()
    assert booted.world.db.read(lambda connection: evictions.hosts(connection, uuid)) == []


def begin_live_migration(machine):
    """Start a live migration, up to the order to the destination, and return the destination."""
    machine.move(0, "live_migrate", "1")
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.deliver_report(0, twice=False)
    (destination, _order), = machine.world.orders
    return destination


def test_audit_finds_nothing_while_the_move_of_a_reset_server_ends_and_the_next_one_is_queued(booted):
    booted.move(0, "migrate", "1")
    booted.calm_down()
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": states.ACTIVE})
    booted.move(0, "migrate", "1")
    booted.books_balance_at_every_moment()
