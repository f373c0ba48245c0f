"""Regular expressions in queries: found anywhere, whatever the case, and the same on every database.

A value that contains the expression literally matches, too (see nova.objects.expression). The one exception is
"^text$" with plain text: a value that contains "^" or "$" is found by "\\^" and "\\$", so that an index can be used.

The databases' own engines differ, and some of them may take for ever: rows are looked at here. What can be said by LIKE
is, so that of many rows few have to be read.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nova import context, exception
from nova.objects import expression

# Rows that are read at a time.
_ROWS = 1000
# An expression that is a plain text, perhaps with an end.
_PLAIN = re.compile(r"(\^?)([A-Za-z0-9 .,:/@%_=-]+)(\$?)", re.ASCII)


class Match(NamedTuple):
    """Rows in which one of the ``expressions`` is found; ``likely`` holds for them and for few others."""

    column: sa.Column[Any]
    found: Callable[[Any], bool]
    likely: sa.ColumnElement[bool]


def matches(column: sa.Column[Any], *patterns: str) -> Match:
    """One of the ``patterns`` is found in the column (as text). Raises InvalidInput for one that is too long."""
    expressions = [compiled(pattern) for pattern in patterns]
    text = isinstance(column.type, sa.String)
    likely = [_like(column, pattern, each.literal) if text else column.is_not(None)
              for pattern, each in zip(patterns, expressions, strict=True)]
    return Match(column, lambda value: any(each.search(text) for text in _texts(value) for each in expressions),
                 sa.or_(*likely))


def listed(column: sa.Column[Any], pattern: str, mark: str) -> Match:
    """An item of the column (",a,b,") that has the ``mark`` in it begins with the pattern. Raises InvalidInput."""
    expected = compiled(pattern)
    begin = pattern if expected.literal else pattern.removeprefix("^").removesuffix("$")
    return Match(column, lambda value: any(expected.match(item) for item in value.split(",") if mark in item),
                 _like(column, f",{begin}", expected.literal))


def compiled(pattern: str) -> expression.Expression:
    """Raises InvalidInput."""
    try:
        return expression.compiled(pattern)
    except ValueError as error:
        raise exception.InvalidInput(reason=str(error)) from error


def select(connection: sa.Connection, key: sa.Column[Any], candidates: sa.Select[Any], wanted: Sequence[Match],
           limit: int | None) -> list[Any]:
    """The keys of the first ``limit`` rows of ``candidates`` in which all that is ``wanted`` matches.

    Raises ServiceUnavailable if it would take longer than a statement may.
    """
    statement = candidates.with_only_columns(key, *(match.column for match in wanted))
    return filtered(connection, key.name, statement.where(*(match.likely for match in wanted)), wanted, limit)


def filtered(connection: sa.Connection, key: str, statement: sa.Select[Any], wanted: Sequence[Match],
             limit: int | None) -> list[Any]:
    """Return the column ``key`` of the first ``limit`` rows of the statement in which all that is ``wanted`` matches.

    The statement selects the columns that are searched, and has the conditions that are likely already.
    Raises ServiceUnavailable if it would take longer than a statement may.
    """
    with contextlib.closing(connection.execute(statement, execution_options={"yield_per": _ROWS})) as found:
        return list(itertools.islice(_matching(connection, found, key, wanted), limit))


def _matching(connection: sa.Connection, found: sa.CursorResult[Any], key: str,
              wanted: Sequence[Match]) -> Iterator[Any]:
    began, names = time.monotonic(), list(found.keys())
    position, tests = names.index(key), [(names.index(match.column.name), match.found) for match in wanted]
    for row in found:
        if all(test(row[index]) for index, test in tests):
            yield row[position]
        check_time(connection, began)


def check_time(connection: sa.Connection, began: float) -> None:
    """Raise ServiceUnavailable if a search that began then (monotonic) takes longer than a statement may."""
    seconds = connection.get_execution_options().get("nova_seconds")
    if context.too_late() or (seconds and time.monotonic() - began > seconds):
        raise exception.ServiceUnavailable("The search took too long: filter by something else, too.")


def _texts(value: Any) -> tuple[str, ...]:
    """How a value may be written."""
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ"), value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return () if value is None else (str(value),)


def _like(column: sa.Column[Any], pattern: str, literal: bool) -> sa.ColumnElement[bool]:
    """Return a condition that holds wherever the pattern is found. ``literal``: the pattern is not an expression."""
    plain = _PLAIN.fullmatch(pattern)
    if literal and pattern.isascii():
        begin, text, end = "", pattern, ""
    elif plain is not None:
        begin, text, end = plain.groups()
    else:
        return column.is_not(None)
    # "." is any character; k and s have relatives beyond ASCII, which databases do not take for the same.
    inside = "".join("_" if char in ".kKsS" else f"!{char}" if char in "%_!" else char for char in text)
    return column.ilike(f"{'' if begin else '%'}{inside}{'' if end else '%'}", escape="!")
