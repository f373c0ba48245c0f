"""Tests of external events, which are stored in one transaction per server and resume waiting operations."""

from __future__ import annotations

from typing import Any

import pytest

from nova import operations
from nova.conductor.acceptance import start
from nova.conductor.endpoints.servers import ExternalEvents
from nova.conductor.saga.engine import Engine
from nova.db.servers import external_events, servers
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.external_event import ExternalEvent
from nova.objects.servers.instance import Instance
from nova.operations.framework.base import CONDUCTOR, Operation, Wait, event_key, step
from nova.operations.framework.rules import Rules
from tests.unit.conductor.books import Books, ctx, server
from tests.unit.conductor.hosts.test_lost_hosts import Later

PLUGGED = "network-vif-plugged"


class Patient(Operation):
    """An operation that waits for the events of two ports and stores their statuses as metadata."""

    name = action = "patient"
    rules = Rules(label="patient")

    @step(CONDUCTOR)
    def wait(self, ctl: Any) -> None:
        keys = event_key(PLUGGED, "one"), event_key(PLUGGED, "two")
        came = ctl.events(*keys)
        if len(came) < len(keys):
            raise Wait(*keys, seconds=60)
        ctl.set(metadata={key.partition(":")[2]: status for key, status in came.items()})


@pytest.fixture
def engine(core: Books, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setitem(operations.REGISTRY, Patient.name, Patient)
    return Engine(core, Later())  # type: ignore[arg-type]


def event(uuid: str, tag: str | None = "one", name: str = PLUGGED, status: str = "completed") -> ExternalEvent:
    return ExternalEvent(name=name, instance_uuid=uuid, status=status, tag=tag)


def tell(engine: Engine, *events: ExternalEvent) -> list[int]:
    return ExternalEvents(engine).create(ctx(), list(events))


def waiting(core: Books, engine: Engine) -> Instance:
    """Return a server with an operation that waits for events."""
    instance = server(core, "h1", vm_state="active", launched_at=utcnow())
    start(engine, ctx(), instance.uuid, Patient.name, {})
    run(engine)
    return instance


def run(engine: Engine) -> None:
    engine._pool.run()  # type: ignore[attr-defined]


def seen(core: Books, instance: Instance) -> dict[str, str]:
    return core.db.read(lambda connection: servers.get(connection, instance.uuid)).metadata


def test_operation_resumes_when_all_awaited_events_have_arrived(core: Books, engine: Engine) -> None:
    instance = waiting(core, engine)
    assert tell(engine, event(instance.uuid, "one")) == [200]
    run(engine)
    assert seen(core, instance) == {}
    tell(engine, event(instance.uuid, "two", status="failed"))
    run(engine)
    assert seen(core, instance) == {"one": "completed", "two": "failed"}


def test_external_events_may_arrive_before_the_operation_waits(core: Books, engine: Engine) -> None:
    instance = server(core, "h1", vm_state="active", launched_at=utcnow())
    tell(engine, event(instance.uuid, "two"), event(instance.uuid, "one"))
    start(engine, ctx(), instance.uuid, Patient.name, {})
    run(engine)
    assert seen(core, instance) == {"one": "completed", "two": "completed"}


def test_external_events_of_a_server_are_stored_in_one_transaction(core: Books, engine: Engine) -> None:
    instance = waiting(core, engine)
    tell(engine, event(instance.uuid, "one"), event(instance.uuid, "two"), event(instance.uuid, "two"))
    assert len(engine._pool.work) == 1  # type: ignore[attr-defined]
    run(engine)
    assert seen(core, instance) == {"one": "completed", "two": "completed"}


def test_external_event_response_contains_a_code_per_event(core: Books, engine: Engine) -> None:
    placed, nowhere, unknown = server(core, "h1").uuid, server(core).uuid, new_uuid()
    gone = server(core, "h1", deleted=True).uuid
    assert tell(engine, event(unknown), event(placed), event(nowhere), event(gone), event(placed, None)) == [
        404, 200, 422, 404, 200]


def test_in_progress_and_too_long_external_events_are_not_stored(core: Books, engine: Engine) -> None:
    uuid = server(core, "h1").uuid
    assert tell(engine, event(uuid, "one", status="in-progress"), event(uuid, "x" * 255)) == [200, 200]
    keys = [event_key(PLUGGED, tag) for tag in ("one", "x" * 255)]
    assert core.db.read(lambda connection: external_events.came(connection, uuid, keys)) == {}


def test_repeated_external_event_replaces_the_previous_event(core: Books, engine: Engine) -> None:
    uuid, key = server(core, "h1").uuid, event_key(PLUGGED, "one")
    tell(engine, event(uuid))
    tell(engine, event(uuid, status="failed"))
    assert core.db.read(lambda connection: external_events.came(connection, uuid, [key])) == {key: "failed"}
