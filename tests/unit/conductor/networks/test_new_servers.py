"""Rows of new servers. tests/integration/db runs these tests on PostgreSQL, which needs one statement for a server."""

from __future__ import annotations

import datetime

import msgspec
import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import tables
from nova.db.networks import new_servers, security_groups
from nova.db.servers import actions, servers
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance
from tests.unit.conductor.books import Books, flavor


def new(name: str = "vm") -> tuple[Instance, Action]:
    now = utcnow()
    instance = Instance(uuid=new_uuid(), project_id="p1", user_id="u1", display_name=name, hostname="vm",
                        flavor=flavor(), metadata={"%(uuid)s": "ä%"}, created_at=now)
    action = Action(uuid=new_uuid(), instance_uuid=instance.uuid, action="create", operation="create",
                    payload={"tries": 1}, owner="conductor@a", lease_until=now + datetime.timedelta(seconds=30),
                    request_id="req-1", user_id="u2", project_id="p2", start_time=now,
                    events=[Event(event="conductor_place", start_time=now)])
    instance.action_uuid = action.uuid
    return instance, action


def insert(core: Books, *made: tuple[Instance, Action], default_group_of: str | None = "p1") -> None:
    instances, first = zip(*made, strict=True)
    core.db.write(lambda connection: new_servers.insert(connection, instances, first, default_group_of))


def groups_of(core: Books, instance: Instance) -> list[tuple[str, str]]:
    groups, members = tables.security_groups, tables.security_group_members
    rows = core.db.read(lambda connection: connection.execute(sa.select(groups.c.project_id, groups.c.name).join(
        members, members.c.group_id == groups.c.id).where(members.c.instance_uuid == instance.uuid)).all())
    return [tuple(row) for row in rows]


def assert_stored(core: Books, instance: Instance, action: Action) -> None:
    assert core.db.read(lambda connection: servers.get(connection, instance.uuid)) == instance
    stored = core.db.read(lambda connection: actions.get(connection, action.uuid))
    assert stored is not None
    assert stored.id > 0
    assert msgspec.structs.replace(stored, id=0) == action


@pytest.mark.parametrize("count", [1, 3])
def test_servers_are_stored_with_their_actions_and_default_group(core: Books, count: int) -> None:
    core.db.write(lambda connection: security_groups.ensure_default(connection, "other"))
    for _first_and_later_servers_of_the_project in range(2):
        made = [new() for _number in range(count)]
        insert(core, *made)
        assert all(instance.id > 0 for instance, _action in made)
        for instance, action in made:
            assert_stored(core, instance, action)
            assert groups_of(core, instance) == [("p1", "default")]


def test_servers_without_the_default_group(core: Books) -> None:
    instance, action = new()
    insert(core, (instance, action), default_group_of=None)
    assert_stored(core, instance, action)
    assert groups_of(core, instance) == []


def test_single_server_takes_one_statement_on_postgresql(core: Books) -> None:
    insert(core, new())
    core.statements()
    insert(core, new())
    assert len(core.statements()) == (1 if core.db.dialect == "postgresql" else 3)


def test_refused_rows_leave_nothing(core: Books) -> None:
    instance, action = new()
    insert(core, (instance, action))
    other, _unused = new()
    with pytest.raises(db_exception.DBDuplicateEntry):
        insert(core, (other, msgspec.structs.replace(action, instance_uuid=other.uuid)))
    too_long, second = new("x" * 300)
    with pytest.raises(exception.InvalidInput, match="display_name may have at most 255 characters"):
        insert(core, (too_long, second))
    with pytest.raises(exception.InvalidInput):
        insert(core, (other, msgspec.structs.replace(second, instance_uuid=other.uuid, owner="x" * 300)))
    for table, column in ((tables.instances, "uuid"), (tables.actions, "instance_uuid"),
                          (tables.security_group_members, "instance_uuid")):
        assert core.db.read(lambda connection, of=table.c[column]: connection.scalars(sa.select(of)).all()) == [
            instance.uuid]
