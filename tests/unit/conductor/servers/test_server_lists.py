"""Long lists of servers: bounded statements and bounded memory."""

from __future__ import annotations

import gc

from nova.conductor.endpoints.servers import Actions, Servers
from nova.db.servers import actions, servers
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers import states
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_request import ServerQuery
from nova.rpcapi.servers import Servers as Interface
from tests.unit.conductor.books import Books, ctx, server

MANY = 300


def _alive() -> int:
    return sum(isinstance(thing, Instance) for thing in gc.get_objects())


def test_shelved_servers_are_selected_in_windows(core: Books) -> None:
    """A single statement must not read millions of servers."""
    everybody = [server(core) for _number in range(5)]
    wanted = [everybody[0].uuid, everybody[3].uuid]
    for uuid in wanted:
        core.db.write(lambda connection, uuid=uuid: servers.update(  # type: ignore[misc]
            connection, uuid, {"vm_state": states.SHELVED, "action_uuid": None}))
    found, after, windows = [], 0, 0
    while after is not None:
        several, after = core.db.read(lambda connection, after=after: servers.at_rest(  # type: ignore[misc]
            connection, states.SHELVED, after, window=2))
        assert len(several) <= 2
        found += [each.uuid for each in several]
        windows += 1
    assert (found, windows) == (wanted, 3)


def test_lists_of_actions_have_no_payloads_and_events(core: Books) -> None:
    """A user can fill both with the properties of images and with failures; a list of 1000 would take 100 MB."""
    instance = server(core)
    made = Action(uuid=new_uuid(), instance_uuid=instance.uuid, action="stop", request_id="req-1", start_time=utcnow(),
                  message="Error", payload={"data": "x"}, events=[Event(event="e", start_time=utcnow(), details="x")])
    core.db.write(lambda connection: actions.insert(connection, [made]))
    [listed, *_earlier] = Actions(core).index(ctx(), instance.uuid)
    assert (listed.action, listed.request_id, listed.message) == ("stop", "req-1", "Error")
    assert (listed.payload, listed.events) == ({}, [])
    assert Actions(core).get(ctx(), instance.uuid, "req-1").events == made.events


def test_long_server_list_is_streamed_without_all_servers_in_memory(core: Books) -> None:
    wanted = {server(core).uuid for _number in range(MANY)}
    gc.collect()
    before = _alive()
    answer = Servers(core, None).index(ctx(), ServerQuery())  # type: ignore[arg-type]
    assert _alive() <= before + 1
    method = Interface.methods()["index"]
    arrived = method.decode_result(method.encode(answer))
    assert {instance.uuid for instance in arrived} == wanted
    assert len(arrived) == MANY
    assert _alive() >= before + MANY, "the count of live instances does not work"
