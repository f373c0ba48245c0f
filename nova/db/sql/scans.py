"""Pages of a table in the order of an index, by statements that read a bounded number of rows.

A table has more rows than a list may read, in particular those of deleted servers. A page is read from *ranges*: parts
of an index whose entries are equal in its first columns and have the order of the list in the other columns. To merge
several ranges, the database first limits each to the size of the page. If there are conditions without an index, the
ranges are read in *windows*: a statement finds the end of a window, and the page is read from the rows up to this end.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions, selectable

# Column names with asc or desc; the last column is unique. All directions are the same.
Order = Sequence[tuple[str, str]]
# A position in an order: the values that a row has in its columns.
Place = Mapping[str, Any]
Conditions = Sequence[sa.ColumnElement[bool]]
# Common property of the rows of a range: values of columns (None: null), or a condition with its own index.
Prefix = Mapping[str, Any] | sa.ColumnElement[bool]


# Limit of the subquery for a condition with its own index, greater than the number of its rows. The limit keeps
# databases from merging the subquery with the rest of the statement, and from choosing the index of the order.
_ALL = 10**9


class Constant(functions.FunctionElement[Any]):
    """A column with the same value in all rows to sort. If the value is null, PostgreSQL uses the index only if ORDER
    BY contains the column, and MariaDB only if it does not."""

    name = "constant_in_range"
    inherit_cache = True


@compiler.compiles(Constant)
def _as_column(element: Constant, compiling: Any, **options: Any) -> str:
    return str(compiling.process(element.clauses, **options))


@compiler.compiles(Constant, "mysql", "mariadb")
def _as_null(_element: Constant, _compiling: Any, **_options: Any) -> str:
    return "NULL"


class Driven(selectable.Join):
    """A join of a subquery with a table, in which each row of the subquery selects a row of the table by its key.
    SQLite keeps the order of a CROSS JOIN. PostgreSQL chooses by statistics that lack the newest rows, and without
    statistics it takes a table for empty and reads all of it for each row of the subquery. OFFSET 0 avoids this."""

    inherit_cache = True


@compiler.compiles(Driven)
def _as_join(element: Driven, compiling: Any, **options: Any) -> str:
    return str(compiling.visit_join(element, **options))


@compiler.compiles(Driven, "sqlite", "postgresql")
def _as_lookup(element: Driven, compiling: Any, **options: Any) -> str:
    ids, table, on = (compiling.process(part, **{**options, "asfrom": True}) for part in (
        element.left, element.right, element.onclause))
    if compiling.dialect.name == "sqlite":
        return f"{ids} CROSS JOIN {table} ON {on}"
    return " ".join((ids, "CROSS JOIN LATERAL (SELECT * FROM", table, "WHERE", on, "OFFSET 0) AS", table))


@dataclasses.dataclass(frozen=True)
class Range:
    """The rows of one range. ``nulls``: True if the first column of the order is null in all rows, False if in none,
    None if it cannot be null. ``index``: the index with the order of the range; None if rows must be sorted.
    ``constant``: columns that are null in all rows."""

    table: sa.Table
    order: Order
    index: str | None
    prefix: Prefix
    where: tuple[sa.ColumnElement[bool], ...]
    nulls: bool | None = None
    constant: tuple[sa.Column[Any], ...] = ()

    def selects(self, columns: Sequence[sa.ColumnElement[Any]], after: Place | None = None, until: Place | None = None,
                where: Conditions = ()) -> list[sa.Select[Any]]:
        """Return a SELECT, in order, for each piece of the range after ``after``, up to and including ``until``."""
        statement = sa.select(*columns).where(*self.where, *where)
        if not isinstance(self.prefix, Mapping):
            few = sa.select(self.table.c.id).where(self.prefix).limit(_ALL).subquery()
            statement = statement.select_from(rows_of(self.table, few))
        elif self.index is not None:
            # MariaDB may choose another index with the same first columns if it has no hint, and must then sort.
            for dialect in ("mysql", "mariadb"):
                statement = statement.with_hint(self.table, f"FORCE INDEX ({self.index})", dialect)
        if isinstance(self.prefix, Mapping):
            statement = statement.where(*has(self.table, self.prefix))
        return [statement.where(*piece).order_by(*self._ordering(single_value))
                for single_value, piece in self._pieces(after, until)]

    def _ordering(self, single_value: bool) -> list[sa.ColumnElement[Any]]:
        """Return the columns to order by. ``single_value``: the first column of the order has one value in all rows."""
        columns: list[sa.ColumnElement[Any]] = [Constant(column) for column in self.constant]
        columns += [Constant(self.table.c[name]) if single_value and name == self.order[0][0] else self.table.c[name]
                    for name, _way in self.order]
        return [element.desc() if self.order[0][1] == "desc" else element.asc() for element in columns]

    def among(self, columns: Sequence[sa.ColumnElement[Any]], ids: sa.Subquery, where: Conditions) -> sa.Select[Any]:
        """Return a SELECT, in order, of those rows with these ids that fulfil the conditions."""
        return sa.select(*columns).select_from(rows_of(self.table, ids)).where(
            *where).order_by(*((self.table.c[name].desc() if way == "desc" else self.table.c[name].asc())
                               for name, way in self.order))

    def _pieces(self, after: Place | None, until: Place | None) -> list[tuple[bool, Conditions]]:
        """Divide the rows between two positions into pieces that are contiguous in an index. Return for each piece its
        conditions, and True if all its rows have the same value in the first column of the order.

        Many rows may have the same value in this column. So the rows with the value of a position are a separate piece.
        """
        (name, way), order = self.order[0], self.order
        for place in (after, until):
            if self.nulls is not None and place is not None and self.nulls != (place[name] is None):
                # Nulls come first if ascending, else last: the position is before or after all rows of the range.
                if (self.nulls == (way == "asc")) != (place is until):
                    return []
                after, until = (None, until) if place is after else (after, None)
        if self.nulls:
            order = order[1:]
        if self.nulls or len(order) == 1 or name == "created_at" or (after is None and until is None):
            return [(bool(self.nulls), [*([_beside(self.table, order, after, False)] if after else []),
                                        *([_beside(self.table, order, until, True)] if until else [])])]
        rest, column = order[1:], self.table.c[name]
        first, last = (None if place is None else sa.literal(place[name], column.type) for place in (after, until))
        if after and until and after[name] == until[name]:
            return [(True, [column == first, _beside(self.table, rest, after, False),
                            _beside(self.table, rest, until, True)])]
        pieces: list[tuple[bool, Conditions]] = []
        middle = []
        if after:
            pieces.append((True, [column == first, _beside(self.table, rest, after, False)]))
            middle.append(column > first if way == "asc" else column < first)
        if until:
            pieces.append((True, [column == last, _beside(self.table, rest, until, True)]))
            middle.append(column < last if way == "asc" else column > last)
        return [*pieces, (False, middle)]


def ranges(table: sa.Table, order: Order, prefixes: Sequence[Prefix], where: Conditions = ()) -> list[Range]:
    """Return the ranges for these prefixes, of indexes that begin with the columns of a prefix and then ``order``."""
    pieces: list[Range] = []
    first = table.c[order[0][0]]
    for prefix in prefixes:
        equal: Mapping[str, Any] = prefix if isinstance(prefix, Mapping) else {}
        constant = tuple(table.c[name] for name, value in equal.items() if value is None)
        index = _index(table, frozenset(equal), tuple(name for name, _way in order))
        if not first.nullable or first.name in equal:
            pieces.append(Range(table, order, index, prefix, tuple(where), None, constant))
        else:
            pieces += [Range(table, order, index, prefix, (*where, first.is_(None)), True, constant),
                       Range(table, order, index, prefix, (*where, first.is_not(None)), False, constant)]
    return pieces


@functools.lru_cache(1000)
def _index(table: sa.Table, equal: frozenset[str], order: tuple[str, ...]) -> str | None:
    """Return the name of the index that begins with the columns ``equal``, then (first of) ``order``, or None."""
    for index in table.indexes:
        names = [column.name for column in index.columns]
        rest = names[len(equal):]
        if set(names[:len(equal)]) == equal and rest and rest == list(order[:len(rest)]):
            return str(index.name)
    return None


def outside(parts: Sequence[Range], behind: Place | None, before: Place | None) -> list[Range]:
    """Return the rows of the ranges whose first column of the order is strictly between its values at two positions."""
    remaining = []
    for part in parts:
        conditions = [_beyond(part, place, place is behind) for place in (behind, before) if place is not None]
        if None not in conditions:
            where = itertools.chain(part.where, *(condition for condition in conditions if condition is not None))
            remaining.append(dataclasses.replace(part, where=tuple(where)))
    return remaining


def _beyond(part: Range, place: Place, behind: bool) -> Conditions | None:
    """Return conditions that the first column is after (or before) its value at a position; None if no row can be."""
    name, way = part.order[0]
    value, column, greater = place[name], part.table.c[name], (way == "asc") == behind
    if value is None or part.nulls:  # null is less than all values
        return [] if (not part.nulls if greater else value is not None) else None
    limit = sa.literal(value, column.type)
    return [column > limit if greater else column < limit]


def has(table: sa.FromClause, prefix: Prefix) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a row has the prefix."""
    if not isinstance(prefix, Mapping):
        return [prefix]
    return [table.c[name].is_(None) if value is None else table.c[name] == sa.literal(value, table.c[name].type)
            for name, value in prefix.items()]


