"""New servers: their rows, their first actions and their membership in the default security group."""

import functools
from collections.abc import Sequence

import sqlalchemy as sa

from nova.db.networks import security_groups
from nova.db.servers import actions, servers
from nova.db.sql import hot, rows
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance

_ACTION = "first_action_"  # prefix of the action's parameters, since instances have columns of the same names


def insert(connection: sa.Connection, instances: Sequence[Instance], first_actions: Sequence[Action],
           default_group_of: str | None) -> None:
    """Insert instances, whose ids are set, and their first actions. ``default_group_of``: the project whose default
    security group gets the instances as members, or None. On PostgreSQL, a single server takes one statement."""
    project, uuids = default_group_of, [instance.uuid for instance in instances]
    if project is not None and len(instances) == 1 and connection.dialect.name == "postgresql":
        action = rows.values_of(actions.TABLE, first_actions[0])
        stored = hot.execute(connection, _single_server(tuple(action)), {
            **servers.values_of(instances[0]), "server": uuids[0], "project": project,
            **{_ACTION + name: value for name, value in action.items()}}).first()
        instances[0].id = stored.id
        if not stored.groups:
            security_groups.add_to_default(connection, project, uuids)
        return
    servers.insert(connection, instances)
    actions.insert(connection, first_actions)
    if project is not None:
        security_groups.add_to_default(connection, project, uuids)


@functools.cache
def _single_server(action_columns: tuple[str, ...]) -> sa.Insert:
    """Return an INSERT of an instance that also stores its first action and its membership in the default group."""
    action = sa.insert(actions.TABLE).values({
        name: sa.bindparam(_ACTION + name, type_=actions.TABLE.c[name].type) for name in action_columns})
    members = security_groups.MEMBERS
    member = sa.insert(members).from_select(["group_id", "instance_uuid"], sa.select(
        security_groups.TABLE.c.id, sa.bindparam("server", type_=members.c.instance_uuid.type)).where(
        security_groups.is_default(sa.bindparam("project")))).returning(members.c.group_id).cte("member")
    groups = sa.select(sa.func.count()).select_from(member).scalar_subquery()
    return sa.insert(servers.TABLE).returning(servers.TABLE.c.id, groups.label("groups")).add_cte(
        action.cte("first_action"))
