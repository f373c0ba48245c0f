"""Conversions between rows and objects, and pages of rows."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db.sql import hot
from nova.objects.base import whole

T = TypeVar("T", bound=msgspec.Struct)
U = TypeVar("U", bound=msgspec.Struct)


def to_object(object_type: type[T], row: sa.Row[Any]) -> T:
    """Return an object with the values of the row; columns without a field of the same name are ignored."""
    return to_objects(object_type, [row])[0]


def to_objects(object_type: type[T], result: Iterable[sa.Row[Any]]) -> list[T]:
    return list(iterate_objects(object_type, result))


def iterate_objects(object_type: type[T], result: Iterable[sa.Row[Any]]) -> Iterator[T]:
    """Yield an object for each row of one result; a row can be freed as soon as its object is created."""
    names: tuple[str, ...] = ()
    pick: Callable[[Any], Any] | None = None
    for row in result:
        if pick is None:
            names, pick = _columns(object_type, row._fields)
        yield object_type(**dict(zip(names, pick(row), strict=True)))


def to_joined(row: sa.Row[Any], first: tuple[type[T], sa.Table], second: tuple[type[U], sa.Table]) -> tuple[T, U]:
    """Return the objects of a row that has all columns of the first table, followed by all those of the second."""
    size = len(first[1].c)
    return _from_columns(*first, row[:size]), _from_columns(*second, row[size:])


def _from_columns(object_type: type[T], table: sa.Table, values: Sequence[Any]) -> T:
    names, pick = _columns(object_type, tuple(table.c.keys()))
    return object_type(**dict(zip(names, pick(values), strict=True)))


@functools.cache
def _columns(object_type: type[Any], columns: tuple[str, ...]) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """Return the fields that have a column, and a function that takes their values from a row by index. Access by name
    would be most of the cost of a long list."""
    names = tuple(name for name in object_type.__struct_fields__ if name in columns)
    indexes = [columns.index(name) for name in names]
    if len(indexes) == 1:
        return names, lambda row: (row[indexes[0]],)
    return names, operator.itemgetter(*indexes)


def values_of(table: sa.Table, value: msgspec.Struct) -> dict[str, Any]:
    """Return the values of the object by column; the database generates the id."""
    columns = table.c.keys()
    return {name: getattr(value, name) for name in value.__struct_fields__ if name in columns and name != "id"}


def equal(column: sa.ColumnElement[Any], value: Any) -> list[sa.ColumnElement[bool]]:
    """Return the condition that the column has the value, or no condition if the value is None."""
    return [] if value is None else [column == value]


def equal_or_null(column: sa.ColumnElement[Any], value: Any) -> list[sa.ColumnElement[bool]]:
    """Return the condition that the column has the value or is null, or no condition if the value is None."""
    return [] if value is None else [sa.or_(column == value, column.is_(None))]


def has_id(table: sa.Table, number: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row has this id; false for a number that the column cannot store."""
    return table.c.id == number if 0 < number < 2**63 else sa.false()


def identified(table: sa.Table, name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a row has this uuid or integer id."""
    number = whole(name)
    return table.c.uuid == name if number is None else table.c.id == number


def first(connection: sa.Connection, object_type: type[T], statement: sa.Select[Any], missing: Exception,
          parameters: dict[str, Any] | None = None) -> T:
    """Return the object of the first row. Raises ``missing`` if there is no row. A statement with ``parameters`` must
    be built once per process (see nova.db.sql.hot)."""
    result: Any = connection.execute(statement) if parameters is None else hot.execute(
        connection, statement, parameters)
    row = result.first()
    if row is None:
        raise missing
    return to_object(object_type, row)


@contextlib.contextmanager
def on_duplicate(error: Exception | None = None) -> Iterator[None]:
    """Raise ``error`` if the block violates a unique key. None: repeat the transaction (RetryRequest), since a
    concurrent transaction has inserted the same row."""
    try:
        yield
    except db_exception.DBDuplicateEntry as duplicate:
        raise error or db_exception.RetryRequest(duplicate) from duplicate


def count(connection: sa.Connection, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> int:
    """Return the number of rows of the table that fulfil the conditions."""
    return connection.scalar(sa.select(sa.func.count()).select_from(table).where(*conditions)) or 0


def page(statement: sa.Select[Any], table: sa.Table, sort: Sequence[tuple[str, str]], limit: int | None,
         marker: sa.Row[Any] | None) -> sa.Select[Any]:
    """Return the statement ordered by ``sort`` (column, asc|desc), for at most ``limit`` rows after the marker row. The
    final sort column must be unique. Nulls come first in ascending and last in descending order on every database."""
    for name, direction in sort:
        column = table.c[name]
        null_rank = sa.case((column.is_(None), 0), else_=1)
        ordering = (null_rank, column) if column.nullable else (column,)
        statement = statement.order_by(*(part.desc() if direction == "desc" else part.asc() for part in ordering))
    if marker is not None:
        statement = statement.where(after(table, sort, marker))
    return statement.limit(limit) if limit is not None else statement


def after(table: sa.Table, sort: Sequence[tuple[str, str]], marker: sa.Row[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that a row comes after the marker row, with one term per column."""
    further: sa.ColumnElement[bool] = sa.false()
    for name, direction in reversed(sort):
        column: sa.ColumnElement[Any] = table.c[name]
        value = marker._mapping[name]
        if isinstance(value, bool):
            # Booleans can only be compared for equality: order them as numbers.
            column, value = sa.case((column, 1), else_=0), int(value)
        if value is None:
            behind = column.is_not(None) if direction == "asc" else sa.false()
            further = sa.or_(behind, sa.and_(column.is_(None), further))
        elif direction == "asc":
            # ``column >= value`` follows from the rest, but lets each database start in the middle of an index.
            further = sa.and_(column >= value, sa.or_(column > value, further))
        elif table.c[name].nullable:
            further = sa.or_(column < value, column.is_(None), sa.and_(column == value, further))
        else:
            further = sa.and_(column <= value, sa.or_(column < value, further))
    return further


def marker_row(connection: sa.Connection, statement: sa.Select[Any], marker: str | None) -> sa.Row[Any] | None:
    """Return the marker row, or None without a marker. Raises MarkerNotFound."""
    if marker is None:
        return None
    row = connection.execute(statement).first()
    if row is None:
        raise exception.MarkerNotFound(marker=marker)
    return row
