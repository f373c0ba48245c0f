"""Between rows and objects."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from nova import exception

T = TypeVar("T", bound=msgspec.Struct)


def to_object(object_type: type[T], row: sa.Row[Any]) -> T:
    """The object with the row's values, by column name (columns that it has no field for are left out)."""
    return to_objects(object_type, [row])[0]


def to_objects(object_type: type[T], found: Iterable[sa.Row[Any]]) -> list[T]:
    """The same for all rows of one result."""
    return list(each_object(object_type, found))


def each_object(object_type: type[T], found: Iterable[sa.Row[Any]]) -> Iterator[T]:
    """The same, one after the other; a row is let go as soon as its object is made."""
    names: tuple[str, ...] = ()
    pick: Callable[[Any], Any] | None = None
    for row in found:
        if pick is None:
            names, pick = _columns(object_type, row._fields)
        yield object_type(**dict(zip(names, pick(row), strict=True)))


@functools.cache
def _columns(object_type: type[Any], columns: tuple[str, ...]) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """The fields that these columns fill, and what takes them out of a row.

    Looking every column up by its name, for every row, would be most of the cost of a long list.
    """
    names = tuple(name for name in object_type.__struct_fields__ if name in columns)
    indexes = [columns.index(name) for name in names]
    if len(indexes) == 1:
        return names, lambda row: (row[indexes[0]],)
    return names, operator.itemgetter(*indexes)


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
    """Lexicographically behind the marker row; one term per column."""
    further: sa.ColumnElement[bool] = sa.false()
    for name, direction in reversed(sort):
        column: sa.ColumnElement[Any] = table.c[name]
        value = marker._mapping[name]
        if isinstance(value, bool):
            # Truth values are compared for equality only: order them as numbers.
            column, value = sa.case((column, 1), else_=0), int(value)
        if value is None:
            behind = column.is_not(None) if direction == "asc" else sa.false()
            further = sa.or_(behind, sa.and_(column.is_(None), further))
        elif direction == "asc":
            # Lets every database begin in the middle of an index.
            further = sa.and_(column >= value, sa.or_(column > value, further))
        elif table.c[name].nullable:
            further = sa.or_(column < value, column.is_(None), sa.and_(column == value, further))
        else:
            further = sa.and_(column <= value, sa.or_(column < value, further))
    return further


def marker_row(connection: sa.Connection, statement: sa.Select[Any], marker: str) -> sa.Row[Any]:
    """The row that a page continues from. Raises MarkerNotFound."""
    row = connection.execute(statement).first()
    if row is None:
        raise exception.MarkerNotFound(marker=marker)
    return row
