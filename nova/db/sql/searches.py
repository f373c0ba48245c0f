"""Pages of large tables by any filter and order: none reads more rows when the table has more.

Every page is read in one of three ways:
- What is wanted is a range of an index, or several: the page is read from there, however many rows follow.
- A filter that has an index leaves few rows: all of these are read and sorted.
- Else the index of the order is read in windows until the page is full, or until its time is over and it has a row.
  Such a page is cut: it is short, and the list goes on behind its last row.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nova.db.sql import regexp, rows, scans

# Rows that are few: these a statement may read and sort; so many has a window.
FEW = 5000
# Seconds after which no further window is read for a page that has rows. An empty page is never cut: stock clients take
# it for the end of the list.
_SECONDS = 0.05
# Ranges that one statement merges.
_MOST_RANGES = 16
# Rows that one statement names.
_AT_A_TIME = 1000


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a list is asked for.

    ``order`` ends with a unique column. ``selective``: the columns that have an index together with the prefixes, in
    front of (created_at, uuid or id); those first whose values have the fewest rows. ``prefixes``: alternatives of
    which a row has one. ``equal``: columns and the values that each may have. Further conditions are ``indexed`` (each
    has an index together with the prefixes), ``where``, and ``rare`` (nearly every row fulfils them).
    """

    table: sa.Table
    order: list[tuple[str, str]]
    selective: Sequence[str]
    prefixes: list[scans.Prefix]
    equal: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    indexed: dict[str, sa.ColumnElement[bool]] = dataclasses.field(default_factory=dict)
    where: list[sa.ColumnElement[bool]] = dataclasses.field(default_factory=list)
    rare: list[sa.ColumnElement[bool]] = dataclasses.field(default_factory=list)
    expressions: list[regexp.Match] = dataclasses.field(default_factory=list)

    def conditions(self, but: str = "") -> list[sa.ColumnElement[bool]]:
        """Return the conditions beside the prefixes, and beside the values of the column ``but``."""
        return [*(among(self.table.c[name], values) for name, values in self.equal.items() if name != but),
                *self.indexed.values(), *self.where, *self.rare, *(match.likely for match in self.expressions)]

    def prefixes_with(self, column: str) -> list[scans.Prefix]:
        """Return the prefixes with each value of the column; [] if they are too many."""
        if not column:
            return self.prefixes
        found: list[scans.Prefix] = []
        for prefix in self.prefixes:
            if isinstance(prefix, Mapping):
                found += [{**prefix, column: value} for value in self.equal[column]]
            else:  # it has an index of its own
                found.append(sa.and_(prefix, among(self.table.c[column], self.equal[column])))
        return found if len(found) <= _MOST_RANGES else []

    def range_column(self) -> str:
        """Return the column whose values the ranges have beside the prefixes, "" for none."""
        if self.order[0][0] != "created_at":
            return ""
        return next((name for name in self.selective if name in self.equal and self.prefixes_with(name)), "")

    def columns(self) -> list[sa.Column[Any]]:
        """Return the columns by which rows are found, sorted and searched."""
        return list(dict.fromkeys([*(self.table.c[name] for name, _way in self.order),
                                   *(match.column for match in self.expressions)]))


class Page(NamedTuple):
    """Rows, to be read within the transaction. ``last``: the unique column of the last row if the list may go on.

    A page without ``last`` is the last page if it has fewer rows than its limit. The last row is always one that the
    list shows: a marker must not name a row that the caller may not see.
    """

    rows: Iterator[sa.Row[Any]]
    last: Any = None


