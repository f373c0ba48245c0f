"""The lines of a host that is emptied: who may write them, what looking at them costs, and what becomes of them."""

from __future__ import annotations

import functools

import pytest

from nova import context
from nova.conductor.background import drains as keeper
from nova.conductor.endpoints.hosts import Services
from nova.conductor.saga.engine import Engine
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


def test_one_conductor_looks_at_a_time_and_another_one_when_its_lease_has_ended(core: Books) -> None:
    drain = begun(core)
    assert take(core, drain, "first", seconds=-1)
    assert take(core, drain, "second")
    assert not take(core, drain, "third")
    assert note(core, drain, "first", line(drain, "u")) is None
    assert note(core, drain, "second", line(drain, "v")) == drain_states.RUNNING
    assert [each.instance_uuid for each in lines(core)] == ["v"]


def test_what_was_left_is_tried_again_when_the_drain_is_repeated_while_it_runs(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u", state=drain_states.LEFT), line(drain, "v", state=drain_states.MOVED))
    assert begun(core, parallel=7).uuid == drain.uuid
    assert [each.instance_uuid for each in lines(core)] == ["v"]
    assert core.db.read(lambda connection: drains.find(connection, "a")).parallel == 7  # type: ignore[union-attr]


def test_a_new_drain_forgets_the_lines_of_the_last_one(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u", state=drain_states.MOVED))
    assert core.db.write(lambda connection: drains.end(connection, drain.uuid, "me"))
    assert begun(core).uuid != drain.uuid
    assert not lines(core)


def test_what_was_not_come_to_when_it_ended_is_left(core: Books) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u"))
    core.db.write(lambda connection: drains.end(connection, drain.uuid, "me"))
    assert [(each.state, each.reason != "") for each in lines(core)] == [(drain_states.LEFT, True)]


def test_a_look_costs_as_many_statements_with_many_servers_as_with_few(core: Books) -> None:
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


def test_a_conductor_asks_once_when_no_host_is_emptied(core: Books) -> None:
    engine = Engine(core)
    core.statements()
    assert keeper.run_periodic(core, engine) is None
    assert len(core.statements()) == 1


@pytest.fixture
def compute(core: Books) -> str:
    return core.db.write(lambda connection: services.register(connection, "a", "nova-compute", "compute", 1)).uuid


def test_a_deleted_service_leaves_nothing_of_its_drain(core: Books, compute: str) -> None:
    drain = begun(core)
    take(core, drain, "me")
    note(core, drain, "me", line(drain, "u", state=drain_states.MOVED))
    core.transport = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nova.bus.forget", lambda *_arguments: None)
        Services(core).delete(context.admin(), compute)
    assert core.db.read(lambda connection: drains.find(connection, "a")) is None
