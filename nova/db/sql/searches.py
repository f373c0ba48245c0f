"""Pages of large tables by any filter and order, whose cost does not grow with the table.

A page is read in one of these ways:
- If the filters select one or several ranges of an index, the page is read from these ranges.
- If a filter with an index selects few rows, these rows are read and sorted. A regular expression for a column with few
  different values is replaced by the values that match.
- Otherwise the index of the order is read in windows until the page is full. After ``_SECONDS``, a page with rows is
  cut: it has fewer rows than its limit, and the list continues after its final row. If the page is empty after
  ``_SECONDS_EMPTY``, the candidates of a text index are read instead of further windows.
- An order without an index (several columns, or different directions) is read by the index of its first column. Rows
  with the same first column are sorted or, if there are many, read by the index of the next column.
"""

import dataclasses
import datetime
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nova.db.sql import regexp, rows, scans

FEW = 5000  # maximum number of rows that a statement reads and sorts; number of rows of a window
# Seconds after which no further window is read for a page with rows: the page is cut. An empty page is never cut, since
# clients take it for the end of the list.
_SECONDS = 0.05
# Seconds after which the candidates of a text index are read instead of further windows, if the page is still empty.
_SECONDS_EMPTY = 0.01
# Maximum number of different values of a column with which an expression is compared, instead of with all rows.
_MAX_VALUES = 10_000
_MAX_RANGES = 16  # maximum number of ranges per statement
_MAX_KEYS = 1000  # maximum number of values (of a unique column or a filter) in a statement

# A function that returns the ids of all rows that may match, in batches in the order of created_at, or None if the
# index cannot be used. Arguments after the connection: True for newest first, the created_at of the first row, and the
# maximum number of rows that are not in the index.
Candidates = Callable[[sa.Connection, bool, datetime.datetime | None, int], Iterator[list[int]] | None]


@dataclasses.dataclass(frozen=True)
class Search:
    """The filters and the order of a list.

    ``order`` ends with a unique column. ``prefixes``: alternative conditions, of which a row must fulfil one.
    ``selective``: columns, the most selective first, that have an index on (prefix, column, created_at, uuid or id).
    ``valued``: columns with such an index that have few different values. ``equal``: column -> allowed values. Further
    conditions: ``indexed`` (column -> condition; each has an index that begins with the prefix), ``where``, ``rare``
    (conditions that nearly every row fulfils), and ``expressions``. ``candidates``: a text index."""

    table: sa.Table
    order: list[tuple[str, str]]
    selective: Sequence[str]
    prefixes: list[scans.Prefix]
    valued: frozenset[str] = frozenset()
    equal: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    indexed: dict[str, sa.ColumnElement[bool]] = dataclasses.field(default_factory=dict)
    where: list[sa.ColumnElement[bool]] = dataclasses.field(default_factory=list)
    rare: list[sa.ColumnElement[bool]] = dataclasses.field(default_factory=list)
    expressions: list[regexp.Match] = dataclasses.field(default_factory=list)
    candidates: Candidates | None = None

    def conditions(self, but: str = "") -> list[sa.ColumnElement[bool]]:
        """Return all conditions except ``prefixes`` and the allowed values of the column ``but``."""
        return [*(among(self.table.c[name], values) for name, values in self.equal.items() if name != but),
                *self.indexed.values(), *self.where, *self.rare, *(match.likely for match in self.expressions)]

    def prefixes_with(self, column: str) -> list[scans.Prefix]:
        """Return each prefix combined with each allowed value of the column, or [] for more than ``_MAX_RANGES``."""
        if not column:
            return self.prefixes
        combined: list[scans.Prefix] = []
        for prefix in self.prefixes:
            if isinstance(prefix, Mapping):
                combined += [{**prefix, column: value} for value in self.equal[column]]
            else:  # a condition with its own index
                combined.append(sa.and_(prefix, among(self.table.c[column], self.equal[column])))
        return combined if len(combined) <= _MAX_RANGES else []

    def range_column(self) -> str:
        """Return the column whose allowed values are appended to the prefixes of the ranges, or "" for none."""
        if self.order[0][0] != "created_at":
            return ""
        return next((name for name in self.selective if name in self.equal and self.prefixes_with(name)), "")

    def columns(self) -> list[sa.Column[Any]]:
        """Return the columns of the order and of the expressions."""
        return list(dict.fromkeys([*(self.table.c[name] for name, _way in self.order),
                                   *(match.column for match in self.expressions)]))


