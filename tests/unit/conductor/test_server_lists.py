"""Long lists of servers: what they take while they are made."""

from __future__ import annotations

import gc

from nova.conductor.endpoints.servers import Servers
from nova.objects.instance import Instance
from nova.objects.server_request import ServerQuery
from nova.rpcapi.servers import Servers as Interface
from tests.unit.conductor.books import Books, ctx, server

MANY = 300


def _alive() -> int:
    return sum(isinstance(thing, Instance) for thing in gc.get_objects())


def test_of_a_long_list_not_all_servers_are_in_memory_at_once(core: Books) -> None:
    wanted = {server(core).uuid for _number in range(MANY)}
    gc.collect()
    before = _alive()
    answer = Servers(core, None).index(ctx(), ServerQuery())  # type: ignore[arg-type]
    assert _alive() <= before + 1
    method = Interface.methods()["index"]
    arrived = method.decode_result(method.encode(answer))
    assert {instance.uuid for instance in arrived} == wanted
    assert len(arrived) == MANY
    assert _alive() >= before + MANY, "the count counts nothing"
