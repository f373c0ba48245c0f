"""Security groups. A new group allows no ingress. Every project has a group ``default``, created when it is first
needed."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.common import plain_ip
from nova.db import tables, versions
from nova.db.accounts import quotas
from nova.db.sql import clock, rows
from nova.objects.base import whole
from nova.objects.networks.network import DefaultRule, SecurityGroup, SecurityGroupRule

TABLE = tables.security_groups
RULES = tables.security_group_rules
DEFAULT_RULES = tables.security_group_default_rules
MEMBERS = tables.security_group_members
INSTANCES = tables.instances

DEFAULT = "default"
ANYWHERE = "0.0.0.0/0"
# Maximum number of default rules. Each new group "default" gets a copy of all default rules.
_MOST_DEFAULT_RULES = 100
_RULE = ("protocol", "from_port", "to_port", "cidr")


# --- groups ----------------------------------------------------------------------------------
def index(connection: sa.Connection, project_id: str | None = None) -> list[SecurityGroup]:
    """Return the groups of a project (None: all projects) with their rules, oldest first, by two statements."""
    return _with_rules(connection, connection.execute(
        sa.select(TABLE).where(*rows.equal(TABLE.c.project_id, project_id)).order_by(TABLE.c.id)).all())


def get(connection: sa.Connection, group_id: int, project_id: str | None = None) -> SecurityGroup:
    """Return a group. Raises SecurityGroupNotFound."""
    return _with_rules(connection, [_row(connection, group_id, project_id)])[0]


def _row(connection: sa.Connection, group_id: int, project_id: str | None, lock: bool = False) -> sa.Row[Any]:
    statement = sa.select(TABLE).where(rows.has_id(TABLE, group_id), *rows.equal(TABLE.c.project_id, project_id))
    row = connection.execute(statement.with_for_update() if lock else statement).first()
    if row is None:
        raise exception.SecurityGroupNotFound(security_group_id=group_id)
    return row


def _with_rules(connection: sa.Connection, stored: Sequence[sa.Row[Any]]) -> list[SecurityGroup]:
    groups = {row.id: rows.to_object(SecurityGroup, row) for row in stored}
    rules: dict[int, list[SecurityGroupRule]] = {group_id: [] for group_id in groups}
    if groups:
        for row in connection.execute(sa.select(RULES).where(RULES.c.parent_group_id.in_(list(groups)))
                                      .order_by(RULES.c.id)):
            rules[row.parent_group_id].append(rows.to_object(SecurityGroupRule, row))
    for group_id, group in groups.items():
        group.rules = rules[group_id]
    return list(groups.values())


def is_default(project_id: Any) -> sa.ColumnElement[bool]:
    """Return the condition that a group is the default group of the project."""
    return sa.and_(TABLE.c.project_id == project_id, TABLE.c.name == DEFAULT)


def has_default(connection: sa.Connection, project_id: str) -> bool:
    return connection.scalar(sa.select(TABLE.c.id).where(is_default(project_id))) is not None


def ensure_default(connection: sa.Connection, project_id: str) -> None:
    """Create the project's default group if it is missing."""
    if has_default(connection, project_id):
        return
    try:
        _insert(connection, project_id, DEFAULT, "Default security group")
    except exception.SecurityGroupExists as error:  # Another transaction inserted it at the same moment.
        raise db_exception.RetryRequest(error) from error
    group = sa.select(TABLE.c.id, *(DEFAULT_RULES.c[name] for name in _RULE)).select_from(
        TABLE.join(DEFAULT_RULES, sa.true())).where(is_default(project_id))
    connection.execute(sa.insert(RULES).from_select(["parent_group_id", *_RULE], group.order_by(DEFAULT_RULES.c.id)))


def create(connection: sa.Connection, project_id: str, name: str, description: str) -> SecurityGroup:
    """Insert a group. Raises SecurityGroupExists, QuotaLimit."""
    ensure_default(connection, project_id)
    quotas.check_rows(connection, "security_groups", project_id, "Quota exceeded, too many security groups.")
    _insert(connection, project_id, name, description)
    row = connection.execute(sa.select(TABLE).where(TABLE.c.project_id == project_id, TABLE.c.name == name)).one()
    return rows.to_object(SecurityGroup, row)


def _insert(connection: sa.Connection, project_id: str, name: str, description: str) -> None:
    with rows.on_duplicate(exception.SecurityGroupExists(name=name)):
        connection.execute(sa.insert(TABLE).values(
            project_id=project_id, name=name, description=description, created_at=clock.now()))


