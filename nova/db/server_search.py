"""Lists of servers: filters, order and pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import models
from nova.db.servers import brief_columns
from nova.db.sql import regexp, rows
from nova.objects import states
from nova.objects.instance import Instance
from nova.objects.server_request import ServerQuery

TABLE = models.instances

# Servers that one statement names.
_AT_A_TIME = 1000

# Filters that compare; every other column is searched by regular expression.
_EXACT = frozenset({"uuid", "project_id", "user_id", "image_ref", "vm_state", "host", "task_state", "power_state",
                    "launch_index", "flavorid", "progress", "config_drive", "locked_by", "server_group"})

# API names -> columns
_NAMES = {"name": "display_name", "flavor": "flavorid", "instance_type_id": "flavorid", "image": "image_ref",
          "description": "display_description", "locked": "locked_by", "tenant_id": "project_id",
          "auto_disk_config": "disk_config"}


def search(connection: sa.Connection, query: ServerQuery) -> Iterator[Instance]:
    """A page of servers, to be read within the transaction.

    Raises MarkerNotFound, InvalidInput (unknown filter, bad expression).
    """
    statement = sa.select(*brief_columns()) if query.brief else sa.select(TABLE)
    conditions, expressions = _conditions(query)
    sort = _sort(query)
    marker = None
    if query.marker is not None:
        wanted = sa.select(TABLE).where(TABLE.c.uuid == query.marker)
        if query.project_id is not None:
            wanted = wanted.where(TABLE.c.project_id == query.project_id)
        marker = rows.marker_row(connection, wanted, query.marker)
    page = rows.page(statement.where(*conditions), TABLE, sort, None if expressions else query.limit, marker)
    if not expressions:
        return rows.each_object(Instance, connection.execute(page))
    uuids = regexp.select(connection, TABLE.c.uuid, page, expressions, query.limit)
    return itertools.chain.from_iterable(
        rows.each_object(Instance, connection.execute(rows.page(
            statement.where(TABLE.c.uuid.in_(some)), TABLE, sort, None, None))) for some in _parts(uuids))


def _parts(uuids: list[str]) -> Iterator[list[str]]:
    """As many at a time as a statement may name."""
    for begin in range(0, len(uuids), _AT_A_TIME):
        yield uuids[begin:begin + _AT_A_TIME]


def _sort(query: ServerQuery) -> list[tuple[str, str]]:
    """The columns that decide, each once: what comes after a unique one, or again, changes nothing."""
    sort: dict[str, str] = {}
    for name, direction in query.sort or [("created_at", "desc")]:
        column = _NAMES.get(name, name)
        if column not in TABLE.c:
            raise exception.InvalidInput(f"Unknown sort key: {name}.")
        sort.setdefault(column, direction)
        if column == "uuid":
            break
    sort.setdefault("uuid", next(reversed(sort.values())))
    return list(sort.items())


def _conditions(query: ServerQuery) -> tuple[list[sa.ColumnElement[bool]], list[regexp.Match]]:
    """What the database compares, and what is looked for in what it finds."""
    conditions: list[sa.ColumnElement[bool]] = []
    expressions: list[regexp.Match] = []
    if query.project_id is not None:
        conditions.append(TABLE.c.project_id == query.project_id)
    if query.deleted is not None:
        deleted = TABLE.c.deleted == sa.literal(query.deleted)
        # What is soft-deleted is deleted, too, to whoever looks for that.
        conditions.append(sa.or_(deleted, TABLE.c.soft_deleted_at.is_not(None)) if query.deleted else deleted)
    if query.changes_since is not None:
        conditions.append(TABLE.c.updated_at >= query.changes_since)
    if query.changes_before is not None:
        conditions.append(TABLE.c.updated_at <= query.changes_before)
    if not query.deleted and "vm_state" not in query.filters and query.changes_since is None \
            and query.changes_before is None and not query.filters.get("soft_deleted"):
        conditions.append(TABLE.c.vm_state != states.SOFT_DELETED)
    for name, value in query.filters.items():
        if name != "soft_deleted":
            condition = _condition(name, value)
            if isinstance(condition, regexp.Match):
                expressions.append(condition)
            else:
                conditions.append(condition)
    return conditions, expressions


def _condition(name: str, value: Any) -> sa.ColumnElement[bool] | regexp.Match:
    special = _SPECIAL.get(name)
    if special is not None:
        return special(value)
    name = _NAMES.get(name, name)
    if name not in TABLE.c or name in ("user_data", "network_info", "system_metadata", "personality"):
        raise exception.InvalidInput(f"Invalid filter field: {name}.")
    column = TABLE.c[name]
    if value is None:
        return column.is_(None)
    values = value if isinstance(value, list) else [value]
    if name in _EXACT:
        return _among(column, values)
    return regexp.matches(column, *(str(item) for item in values))


def _among(column: sa.Column[Any], values: list[Any]) -> sa.ColumnElement[bool]:
    """Equal to one of the values, which come as strings from a query."""
    try:
        if isinstance(column.type, sa.Integer):
            values = [int(value) for value in values]
        elif isinstance(column.type, sa.Boolean):
            values = [value if isinstance(value, bool) else str(value).lower() in ("1", "true", "yes", "on")
                      for value in values]
    except ValueError:
        return sa.false()
    plain = [value for value in values if value is not None]
    condition = column.in_(plain)
    return sa.or_(condition, column.is_(None)) if None in values else condition


def _ip(mark: str) -> Callable[[Any], regexp.Match]:
    """A regular expression anchored at the beginning of an address of the version with this ``mark`` in it."""
    return lambda value: regexp.listed(TABLE.c.addresses, str(value), mark)


def _locked(value: Any) -> sa.ColumnElement[bool]:
    return TABLE.c.locked_by.is_not(None) if value else TABLE.c.locked_by.is_(None)


def _metadata(value: Any) -> sa.ColumnElement[bool]:
    """All of these items (the JSON text has each as "key":"value")."""
    items = [msgspec.json.encode({key: item}).decode()[1:-1] for key, item in dict(value).items()]
    return sa.and_(*(sa.type_coerce(TABLE.c.metadata, sa.Text).contains(item, autoescape=True) for item in items))


def _tags(every: bool, negate: bool) -> Callable[[Any], sa.ColumnElement[bool]]:
    def condition(value: Any) -> sa.ColumnElement[bool]:
        tags = value if isinstance(value, list) else str(value).split(",")
        found = [sa.type_coerce(TABLE.c.tags, sa.Text).contains(msgspec.json.encode(tag).decode(), autoescape=True)
                 for tag in tags]
        combined = sa.and_(*found) if every else sa.or_(*found)
        return sa.not_(combined) if negate else combined

    return condition


_SPECIAL: dict[str, Callable[[Any], sa.ColumnElement[bool] | regexp.Match]] = {
    "ip": _ip("."),
    "ip6": _ip(":"),
    "locked": _locked,
    "metadata": _metadata,
    "tags": _tags(every=True, negate=False),
    "tags-any": _tags(every=False, negate=False),
    "not-tags": _tags(every=True, negate=True),
    "not-tags-any": _tags(every=False, negate=True),
}
