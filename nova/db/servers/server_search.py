"""Lists of servers: translation of a request into filters, order and page, with which nova.db.sql.searches reads."""

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.servers import text_index
from nova.db.servers.servers import INDEXED_TEXTS, brief_columns
from nova.db.sql import regexp, rows, scans, searches
from nova.objects import expression
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_request import ServerQuery

TABLE = tables.instances

# Columns that a filter compares with its value; it searches all other columns by regular expression.
_EXACT = frozenset({"uuid", "project_id", "user_id", "image_ref", "vm_state", "host", "task_state", "power_state",
                    "launch_index", "flavorid", "progress", "config_drive", "locked_by", "server_group"})

# Columns searched by regular expression that have an index and few different values.
_VALUED = frozenset({"node", "access_ip_v4", "access_ip_v6", "availability_zone", "root_device_name", "kernel_id",
                     "ramdisk_id", "disk_config"})

# Columns with an index, ordered by the number of servers with one value; columns with the fewest come first.
_SELECTIVE = ("uuid", "project_id", "user_id", "host", "node", "access_ip_v4", "access_ip_v6", "server_group",
              "image_ref", "kernel_id", "ramdisk_id", "locked_by", "task_state", "launch_index", "flavorid", "vm_state",
              "power_state", "progress", "config_drive", "availability_zone", "root_device_name", "disk_config")

# Filter by tags -> (True if all the tags are required, else any of them; True if the condition is negated).
_TAGS = {"tags": (True, False), "tags-any": (False, False), "not-tags": (True, True), "not-tags-any": (False, True)}

# Names in the API -> columns.
_NAMES = {"name": "display_name", "flavor": "flavorid", "instance_type_id": "flavorid", "image": "image_ref",
          "description": "display_description", "locked": "locked_by", "tenant_id": "project_id",
          "auto_disk_config": "disk_config"}


@dataclasses.dataclass(frozen=True)
class ServerPage:
    """A page of servers, to be read within the transaction. ``marker``: uuid of its final server if more may follow."""

    servers: Iterator[Instance]
    marker: str | None = None


def search(connection: sa.Connection, query: ServerQuery, partial: bool = False) -> ServerPage:
    """Return a page of servers. With ``partial``, the page may have fewer servers than the limit although more follow.
    Raises MarkerNotFound, InvalidInput (unknown filter, bad expression)."""
    wanted = _search(query)
    marker = rows.marker_row(connection, sa.select(TABLE).where(
        TABLE.c.uuid == query.marker, *rows.equal(TABLE.c.project_id, query.project_id)), query.marker)
    columns = brief_columns() if query.brief else list(TABLE.c)
    page = searches.page(connection, wanted, columns, query.limit, marker, partial)
    return ServerPage(rows.iterate_objects(Instance, page.rows), page.last)


def _sort(query: ServerQuery) -> list[tuple[str, str]]:
    """Return the sort columns with their directions, each column once, up to the first unique column."""
    sort: dict[str, str] = {}
    for name, direction in [*query.sort, ("created_at", query.sort[0][1] if query.sort else "desc")]:
        column = _NAMES.get(name, name)
        if column not in TABLE.c:
            raise exception.InvalidInput(f"Unknown sort key: {name}.")
        sort.setdefault(column, direction)
        if column == "uuid":
            break
    sort.setdefault("uuid", next(reversed(sort.values())))
    return list(sort.items())