def update(connection: sa.Connection, group_id: int, name: str, description: str,
           project_id: str | None = None) -> SecurityGroup:
    """Change the name or description. Raises SecurityGroupNotFound, SecurityGroupExists, InvalidInput (renaming
    default)."""
    row = _row(connection, group_id, project_id, lock=True)
    if name != row.name:
        if DEFAULT in (name, row.name):
            raise exception.InvalidInput(reason="the default security group cannot be renamed")
        _rename_on_servers(connection, group_id, row.name, name)
    with rows.on_duplicate(exception.SecurityGroupExists(name=name)):
        connection.execute(sa.update(TABLE).where(TABLE.c.id == group_id).values(name=name, description=description))
    return get(connection, group_id)


def _rename_on_servers(connection: sa.Connection, group_id: int, before: str, after: str) -> None:
    servers = connection.execute(
        sa.select(INSTANCES.c.id, INSTANCES.c.security_groups)
        .join(MEMBERS, MEMBERS.c.instance_uuid == INSTANCES.c.uuid)
        .where(MEMBERS.c.group_id == group_id).order_by(INSTANCES.c.id).with_for_update(of=INSTANCES)).all()
    if servers:
        connection.execute(
            sa.update(INSTANCES).where(INSTANCES.c.id == sa.bindparam("this")),
            [{"this": row.id, "security_groups": [after if name == before else name for name in row.security_groups]}
             for row in servers])


def delete(connection: sa.Connection, group_id: int, project_id: str | None = None) -> list[int]:
    """Delete a group and the rules with this source group in other groups. Return the ids of these other groups. Raises
    SecurityGroupNotFound, SecurityGroupInUse, InvalidInput (the default group)."""
    row = _row(connection, group_id, project_id, lock=True)
    if row.name == DEFAULT:
        raise exception.InvalidInput(reason="the default security group cannot be deleted")
    if connection.scalar(sa.select(MEMBERS.c.instance_uuid).where(MEMBERS.c.group_id == group_id).limit(1)):
        raise exception.SecurityGroupInUse(security_group_id=group_id)
    affected = list(connection.scalars(sa.select(RULES.c.parent_group_id).distinct().where(
        RULES.c.group_id == group_id, RULES.c.parent_group_id != group_id)))
    versions.bump(connection, versions.rules(row.project_id))
    connection.execute(sa.delete(RULES).where(
        sa.or_(RULES.c.parent_group_id == group_id, RULES.c.group_id == group_id)))
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == group_id))
    return affected


# --- rules -----------------------------------------------------------------------------------
def add_rule(connection: sa.Connection, rule: SecurityGroupRule, project_id: str | None = None) -> SecurityGroupRule:
    """Insert a checked rule. Raises SecurityGroupNotFound, InvalidInput (the rule exists), QuotaLimit."""
    group = _row(connection, rule.parent_group_id, project_id, lock=True)
    if rule.group_id is not None:
        _row(connection, rule.group_id, group.project_id)
    values = rows.values_of(RULES, rule)
    same = sa.and_(*(RULES.c[name].is_(None) if value is None else RULES.c[name] == value
                     for name, value in values.items()))
    if connection.scalar(sa.select(RULES.c.id).where(same).limit(1)) is not None:
        raise exception.InvalidInput(reason=f"this rule already exists in group {group.id}")
    most = quotas.limits(connection, group.project_id)["security_group_rules"]
    if most >= 0 and rows.count(connection, RULES, RULES.c.parent_group_id == group.id) >= most:
        raise exception.QuotaLimit("Quota exceeded, too many security group rules.")
    versions.bump(connection, versions.rules(group.project_id))
    done = connection.execute(sa.insert(RULES).values(values))
    return msgspec.structs.replace(rule, id=next(iter(done.inserted_primary_key or (0,))))


def source_of(rule: sa.Row[Any]) -> str | None:
    """Return the network that a rule allows, with host bits cleared, or None if the rule has a source group."""
    if rule.group_id is not None:
        return None
    # An earlier release accepted IPv6 addresses with a zone (fe80::1%eth0).
    return str(plain_ip.network(re.sub("%[^/]*", "", rule.cidr or ANYWHERE), strict=False))


def delete_rule(connection: sa.Connection, rule_id: int, project_id: str | None = None) -> int:
    """Delete a rule; return the id of its group. Raises SecurityGroupRuleNotFound."""
    row = connection.execute(sa.select(RULES.c.parent_group_id, TABLE.c.project_id).join(
        TABLE, TABLE.c.id == RULES.c.parent_group_id).where(
        rows.has_id(RULES, rule_id), *rows.equal(TABLE.c.project_id, project_id))).first()
    if row is None:
        raise exception.SecurityGroupRuleNotFound(rule_id=rule_id)
    versions.bump(connection, versions.rules(row.project_id))
    connection.execute(sa.delete(RULES).where(RULES.c.id == rule_id))
    return int(row.parent_group_id)