def page(connection: sa.Connection, wanted: Wanted, columns: Sequence[sa.Column[Any]], limit: int | None,
         marker: sa.Row[Any] | None, partial: bool = False) -> Page:
    """Return the page behind the marker; only with ``partial`` it may be cut.

    Raises ServiceUnavailable if that would take longer than a statement may.
    """
    if not all(wanted.equal.values()):
        return Page(iter(()))
    after = None if marker is None else {str(name): value for name, value in marker._mapping.items()}
    column, keys, cut = wanted.range_column(), list[Any](), False
    indexed = scans.is_indexed(wanted.table, wanted.order)
    if indexed and not wanted.where and not wanted.indexed and not wanted.expressions \
            and len(wanted.equal) == (column in wanted.equal):
        ranges = _ranges(wanted, column)
        if len(ranges) == 1 and wanted.order[0][0] == "created_at":
            statement = scans.page(ranges, columns, limit, after)
            return Page(iter(()) if statement is None else iter(connection.execute(statement)))
        keys = _keys(connection, wanted, scans.page(ranges, wanted.columns(), limit, after), limit)
    elif (few := _few(connection, wanted)) is not None or not indexed:
        statement = sa.select(*wanted.columns())
        if few is not None:
            statement = statement.select_from(scans.rows_of(wanted.table, few))
        statement = rows.page(statement.where(
            sa.or_(*(sa.and_(True, *scans.has(wanted.table, prefix)) for prefix in wanted.prefixes)),
            *wanted.conditions()), wanted.table, wanted.order, None if wanted.expressions else limit, marker)
        keys = _keys(connection, wanted, statement, limit)
    else:
        keys, cut = _windows(connection, wanted, column, limit, after, partial)
    # A row that vanishes before it is read makes the page short, not the list.
    return Page(_read(connection, wanted, columns, keys), keys[-1] if cut or (keys and len(keys) == limit) else None)


def among(column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the column has one of the values (None: null)."""
    condition = column.in_([value for value in values if value is not None])
    return sa.or_(condition, column.is_(None)) if None in values else condition


def _ranges(wanted: Wanted, column: str) -> list[scans.Range]:
    return scans.ranges(wanted.table, wanted.order, wanted.prefixes_with(column), wanted.conditions(column))


def _few(connection: sa.Connection, wanted: Wanted) -> sa.Subquery | None:
    """Return the ids of a set with an index that has few rows and all wanted ones; None if there is none."""
    tail = [("created_at", "desc"), (wanted.order[-1][0], "desc")]
    candidates = [scans.ranges(wanted.table, tail, prefixes) for name in wanted.selective
                  if name in wanted.equal and (prefixes := wanted.prefixes_with(name))]
    # (nulls fulfil none of the conditions)
    candidates += [[each for each in scans.ranges(wanted.table, [(name, "desc"), *tail], wanted.prefixes, [condition])
                    if not each.nulls] for name, condition in wanted.indexed.items()]
    for ranges in candidates:
        count = sa.select(sa.func.count()).select_from(scans.at_most(ranges, FEW + 1))
        if (connection.scalar(count) or 0) <= FEW:
            return scans.at_most(ranges, 2 * FEW)
    return None


def _windows(connection: sa.Connection, wanted: Wanted, column: str, limit: int | None, after: scans.Place | None,
             partial: bool) -> tuple[list[Any], bool]:
    """Return the keys of a page, and True if it was cut."""
    began, keys = time.monotonic(), list[Any]()
    ranges = scans.ranges(wanted.table, wanted.order, wanted.prefixes_with(column))
    while True:
        end = scans.window_end(connection, ranges, FEW, after)
        left = None if limit is None else limit - len(keys)
        statement = scans.page(ranges, wanted.columns(), None if wanted.expressions else left, after, end,
                               window=(2 * FEW, wanted.conditions(column)))  # rows may move into it meanwhile
        keys += _keys(connection, wanted, statement, left)
        if end is None or (limit is not None and len(keys) >= limit):
            return keys, False
        if partial and keys and time.monotonic() - began > _SECONDS:
            return keys, True
        regexp.check_time(connection, began)
        after = end


def _keys(connection: sa.Connection, wanted: Wanted, statement: sa.Select[Any] | None, limit: int | None) -> list[Any]:
    """Return the values of the unique column."""
    if statement is None:
        return []
    return regexp.filtered(connection, wanted.order[-1][0], statement, wanted.expressions, limit)


def _read(connection: sa.Connection, wanted: Wanted, columns: Sequence[sa.Column[Any]],
          keys: list[Any]) -> Iterator[sa.Row[Any]]:
    """Return the rows with the keys in order, reading as many at a time as a statement may name."""
    key = wanted.table.c[wanted.order[-1][0]]
    return itertools.chain.from_iterable(
        connection.execute(rows.page(sa.select(*columns).where(key.in_(keys[begin:begin + _AT_A_TIME])), wanted.table,
                                     wanted.order, None, None)) for begin in range(0, len(keys), _AT_A_TIME))
