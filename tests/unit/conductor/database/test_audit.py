"""The invariants of the audit: no finding while they hold, and a finding for each violation."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from nova.conductor import announcer
from nova.db import audit, tables
from nova.db.accounts import quotas
from nova.db.hosts import allocations, services
from nova.db.servers import actions, evictions, server_migrations
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers import states
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration
from tests.unit.conductor.books import Books, at, flavor, node, server
from tests.unit.databases import open_events, unfinished

RESOURCES = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


@pytest.fixture
def one(core: Books) -> Instance:
    """Return a server on host a with its claim and quota usage; host b is empty."""
    for host in ("a", "b"):
        core.db.write(lambda connection, host=host: services.register(connection, host, "nova-compute", "compute", 1))
    nodes = [announcer.report_nodes(core, host, [node(host)])[0] for host in ("a", "b")]
    made = server(core, "a", node="a", vm_state=states.ACTIVE, launched_at=utcnow(), power_state=states.RUNNING)

    def claim(connection: sa.Connection) -> None:
        allocations.claim(connection, made.uuid, at(nodes[0].uuid), RESOURCES, "p1", "u1")
        allocations.finish_io(connection, nodes[0].uuid, False)
        connection.execute(sa.insert(tables.quota_usages), [
            {"project_id": "p1", "user_id": user, "instances": 1, "cores": 1, "ram": 512} for user in ("", "u1")])

    core.db.write(claim)
    return made


def found(core: Books) -> list[str]:
    return [str(finding) for finding in audit.audit(core.db)]


def change(core: Books, statement: Any) -> None:
    core.db.write(lambda connection: connection.execute(statement))


def test_audit_reports_nothing_for_consistent_records(core: Books, one: Instance) -> None:
    assert found(core) == []
    assert core.db.read(unfinished) == []


@pytest.mark.parametrize(("table", "values", "says"), [
    ("allocations", {"resources": {**RESOURCES, "VCPU": 2}}, "the server's flavor requires"),
    ("inventories", {"used": 7}, "the claims sum up to"),
    ("compute_nodes", {"num_instances": 3}, "num_instances is 3"),
    ("compute_nodes", {"num_io_ops": 3}, "num_io_ops is 3"),
    ("instances", {"host": "b"}, "the server is on b/a"),
    ("instances", {"node": "b"}, "the server is on a/b"),
    ("instances", {"task_state": "spawning"}, "task_state is spawning, but no action is running"),
    ("instances", {"vm_state": states.BUILDING}, "no action builds the server"),
    ("instances", {"deleted": True}, "no such server"),
    ("instances", {"flavor": flavor(memory_mb=1024)}, "ram is 512, counted 1024"),
    ("quota_usages", {"cores": 5}, "cores is 5, counted 1"),
])
def test_audit_reports_each_inconsistent_column(core: Books, one: Instance, table: str, values: dict[str, Any],
                                                says: str) -> None:
    change(core, sa.update(tables.metadata.tables[table]).values(values))
    assert any(says in line for line in found(core)), found(core)


def test_audit_reports_a_second_claim_of_a_server(core: Books, one: Instance) -> None:
    other = core.db.read(lambda connection: connection.scalar(
        sa.select(tables.compute_nodes.c.uuid).where(tables.compute_nodes.c.host == "b")))
    core.db.write(lambda connection: allocations.claim(connection, one.uuid, at(other), RESOURCES, "p1", "u1"))
    assert any("has 2 claims" in line for line in found(core))


def test_audit_reports_a_server_without_a_claim(core: Books, one: Instance) -> None:
    core.db.write(lambda connection: allocations.release(connection, one.uuid))
    assert any("without a claim" in line for line in found(core))


def moving(core: Books, one: Instance, **changes: Any) -> Migration:
    """Insert an open resize of the server from host a to host b with a larger flavor."""
    larger = flavor("m1.small", memory_mb=1024, vcpus=2)
    move = Migration(**{
        "uuid": new_uuid(), "instance_uuid": one.uuid, "migration_type": "resize", "status": "migrating",
        "source_compute": "a", "source_node": "a", "dest_compute": "b", "dest_node": "b", "old_flavor": one.flavor,
        "new_flavor": larger, "created_at": utcnow(), **changes})

    def write(connection: sa.Connection) -> None:
        node_b = connection.scalar(sa.select(tables.compute_nodes.c.uuid).where(tables.compute_nodes.c.host == "b"))
        server_migrations.insert(connection, move)
        allocations.claim(connection, move.uuid, at(node_b or ""),
                          {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1}, "p1", "u1")
        quotas.lock(connection, "p1", ("", "u1"))
        quotas.spend(connection, "p1", "u1", 0, 1, 512)

    core.db.write(write)
    return move


def test_audit_accepts_claims_on_source_and_destination_of_a_resize(core: Books, one: Instance) -> None:
    moving(core, one)
    assert found(core) == []


def test_audit_accepts_a_server_in_verify_resize(core: Books, one: Instance) -> None:
    move = moving(core, one, status="finished")
    change(core, sa.update(tables.instances).values(host="b", node="b", flavor=move.new_flavor, vm_state="resized"))
    change(core, sa.update(tables.compute_nodes).values(num_io_ops=0))
    assert found(core) == []
    assert not any(finding.repaired for finding in audit.audit(core.db, repair=True))


@pytest.mark.parametrize(("table", "values", "says"), [
    ("migrations", {"open": False}, "no such server"),
    ("migrations", {"dest_compute": "c"}, "the server is on c/b"),
    ("migrations", {"status": "finished"}, "num_io_ops is 1, counted 0"),
    ("migrations", {"new_flavor": flavor()}, "the server's flavor requires"),
    ("quota_usages", {"ram": 512}, "ram is 512, counted 1024"),
    ("instances", {"deleted": True}, "no such server"),
])
def test_audit_reports_inconsistent_migration_records(core: Books, one: Instance, table: str, values: dict[str, Any],
                                                      says: str) -> None:
    moving(core, one)
    change(core, sa.update(tables.metadata.tables[table]).values(values))
    assert any(says in line for line in found(core)), found(core)


def test_audit_reports_a_queued_action_without_a_running_action(core: Books, one: Instance) -> None:
    holder, behind = (Action(uuid=new_uuid(), instance_uuid=one.uuid, action=name, operation=name, queued=queued,
                             request_id="req-1", start_time=utcnow())
                      for name, queued in (("stop", False), ("attach_volume", True)))
    core.db.write(lambda connection: actions.insert(connection, [holder, behind]))
    change(core, sa.update(tables.instances).values(action_uuid=holder.uuid))
    assert found(core) == []
    change(core, sa.update(tables.instances).values(action_uuid=None))
    assert len(found(core)) == 2


def test_audit_removes_an_eviction_from_the_current_host(core: Books, one: Instance) -> None:
    for host in ("a", "b"):
        core.db.write(lambda connection, host=host: evictions.add(connection, one.uuid, host, keep_disks=False))
    wrong = [line for line in found(core) if line.startswith("eviction")]
    assert len(wrong) == 1
    assert "guest to be removed from a, but its server is there" in wrong[0]
    assert any(finding.repaired for finding in audit.audit(core.db, repair=True))
    assert core.db.read(lambda connection: evictions.hosts(connection, one.uuid)) == ["b"]
    assert found(core) == []


@pytest.mark.parametrize("outcome", [None, "superseded"])
def test_audit_reports_unfinished_actions_and_events(core: Books, one: Instance, outcome: str | None) -> None:
    action = Action(uuid=new_uuid(), instance_uuid=one.uuid, action="stop", operation="stop", step="power_off",
                    outcome=outcome, request_id="req-1", start_time=utcnow(),
                    events=[Event(event="compute_stop_instance", start_time=utcnow())])
    change(core, sa.insert(tables.actions).values({
        column.name: getattr(action, column.name) for column in tables.actions.c if column.name != "id"}))
    assert len(core.db.read(unfinished)) == (outcome is None)
    assert len(core.db.read(open_events)) == (outcome is not None)
    assert any("the server is not locked by it" in line for line in found(core)) == (outcome is None)