# --- servers ---------------------------------------------------------------------------------
_RESOLVE = sa.select(TABLE).where(TABLE.c.project_id == sa.bindparam("project"), sa.or_(
    TABLE.c.name.in_(sa.bindparam("names", expanding=True)), TABLE.c.id.in_(sa.bindparam("ids", expanding=True)))
).with_for_update(read=True, key_share=True)


def resolve(connection: sa.Connection, project_id: str, names: Sequence[str]) -> list[SecurityGroup]:
    """Return the groups with these names or ids in this order, without duplicates and without their rules. Lock them
    against deletion and renaming. Create the default group if it is among them. Raises SecurityGroupNotFound."""
    wanted = {"project": project_id, "names": list(names),
              "ids": [number for number in map(whole, names) if number is not None]}
    matching = connection.execute(_RESOLVE, wanted).all()
    if DEFAULT in names and all(row.name != DEFAULT for row in matching):
        ensure_default(connection, project_id)
        matching = connection.execute(_RESOLVE, wanted).all()
    rows_by_name = {str(row.id): row for row in matching} | {row.name: row for row in matching}
    chosen: dict[int, SecurityGroup] = {}
    for name in names:
        if name not in rows_by_name:
            raise exception.SecurityGroupNotFound(security_group_id=name)
        chosen[rows_by_name[name].id] = rows.to_object(SecurityGroup, rows_by_name[name])
    return list(chosen.values())


def add_members(connection: sa.Connection, group_ids: Sequence[int], instance_uuids: Sequence[str]) -> None:
    """Add servers to groups of which they are not members yet."""
    pairs = [{"group_id": group_id, "instance_uuid": uuid} for group_id in group_ids for uuid in instance_uuids]
    if pairs:
        connection.execute(sa.insert(MEMBERS), pairs)


_ADD_TO_DEFAULT = sa.insert(MEMBERS).from_select(["group_id", "instance_uuid"], sa.select(
    TABLE.c.id, INSTANCES.c.uuid).join_from(TABLE, INSTANCES, INSTANCES.c.uuid.in_(
        sa.bindparam("uuids", expanding=True))).where(is_default(sa.bindparam("project"))))


def add_to_default(connection: sa.Connection, project_id: str, instance_uuids: Sequence[str]) -> None:
    """Add stored servers, which are not members yet, to the default group of the project; create the group if needed.
    One statement if the group exists."""
    pairs = {"project": project_id, "uuids": list(instance_uuids)}
    if not connection.execute(_ADD_TO_DEFAULT, pairs).rowcount:
        ensure_default(connection, project_id)
        connection.execute(_ADD_TO_DEFAULT, pairs)


def remove_members(connection: sa.Connection, instance_uuid: str) -> None:
    """Remove a server from all its groups."""
    connection.execute(sa.delete(MEMBERS).where(MEMBERS.c.instance_uuid == instance_uuid))


# --- rules of new default groups ---------------------------------------------------------------
def default_rules(connection: sa.Connection) -> list[DefaultRule]:
    return rows.to_objects(DefaultRule, connection.execute(sa.select(DEFAULT_RULES).order_by(DEFAULT_RULES.c.id)))


def default_rule(connection: sa.Connection, rule_id: int) -> DefaultRule:
    """Return a rule. Raises SecurityGroupDefaultRuleNotFound."""
    return rows.first(connection, DefaultRule, sa.select(DEFAULT_RULES).where(rows.has_id(DEFAULT_RULES, rule_id)),
                      exception.SecurityGroupDefaultRuleNotFound(rule_id=rule_id))


def create_default_rule(connection: sa.Connection, rule: DefaultRule) -> DefaultRule:
    """Insert a checked rule. Raises SecurityGroupDefaultRuleExists, QuotaLimit."""
    quotas.serialize(connection, "security_group_default_rules")
    existing = default_rules(connection)
    if any(msgspec.structs.replace(other, id=rule.id) == rule for other in existing):
        raise exception.SecurityGroupDefaultRuleExists()
    if len(existing) >= _MOST_DEFAULT_RULES:
        raise exception.QuotaLimit("Quota exceeded, too many security group default rules.")
    done = connection.execute(sa.insert(DEFAULT_RULES).values(rows.values_of(DEFAULT_RULES, rule)))
    return msgspec.structs.replace(rule, id=next(iter(done.inserted_primary_key or (0,))))


def delete_default_rule(connection: sa.Connection, rule_id: int) -> None:
    """Delete a rule. Raises SecurityGroupDefaultRuleNotFound."""
    if not connection.execute(sa.delete(DEFAULT_RULES).where(rows.has_id(DEFAULT_RULES, rule_id))).rowcount:
        raise exception.SecurityGroupDefaultRuleNotFound(rule_id=rule_id)
