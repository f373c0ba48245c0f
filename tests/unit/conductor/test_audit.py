"""Each of the invariants of the books: nothing is found while it holds, and what breaks it is found."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from nova.conductor import fleet
from nova.db import allocations, audit, models, services
from nova.objects import states
from nova.objects.action import Action, Event
from nova.objects.base import new_uuid, utcnow
from nova.objects.instance import Instance
from tests.unit.conductor.books import Books, flavor, node, server

RESOURCES = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


@pytest.fixture
def one(core: Books) -> Instance:
    """A server on host a, with everything that belongs to it; host b is empty."""
    for host in ("a", "b"):
        core.db.write(lambda connection, host=host: services.register(connection, host, "nova-compute", "compute", 1))
    nodes = [fleet.report_nodes(core, host, [node(host)])[0] for host in ("a", "b")]
    made = server(core, "a", node="a", vm_state=states.ACTIVE, launched_at=utcnow(), power_state=states.RUNNING)

    def claim(connection: sa.Connection) -> None:
        allocations.claim(connection, made.uuid, nodes[0].uuid, RESOURCES, "p1", "u1")
        allocations.finish_io(connection, nodes[0].uuid, False)
        connection.execute(sa.insert(models.quota_usages), [
            {"project_id": "p1", "user_id": user, "instances": 1, "cores": 1, "ram": 512} for user in ("", "u1")])

    core.db.write(claim)
    return made


def found(core: Books) -> list[str]:
    return [str(finding) for finding in core.db.read(audit.audit)]


def change(core: Books, statement: Any) -> None:
    core.db.write(lambda connection: connection.execute(statement))


def test_nothing_is_found_while_all_agrees(core: Books, one: Instance) -> None:
    assert found(core) == []
    assert core.db.read(audit.unfinished) == []


@pytest.mark.parametrize(("table", "values", "says"), [
    ("allocations", {"resources": {**RESOURCES, "VCPU": 2}}, "the server's flavor asks for"),
    ("inventories", {"used": 7}, "the claims sum up to"),
    ("compute_nodes", {"num_instances": 3}, "num_instances is 3"),
    ("compute_nodes", {"num_io_ops": 3}, "num_io_ops is 3"),
    ("instances", {"host": "b"}, "the server is on b/a"),
    ("instances", {"node": "b"}, "the server is on a/b"),
    ("instances", {"task_state": "spawning"}, "belongs to no action under way"),
    ("instances", {"vm_state": states.BUILDING}, "nobody builds it"),
    ("instances", {"deleted": True}, "no such server"),
    ("instances", {"flavor": flavor(memory_mb=1024)}, "ram is 512, counted 1024"),
    ("quota_usages", {"cores": 5}, "cores is 5, counted 1"),
])
def test_what_does_not_agree_is_found(core: Books, one: Instance, table: str, values: dict[str, Any],
                                      says: str) -> None:
    change(core, sa.update(models.metadata.tables[table]).values(values))
    assert any(says in line for line in found(core)), found(core)


def test_a_server_has_one_claim(core: Books, one: Instance) -> None:
    other = core.db.read(lambda connection: connection.scalar(
        sa.select(models.compute_nodes.c.uuid).where(models.compute_nodes.c.host == "b")))
    core.db.write(lambda connection: allocations.claim(connection, one.uuid, other, RESOURCES, "p1", "u1"))
    assert any("has 2 claims" in line for line in found(core))


def test_a_server_without_a_claim_is_found(core: Books, one: Instance) -> None:
    core.db.write(lambda connection: allocations.release(connection, one.uuid))
    assert any("without a claim" in line for line in found(core))


@pytest.mark.parametrize("outcome", [None, "superseded"])
def test_what_is_under_way_or_has_no_result_is_told(core: Books, one: Instance, outcome: str | None) -> None:
    action = Action(uuid=new_uuid(), instance_uuid=one.uuid, action="stop", operation="stop", step="power_off",
                    outcome=outcome, request_id="req-1", start_time=utcnow(),
                    events=[Event(event="compute_stop_instance", start_time=utcnow())])
    change(core, sa.insert(models.actions).values({
        column.name: getattr(action, column.name) for column in models.actions.c if column.name != "id"}))
    assert len(core.db.read(audit.unfinished)) == (outcome is None)
    assert len(core.db.read(audit.open_events)) == (outcome is not None)
    assert any("the server does not know of it" in line for line in found(core)) == (outcome is None)
