"""Between rows and objects."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from nova import exception

T = TypeVar("T", bound=msgspec.Struct)


def to_object(object_type: type[T], row: sa.Row[Any]) -> T:
    """The object with the row's values, by column name (columns that it has no field for are left out)."""
    mapping = row._mapping
    return object_type(**{name: mapping[name] for name in object_type.__struct_fields__ if name in mapping})


def values_of(table: sa.Table, value: msgspec.Struct) -> dict[str, Any]:
    """The columns of ``table`` that ``value`` has fields for; its id is left to the database."""
    columns = table.c.keys()
    return {name: getattr(value, name) for name in value.__struct_fields__
            if name in columns and name != "id"}


def page(statement: sa.Select[Any], table: sa.Table, sort: list[tuple[str, str]], limit: int | None,
         marker: sa.Row[Any] | None) -> sa.Select[Any]:
    """``statement`` in the order of ``sort`` (column, asc|desc), from after the marker row, at most ``limit`` rows.

    The last sort column must be unique. Nulls sort first ascending and last descending on every database.
    """
    for name, direction in sort:
        column = table.c[name]
        null_rank = sa.case((column.is_(None), 0), else_=1)
        ordering = (null_rank, column) if column.nullable else (column,)
        statement = statement.order_by(*(part.desc() if direction == "desc" else part.asc() for part in ordering))
    if marker is not None:
        statement = statement.where(_after(table, sort, marker))
    return statement.limit(limit) if limit is not None else statement


def _after(table: sa.Table, sort: list[tuple[str, str]], marker: sa.Row[Any]) -> sa.ColumnElement[bool]:
    """Lexicographically behind the marker row."""
    branches = []
    equal: list[sa.ColumnElement[bool]] = []
    for name, direction in sort:
        column: sa.ColumnElement[Any] = table.c[name]
        value = marker._mapping[name]
        if isinstance(value, bool):
            # Truth values are compared for equality only: order them as numbers.
            column, value = sa.case((column, 1), else_=0), int(value)
        behind: sa.ColumnElement[bool]
        if value is None:
            behind = column.is_not(None) if direction == "asc" else sa.false()
        elif direction == "asc":
            behind = column > value
        else:
            behind = sa.or_(column < value, column.is_(None)) if table.c[name].nullable else column < value
        branches.append(sa.and_(*equal, behind))
        equal.append(column.is_(None) if value is None else column == value)
    return sa.or_(*branches)


def marker_row(connection: sa.Connection, statement: sa.Select[Any], marker: str) -> sa.Row[Any]:
    """The row that a page continues from. Raises MarkerNotFound."""
    row = connection.execute(statement).first()
    if row is None:
        raise exception.MarkerNotFound(marker=marker)
    return row