class Page(NamedTuple):
    """A page of rows, to be read within the transaction.

    ``last``: the unique column of the final row of the page if more rows may follow. Without it, a page with fewer rows
    than its limit ends the list. ``last`` is always of a row that the caller may see, since clients get it as a marker.
    """

    rows: Iterator[sa.Row[Any]]
    last: Any = None


def page(connection: sa.Connection, search: Search, columns: Sequence[sa.Column[Any]], limit: int | None,
         marker: sa.Row[Any] | None, partial: bool = False) -> Page:
    """Return the page after the marker. ``partial``: the page may be cut. Raises ServiceUnavailable if the search takes
    longer than the time limit of a statement."""
    search = _with_values(connection, search)
    if not all(search.equal.values()):
        return Page(iter(()))
    after = _place(marker)
    column, keys, cut = search.range_column(), list[Any](), False
    indexed = scans.is_indexed(search.table, search.order)
    if indexed and not search.where and not search.indexed and not search.expressions \
            and len(search.equal) == (column in search.equal):
        ranges = scans.ranges(search.table, search.order, search.prefixes_with(column), search.conditions(column))
        if len(ranges) == 1 and search.order[0][0] == "created_at":
            statement = scans.page(ranges, columns, limit, after)
            return Page(iter(()) if statement is None else iter(connection.execute(statement)))
        keys = _keys(connection, search, scans.page(ranges, search.columns(), limit, after), limit)
    elif (few := _few(connection, search)) is not None:
        keys = _of_rows(connection, search, few, limit, marker)
    else:
        keys, cut = _ordered(connection, search, limit, marker, partial, time.monotonic())
    # A row may be deleted after its key was read: the page is then shorter, but the list continues.
    return Page(_read(connection, search, columns, keys), keys[-1] if cut or (keys and len(keys) == limit) else None)


