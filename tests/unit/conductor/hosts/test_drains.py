"""Records of host drains: lease of the writing conductor, cost of a survey, and removal."""

from __future__ import annotations

import functools

import pytest
import sqlalchemy as sa

from nova import context
from nova.conductor.background import drains as keeper
from nova.conductor.endpoints.hosts import Services
from nova.conductor.saga.engine import Engine
from nova.db import tables
from nova.db.hosts import drains, services
from nova.db.sql import clock
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts import drain as drain_states
from nova.objects.hosts.drain import Drain, DrainedServer
from nova.objects.servers import states
from tests.unit.conductor.books import Books, server


def begun(core: Books, host: str = "a", **values: object) -> Drain:
    wanted = Drain(uuid=new_uuid(), host=host, created_at=utcnow(), **values)  # type: ignore[arg-type]
    return core.db.write(lambda connection: drains.begin(connection, wanted))


def line(drain: Drain, uuid: str, **values: object) -> DrainedServer:
    return DrainedServer(drain_uuid=drain.uuid, instance_uuid=uuid, since=utcnow(), **values)  # type: ignore[arg-type]


def note(core: Books, drain: Drain, owner: str, *lines: DrainedServer) -> str | None:
    return core.db.write(lambda connection: drains.note(connection, drain.uuid, owner, clock.after(60), lines))


def take(core: Books, drain: Drain, owner: str, seconds: float = 60) -> bool:
    return core.db.write(lambda connection: drains.take(connection, drain.uuid, owner, clock.after(seconds)))


def lines(core: Books) -> list[DrainedServer]:
    return core.db.read(lambda connection: drains.get(connection, "a"))[1]


def test_drain_is_surveyed_by_one_conductor_until_its_lease_expires(core: Books) -> None:
    drain = begun(core)
    assert take(core, drain, "first", seconds=-1)
    assert take(core, drain, "second")
    assert not take(core, drain, "third")
    assert note(core, drain, "first", line(drain, "u")) is None
    assert note(core, drain, "second", line(drain, "v")) == drain_states.RUNNING
    assert [each.instance_uuid for each in lines(core)] == ["v"]


def test_repeated_drain_retries_the_remaining_servers(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u", state=drain_states.LEFT), line(drain, "v", state=drain_states.MOVED))
    assert begun(core, parallel=7).uuid == drain.uuid
    assert [each.instance_uuid for each in lines(core)] == ["v"]
    assert core.db.read(lambda connection: drains.find(connection, "a")).parallel == 7  # type: ignore[union-attr]


def test_new_drain_deletes_the_records_of_the_previous_drain(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u", state=drain_states.MOVED))
    assert core.db.write(lambda connection: drains.end(connection, drain.uuid, "me"))
    assert begun(core).uuid != drain.uuid
    assert not lines(core)


def test_server_unprocessed_at_the_end_of_a_drain_is_marked_left(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u"))
    core.db.write(lambda connection: drains.end(connection, drain.uuid, "me"))
    assert [(each.state, each.reason != "") for each in lines(core)] == [(drain_states.LEFT, True)]


def test_drain_survey_takes_a_constant_number_of_statements(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    costs = []
    for number in (2, 60):
        made = [server(core, host="a", vm_state=states.RESIZED) for _number in range(number)]
        note(core, drain, "me", *(line(drain, each.uuid, state=drain_states.MOVING, request_id=f"req-{each.uuid}")
                                  for each in made))
        core.statements()
        core.db.read(functools.partial(drains.survey, drain=drain))
        costs.append(len(core.statements()))
    assert costs == [5, 5]


def test_drain_check_without_drains_takes_a_single_statement(core: Books) -> None:
    engine = Engine(core)
    core.statements()
    assert keeper.run_periodic(core, engine) is None
    assert len(core.statements()) == 1


def test_drain_with_an_unreadable_action_does_not_delay_others(core: Books) -> None:
    """An action written by a newer release: its server has returned to the host, and its payload cannot be read."""
    first = begun(core, "a")
    begun(core, "b")
    made = server(core, host="a")
    core.db.write(lambda connection: connection.execute(sa.insert(tables.actions).values(
        uuid=new_uuid(), instance_uuid=made.uuid, action="live-migration", operation="live_migrate",
        payload={"data": 1}, step="", attempt=1, undoing=False, outcome="error", request_id="req-1",
        start_time=utcnow(), updated_at=utcnow(), events=[], queued=False)))
    take(core, first, "me")
    note(core, first, "me", line(first, made.uuid, state=drain_states.MOVING, request_id="req-1"))
    core.db.write(lambda connection: drains.let_go(connection, first.uuid, "me"))
    assert keeper.run_periodic(core, Engine(core)) is not None
    states_of = core.db.read(lambda connection: {
        host: drains.get(connection, host)[0].state for host in ("a", "b")})
    assert states_of == {"a": drain_states.RUNNING, "b": drain_states.ENDED}


@pytest.fixture
def compute(core: Books) -> str:
    return core.db.write(lambda connection: services.register(connection, "a", "nova-compute", "compute", 1)).uuid


def test_delete_of_a_service_removes_its_drain(core: Books, compute: str) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u", state=drain_states.MOVED))
    core.transport = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nova.bus.forget", lambda *_arguments: None)
        Services(core).delete(context.admin(), compute)
    assert core.db.read(lambda connection: drains.find(connection, "a")) is None
