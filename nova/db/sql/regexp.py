"""Regular expressions in queries: unanchored, ignoring case, and with the same result on every database.

A value that contains the text of the expression matches, too (see nova.objects.expression). The only exception is
"^text$" with plain text, so that an index can be used: values with "^" or "$" are then found by "\\^" and "\\$" only.

The engines of databases differ, and the time that they need is not bounded by the size of the input. So conductors
match the rows. If an expression requires a text (nova.objects.required_text), LIKE reduces the number of rows to read.
"""

import contextlib
import datetime
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nova import context, exception
from nova.objects import expression, required_text

_ROWS = 1000  # number of rows that are fetched from a result at a time
# Maximum number of expressions of a condition whose required texts become SQL conditions, up to nine for each.
_MAX_READ = 4
_PLAIN = re.compile(r"(\^?)([A-Za-z0-9 .,:/@%_=-]+)(\$?)", re.ASCII)  # a plain text, optionally anchored

# A pattern that begins with a timestamp of any accuracy, at least with year and month.
_TIME = re.compile(r"\^?(\d{4})-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d))?)?)?)?[0-9TZ :.-]*\$?", re.ASCII)
# A text of characters that timestamps have. A pattern that requires another text matches no timestamp.
_OF_TIMES = re.compile(r"[0-9tTzZ :.-]*", re.ASCII)
_FIELDS = ("%Y", "%m", "%d", "%H", "%M", "%S")
_UNITS = (datetime.timedelta(31), datetime.timedelta(1), datetime.timedelta(hours=1), datetime.timedelta(minutes=1),
          datetime.timedelta(seconds=1))


class Match(NamedTuple):
    """A condition on a column. ``test``: returns True for a matching value. ``likely``: an SQL condition that all
    matching rows and few others fulfil. ``find``: a finder of all matching values in lines of values, or None.
    ``period``: an SQL condition with an index that all matching times fulfil, or None."""

    column: sa.Column[Any]
    test: Callable[[Any], bool]
    likely: sa.ColumnElement[bool]
    find: expression.Finder | None = None
    period: sa.ColumnElement[bool] | None = None


def matches(column: sa.Column[Any], *patterns: str) -> Match:
    """Return the condition that the column, as text, matches one of the patterns. Raises InvalidInput."""
    expressions = [compiled(pattern) for pattern in patterns]
    text = isinstance(column.type, sa.String)
    read = len(patterns) <= _MAX_READ
    likely = [_like(column, pattern, expected.literal, read) if text else column.is_not(None)
              for pattern, expected in zip(patterns, expressions, strict=True)]
    return Match(column, lambda value: any(expected.search(text) for text in _texts(value) for expected in expressions),
                 sa.or_(*likely), any_of([expression.finder(pattern) for pattern in patterns]),
                 None if text else _period(column, patterns))


def any_of(finders: Sequence[expression.Finder | None]) -> expression.Finder | None:
    """Return a finder of the first match of any of the finders, or None if one of them is None."""
    usable = [find for find in finders if find is not None]
    if len(finders) < 2 or len(usable) < len(finders):
        return usable[0] if len(finders) == 1 and usable else None
    return lambda text, position: min((match for find in usable if (match := find(text, position)) >= 0), default=-1)


def listed(column: sa.Column[Any], pattern: str, mark: str) -> Match:
    """Return the condition that the column (",a,b,") has an item that contains ``mark`` and begins with the pattern.
    Raises InvalidInput."""
    expected = compiled(pattern)
    begin = pattern if expected.literal else pattern.removeprefix("^").removesuffix("$")
    # Other anchors cannot be searched in the list, in which an item does not begin or end with a line.
    anchored = not expected.literal and any(anchor in begin for anchor in "^$")
    return Match(column, lambda value: any(expected.match(item) for item in value.split(",") if mark in item),
                 _like(column, f",{begin}", expected.literal),
                 None if anchored else expression.finder(begin, expected.literal, ","))


def compiled(pattern: str) -> expression.Expression:
    """Return the compiled pattern. Raises InvalidInput."""
    try:
        return expression.compiled(pattern)
    except ValueError as error:
        raise exception.InvalidInput(reason=str(error)) from error