def page(parts: Sequence[Range], columns: Sequence[sa.ColumnElement[Any]], limit: int | None,
         after: Place | None = None, until: Place | None = None, offset: int | None = None,
         window: tuple[int, Conditions] | None = None) -> sa.Select[Any] | None:
    """Return a SELECT of the first ``limit`` rows of all ranges, merged, or None if no row can match.

    ``window``: maximum number of rows to read of each piece of a range, and conditions that are checked in these rows
    without an index. With several ranges ``columns`` must contain the columns of the order, and a row in two ranges is
    returned once. ``offset``: number of rows to skip in each range."""
    selects = []
    for part in parts:
        if window is None:
            selects += [statement.limit(limit).offset(offset) for statement in part.selects(columns, after, until)]
        else:
            selects += [part.among(columns, statement.limit(window[0]).subquery(), window[1]).limit(limit)
                        for statement in part.selects([part.table.c.id], after, until)]
    if len(selects) < 2:
        return selects[0] if selects else None
    together = sa.union(*(sa.select(statement.subquery()) for statement in selects)).subquery()
    merged = sa.select(together)
    for name, way in parts[0].order:
        column = together.c[name]
        # Sort nulls explicitly, since databases sort them differently.
        rank = [sa.case((column.is_(None), 0), else_=1)] if parts[0].table.c[name].nullable else []
        merged = merged.order_by(*(key.desc() if way == "desc" else key.asc() for key in (*rank, column)))
    return merged.limit(limit)