def _search(query: ServerQuery) -> searches.Search:
    """Return the search for the query, with each filter in the group of its access path."""
    equal: dict[str, list[Any]] = {}
    indexed: dict[str, sa.ColumnElement[bool]] = {}
    where: list[sa.ColumnElement[bool]] = []
    rare: list[sa.ColumnElement[bool]] = []
    expressions: list[regexp.Match] = []
    finders: list[tuple[str, expression.Finder]] = []
    if query.project_id is not None:
        equal["project_id"] = [query.project_id]
    changes = [*([TABLE.c.updated_at >= query.changes_since] if query.changes_since is not None else []),
               *([TABLE.c.updated_at <= query.changes_before] if query.changes_before is not None else [])]
    if changes:
        indexed["updated_at"] = sa.and_(*changes)
    elif not query.deleted and "vm_state" not in query.filters and not query.filters.get("soft_deleted"):
        # Nearly all servers fulfil this condition, so it selects no index.
        rare.append(TABLE.c.vm_state != states.SOFT_DELETED)
    for name, value in query.filters.items():
        if name == "soft_deleted":
            continue
        column = _NAMES.get(name, name)
        if name == "locked" and value:
            indexed[column] = TABLE.c[column].is_not(None)
            continue
        if column in _EXACT:
            values = _values(TABLE.c[column], None if name == "locked" else value)
            # Two filters for one column (project_id and tenant_id) must both match.
            equal[column] = [value for value in values if value in equal.get(column, values)]
            continue
        condition = _condition(name, value)
        if isinstance(condition, regexp.Match):
            expressions.append(condition)
            if condition.period is not None:
                indexed[column] = condition.period
            if condition.find is not None and condition.column.name in INDEXED_TEXTS:
                finders.append((condition.column.name, condition.find))
        else:
            where.append(condition)
            if name in _TAGS:
                every, negate = _TAGS[name]
                by_tag = [text_index.without(tag.encode()) if negate else expression.finder(tag, literal=True)
                          for tag in _tags_of(value)]
                finders += [("tags", find) for find in (by_tag if every != negate else [regexp.any_of(by_tag)]) if find]
    prefixes = _deleted(query.deleted)
    return searches.Search(
        TABLE, _sort(query), _SELECTIVE, prefixes, _VALUED, equal, indexed, where, rare, expressions,
        functools.partial(text_index.candidates, finders=finders, prefixes=prefixes) if finders else None)


def _deleted(wanted: bool | None) -> list[scans.Prefix]:
    if wanted is None:
        return [{"deleted": False}, {"deleted": True}]
    # A list of deleted servers includes soft-deleted servers; in all other rows the column soft_deleted_at is null.
    # SQLite uses the index of the column for a comparison, but not for IS NOT NULL.
    soft_deleted = TABLE.c.soft_deleted_at > datetime.datetime(1, 1, 2, tzinfo=datetime.UTC)
    return [{"deleted": True}, soft_deleted] if wanted else [{"deleted": False}]


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
    return regexp.matches(column, *(str(item) for item in values))


def _values(column: sa.Column[Any], value: Any) -> list[Any]:
    """Return the values of a filter, which may be strings from a URL, in the type of the column, each value once."""
    values = value if isinstance(value, list) else [value]
    try:
        if isinstance(column.type, sa.Integer):
            values = [text if text is None else int(text) for text in values]
        elif isinstance(column.type, sa.Boolean):
            values = [text if text is None or isinstance(text, bool) else
                      str(text).lower() in ("1", "true", "yes", "on") for text in values]
    except ValueError:
        return []
    return list(dict.fromkeys(values))


def _ip(mark: str) -> Callable[[Any], regexp.Match]:
    """Return a filter of addresses by a regular expression that matches from their beginning. ``mark``: the character
    that precedes addresses of this IP version in the column."""
    return lambda value: regexp.listed(TABLE.c.addresses, str(value), mark)


def _metadata(value: Any) -> sa.ColumnElement[bool]:
    """Return the condition that the metadata of a row contain all these items ("key":"value" in the JSON text)."""
    items = [msgspec.json.encode({key: item}).decode()[1:-1] for key, item in dict(value).items()]
    return sa.and_(*(sa.type_coerce(TABLE.c.metadata, sa.Text).contains(item, autoescape=True) for item in items))


def _tags_of(value: Any) -> list[str]:
    """Return the tags of a filter in the form of the column: as JSON strings."""
    return [msgspec.json.encode(tag).decode() for tag in (value if isinstance(value, list) else str(value).split(","))]


def _tags(every: bool, negate: bool) -> Callable[[Any], sa.ColumnElement[bool]]:
    def condition(value: Any) -> sa.ColumnElement[bool]:
        matches = [sa.type_coerce(TABLE.c.tags, sa.Text).contains(tag, autoescape=True) for tag in _tags_of(value)]
        combined = sa.and_(*matches) if every else sa.or_(*matches)
        return sa.not_(combined) if negate else combined

    return condition


_SPECIAL: dict[str, Callable[[Any], sa.ColumnElement[bool] | regexp.Match]] = {
    "ip": _ip("."),
    "ip6": _ip(":"),
    "metadata": _metadata,
    **{name: _tags(*condition) for name, condition in _TAGS.items()},
}