def among(column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the column has one of the values (None: null)."""
    condition = column.in_([value for value in values if value is not None])
    return sa.or_(condition, column.is_(None)) if None in values else condition


def _with_values(connection: sa.Connection, search: Search) -> Search:
    """Replace expressions for columns with few different values by the values that match."""
    equal, expressions = dict(search.equal), list[regexp.Match]()
    for match in search.expressions:
        name = match.column.name
        prefixes = search.prefixes if name in search.valued and name not in equal else ()
        existing = [scans.distinct(connection, match.column, prefix, _MAX_VALUES) for prefix in prefixes]
        values = {value for part in existing for value in part or () if match.test(value)}
        if not existing or None in existing or len(values) > _MAX_KEYS:
            expressions.append(match)
        else:
            equal[name] = sorted(values)
    return dataclasses.replace(search, equal=equal, expressions=expressions)


def _few(connection: sa.Connection, search: Search) -> sa.Subquery | None:
    """Return a subquery of the ids of at most ``FEW`` rows, found by an index, that contain all results, or None."""
    tail = [("created_at", "desc"), (search.order[-1][0], "desc")]
    candidates = [scans.ranges(search.table, tail, prefixes) for name in search.selective
                  if name in search.equal and (prefixes := search.prefixes_with(name))]
    # Ranges of null are left out below, since null fulfils none of these conditions.
    for name, condition in search.indexed.items():
        order = list(dict.fromkeys((name, *dict(tail)), "desc").items())
        candidates.append([part for part in scans.ranges(search.table, order, search.prefixes, [condition])
                           if not part.nulls])
    return next((few for ranges in candidates if (few := _if_few(connection, ranges)) is not None), None)


def _if_few(connection: sa.Connection, ranges: list[scans.Range]) -> sa.Subquery | None:
    """Return a subquery of the ids of the rows in the ranges, or None if there are more than ``FEW`` rows."""
    count = sa.select(sa.func.count()).select_from(scans.at_most(ranges, FEW + 1))
    return scans.at_most(ranges, 2 * FEW) if (connection.scalar(count) or 0) <= FEW else None


def _place(marker: sa.Row[Any] | None) -> scans.Place | None:
    return None if marker is None else {str(name): value for name, value in marker._mapping.items()}


def _sorted(connection: sa.Connection, search: Search, few: sa.Select[Any], limit: int | None,
            marker: sa.Row[Any] | None) -> list[Any]:
    """Return the keys of a page, sorted, from a statement that selects few rows."""
    statement = few.where(sa.or_(*(sa.and_(True, *scans.has(search.table, prefix)) for prefix in search.prefixes)),
                          *search.conditions())
    return _keys(connection, search, rows.page(statement, search.table, search.order,
                                               None if search.expressions else limit, marker), limit)


def _of_rows(connection: sa.Connection, search: Search, few: sa.Subquery, limit: int | None,
             marker: sa.Row[Any] | None) -> list[Any]:
    """Return the keys of a page from the rows with these ids."""
    statement = sa.select(*search.columns()).select_from(scans.rows_of(search.table, few))
    return _sorted(connection, search, statement, limit, marker)


def _ordered(connection: sa.Connection, search: Search, limit: int | None, marker: sa.Row[Any] | None, partial: bool,
             began: float) -> tuple[list[Any], bool]:
    """Return the keys of a page, read by indexes of its order, and True if the page was cut."""
    keys, may_be_rare = list[Any](), True
    if scans.is_indexed(search.table, search.order):
        steps = _windows(connection, search, keys, limit, marker)
    else:
        name = search.order[0][0]
        only = search.equal.get(name, [])
        if len(only) == 1 and (marker is None or marker._mapping[name] == only[0]):
            return _group(connection, search, only[0], limit, marker, partial, began)
        steps = _groups(connection, search, keys, limit, marker, partial, began)
    for cut in steps:
        if cut:
            return keys, True
        if limit is not None and len(keys) >= limit:
            break
        elapsed = time.monotonic() - began
        if elapsed > _SECONDS and partial and keys:
            return keys, True
        if elapsed > _SECONDS_EMPTY and not keys and may_be_rare:
            may_be_rare, rare = False, _rare(connection, search, limit, marker, partial)
            if rare is not None:
                return rare
        regexp.check_time(connection, began)
    return keys, False


def _windows(connection: sa.Connection, search: Search, keys: list[Any], limit: int | None,
             marker: sa.Row[Any] | None) -> Iterator[bool]:
    """Append the keys of a page in the order of an index. Yield False after each window except the final one."""
    column, after = search.range_column(), _place(marker)
    name = search.order[0][0]
    ranges = scans.ranges(search.table, search.order, search.prefixes_with(column),
                          [search.indexed[name]] if name in search.indexed else ())
    while True:
        end = scans.window_end(connection, ranges, FEW, after)
        remaining = None if limit is None else limit - len(keys)
        statement = scans.page(ranges, search.columns(), None if search.expressions else remaining, after, end,
                               window=(2 * FEW, search.conditions(column)))  # twice, since rows may be added
        keys += _keys(connection, search, statement, remaining)
        if end is None:
            return
        yield False
        after = end


def _groups(connection: sa.Connection, search: Search, keys: list[Any], limit: int | None, marker: sa.Row[Any] | None,
            partial: bool, began: float) -> Iterator[bool]:
    """Append the keys of a page in an order without an index. Yield after each step except the final one: True if the
    page was cut.

    Rows with the same value of the first column are a group. Consecutive groups that have at most ``FEW`` rows together
    are read and sorted by one statement."""
    name, way = search.order[0]
    tail = dict.fromkeys((name, "created_at", search.order[-1][0]), way)
    parts = scans.ranges(search.table, list(tail.items()), search.prefixes)
    size, behind, end = FEW if limit is None else min(FEW, 4 * limit), None, _place(marker)
    while True:
        if end is None:
            left = scans.outside(parts, behind, None)
            end = scans.window_end(connection, left, size, None) if left else None
            size = FEW
            between = scans.outside(parts, behind, end)
            if between:
                remaining = None if limit is None else limit - len(keys)
                keys += _of_rows(connection, search, scans.at_most(between, 2 * FEW), remaining, None)
        if end is None:
            return
        cut = False
        if limit is None or len(keys) < limit:
            remaining = None if limit is None else limit - len(keys)
            more, cut = _group(connection, search, end[name], remaining, None if behind else marker, partial, began)
            keys += more
        yield cut
        behind, end = end, None


def _group(connection: sa.Connection, search: Search, value: Any, limit: int | None, marker: sa.Row[Any] | None,
           partial: bool, began: float) -> tuple[list[Any], bool]:
    """Return the keys of a page of the rows with ``value`` in the first column of the order, and True if the page was
    cut. A large group is read by the index of the next column of the order, where its rows are frequent."""
    name = search.order[0][0]
    if value not in search.equal.get(name, [value]):
        return [], False
    group = dataclasses.replace(search, order=search.order[1:], equal={**search.equal, name: [value]},
                                selective=(name, *search.selective))
    tail = [(key, "desc") for key in dict.fromkeys(("created_at", search.order[-1][0])) if key != name]
    few = _if_few(connection, scans.ranges(search.table, tail, group.prefixes_with(name)))
    if few is not None:
        return _of_rows(connection, group, few, limit, marker), False
    return _ordered(connection, group, limit, marker, partial, began)


def _rare(connection: sa.Connection, search: Search, limit: int | None, marker: sa.Row[Any] | None,
          partial: bool) -> tuple[list[Any], bool] | None:
    """Return the keys of a page of the candidates of the text index, and True if the page was cut. None if there is no
    usable index, if there are too many candidates to sort, or if none of the first ``2 * FEW`` matches."""
    began, (name, way) = time.monotonic(), search.order[0]
    by_creation = name == "created_at"
    begin = marker.created_at if by_creation and marker is not None else None
    batches = search.candidates(connection, way == "desc", begin, FEW) if search.candidates else None
    if batches is None:
        return None
    if not by_creation:
        ids = list(itertools.islice(itertools.chain.from_iterable(batches), FEW + 1))
        if len(ids) > FEW:
            return None
        batches = iter([ids])
    keys, compared = list[Any](), 0
    for ids in batches:
        statement = sa.select(*search.columns()).where(search.table.c.id.in_(ids))
        keys += _sorted(connection, search, statement, None if limit is None else limit - len(keys), marker)
        compared += len(ids)
        if limit is not None and len(keys) >= limit:
            break
        if not keys and compared > 2 * FEW:
            return None
        if keys and partial and time.monotonic() - began > _SECONDS:
            return keys, True
        regexp.check_time(connection, began)
    return keys, False


def _keys(connection: sa.Connection, search: Search, statement: sa.Select[Any] | None, limit: int | None) -> list[Any]:
    """Return the values of the unique column in the rows of the statement that match all expressions."""
    if statement is None:
        return []
    return regexp.filtered(connection, search.order[-1][0], statement, search.expressions, limit)


def _read(connection: sa.Connection, search: Search, columns: Sequence[sa.Column[Any]],
          keys: list[Any]) -> Iterator[sa.Row[Any]]:
    """Yield the rows with the keys in order, by statements of at most ``_MAX_KEYS`` keys."""
    key = search.table.c[search.order[-1][0]]
    return itertools.chain.from_iterable(
        connection.execute(rows.page(sa.select(*columns).where(key.in_(keys[begin:begin + _MAX_KEYS])), search.table,
                                     search.order, None, None)) for begin in range(0, len(keys), _MAX_KEYS))