def window_end(connection: sa.Connection, parts: Sequence[Range], rows: int, after: Place | None) -> Place | None:
    """Return the position up to which each range has at most ``rows`` rows after ``after``, or None for the end."""
    table = parts[0].table
    statement = page(parts, [table.c[name] for name, _way in parts[0].order], 1, after, offset=rows - 1)
    row = connection.execute(statement).first() if statement is not None else None
    return None if row is None else {str(name): value for name, value in row._mapping.items()}


def at_most(parts: Sequence[Range], rows: int) -> sa.Subquery:
    """Return a subquery of the ids of the first ``rows`` rows of each range, so that no query plan reads more rows."""
    table = parts[0].table
    selects = [statement.limit(rows) for part in parts for statement in part.selects([table.c.id])]
    if len(selects) == 1:
        return selects[0].subquery()
    return sa.union(*(sa.select(statement.subquery()) for statement in selects)).subquery()


def distinct(connection: sa.Connection, column: sa.Column[Any], prefix: Prefix, most: int) -> list[Any] | None:
    """Return the different values, except null, of a column in the rows with the prefix, or None if there are more than
    ``most``. Each value takes one access to the index that begins with the prefix and the column."""
    statement = sa.select(column).where(*has(column.table, prefix))
    if not isinstance(prefix, Mapping):
        statement = statement.distinct()
    elif connection.dialect.name in ("mysql", "mariadb"):
        # A round of a recursive statement takes a millisecond on MariaDB, but GROUP BY skips equal values.
        statement = statement.group_by(*(column.table.c[name] for name in prefix), column)
    else:
        statement = _next_values(column, prefix, most + 2)
    values = list(connection.scalars(statement.limit(most + 2)))
    return None if len(values) > most + 1 else [value for value in values if value is not None]


def _next_values(column: sa.Column[Any], prefix: Mapping[str, Any], most: int) -> sa.Select[Any]:
    """Return a recursive SELECT of the first ``most`` values of a column in the rows with the prefix: each round finds
    the smallest value above the previous one."""
    following = column.table.alias()
    scan = sa.select(sa.func.min(column).label("value"), sa.literal(1).label("position")).where(
        *has(column.table, prefix)).cte("scan", recursive=True)
    next_value = sa.select(sa.func.min(following.c[column.name])).where(
        *has(following, prefix), following.c[column.name] > scan.c.value).scalar_subquery()
    scan = scan.union_all(sa.select(next_value, scan.c.position + 1).where(
        scan.c.value.is_not(None), scan.c.position < most))
    return sa.select(scan.c.value)


def rows_of(table: sa.Table, ids: sa.Subquery) -> Driven:
    """Return a FROM clause for the rows of the table with these ids."""
    return Driven(ids, table, table.c.id == ids.c.id)


def is_indexed(table: sa.Table, order: Order) -> bool:
    """Return True if ranges can have this order: an index ends with its columns, and all have the same direction."""
    names = [name for name, _way in order]
    return len({way for _name, way in order}) == 1 and not any(table.c[name].nullable for name in names[1:]) and any(
        [column.name for column in index.columns][-len(names):] == names for index in table.indexes)


def _beside(table: sa.Table, order: Order, place: Place, until: bool) -> sa.ColumnElement[bool]:
    """Return the condition that a row is after a position of the order or, if ``until`` is set, not after it."""
    forwards = (order[0][1] == "asc") != until
    condition: sa.ColumnElement[bool] = sa.true() if until else sa.false()
    for name, _way in reversed(order):
        column = table.c[name]
        value = sa.literal(place[name], column.type)
        # The first term follows from the second, but lets each database start and end within an index.
        if forwards:
            condition = sa.and_(column >= value, sa.or_(column > value, condition))
        else:
            condition = sa.and_(column <= value, sa.or_(column < value, condition))
    return condition