def filtered(connection: sa.Connection, key: str, statement: sa.Select[Any], conditions: Sequence[Match],
             limit: int | None) -> list[Any]:
    """Return the column ``key`` of the first ``limit`` rows of the statement that fulfil all conditions.

    The statement selects the columns of the conditions, and already contains the ``likely`` of each condition. Raises
    ServiceUnavailable if the search exceeds the time limit of a statement."""
    # Rows that conditions may reject are fetched in parts. On PostgreSQL this requires a transaction.
    parts = conditions and not connection.get_execution_options().get("nova_lookup")
    options = {"yield_per": _ROWS} if parts else {}
    with contextlib.closing(connection.execute(statement, execution_options=options)) as result:
        return list(itertools.islice(_matching(connection, result, key, conditions), limit))


def _matching(connection: sa.Connection, result: sa.CursorResult[Any], key: str,
              conditions: Sequence[Match]) -> Iterator[Any]:
    began, names = time.monotonic(), list(result.keys())
    position, tests = names.index(key), [(names.index(match.column.name), match.test) for match in conditions]
    for row in result:
        if all(test(row[index]) for index, test in tests):
            yield row[position]
        check_time(connection, began)


def check_time(connection: sa.Connection, began: float) -> None:
    """Raise ServiceUnavailable if a search since the monotonic time ``began`` exceeds the limit of a statement."""
    seconds = connection.get_execution_options().get("nova_seconds")
    if context.too_late() or (seconds and time.monotonic() - began > seconds):
        raise exception.ServiceUnavailable("The search took too long: add another filter.")


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a value with which a pattern is compared: two formats for a time."""
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ"), value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return () if value is None else (str(value),)


def _period(column: sa.Column[Any], patterns: Sequence[str]) -> sa.ColumnElement[bool] | None:
    """Return the condition that a time begins with one of the patterns. A pattern that requires characters which no
    time has is never fulfilled. None if a pattern cannot be expressed as a period."""
    conditions = list[sa.ColumnElement[bool]]()
    for pattern in patterns:
        if not all(map(_OF_TIMES.fullmatch, required_text.of(pattern).texts)):
            conditions.append(sa.false())
            continue
        if (fields := _TIME.fullmatch(pattern)) is None:
            return None
        given = [field for field in fields.groups() if field is not None]
        try:
            begin = datetime.datetime.strptime(":".join(given) + "Z", ":".join(_FIELDS[:len(given)]) + "%z")
            conditions.append(sa.and_(column >= begin, column < begin + _UNITS[len(given) - 2]))
        except (ValueError, OverflowError):  # no such time
            conditions.append(sa.false())
    return sa.or_(*conditions)


def _like(column: sa.Column[Any], pattern: str, literal: bool, read: bool = False) -> sa.ColumnElement[bool]:
    """Return a condition that all rows fulfil in which the pattern is found. ``literal``: the pattern is plain text.
    ``read``: if it is an expression, use its required texts."""
    plain = _PLAIN.fullmatch(pattern)
    if literal and pattern.isascii():
        begin, text, end = "", pattern, ""
    elif plain is not None:
        begin, text, end = plain.groups()
    else:
        required = required_text.of(pattern) if read and not literal else required_text.Required()
        if not pattern.isascii() or not required.size:
            return column.is_not(None)
        return sa.or_(_contains(column, required), column.ilike(f"%{_escaped(pattern)}%", escape="!"))
    # "." matches any character in an expression, "_" in LIKE.
    inside = _escaped(text).replace(".", "_")
    return column.ilike(f"{'' if begin else '%'}{inside}{'' if end else '%'}", escape="!")


def _contains(column: sa.Column[Any], required: required_text.Required) -> sa.ColumnElement[bool]:
    """Return the condition that the column contains the texts that an expression requires."""
    return sa.and_(*(column.ilike(f"%{_escaped(text)}%", escape="!") for text in required.texts),
                   *(sa.or_(*(_contains(column, part) for part in choice)) for choice in required.choices))


def _escaped(text: str) -> str:
    """Return the LIKE pattern for a text. "_" replaces k and s: ignoring case, they equal non-ASCII characters (U+212A
    and U+017F), but not in all databases."""
    return "".join("_" if char in "kKsS" else f"!{char}" if char in "%_!" else char for char in text)
