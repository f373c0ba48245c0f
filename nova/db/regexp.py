"""Regular expressions in queries: found anywhere, whatever the case, on every database."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import functions

from nova import exception


class _Matches(functions.FunctionElement[bool]):
    """column ~ pattern; how it is written depends on the database."""

    name = "matches"
    type = sa.Boolean()
    inherit_cache = True


def matches(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    """``pattern`` is found in the column (as text). Raises InvalidInput for what is not a pattern.

    Databases differ in rare constructs: run the query inside :func:`invalid_patterns`.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise exception.InvalidInput(reason=f"'{pattern}' is not a regular expression: {error}") from error
    if "\0" in pattern:
        raise exception.InvalidInput(reason="a regular expression cannot have null characters")
    text = column if isinstance(column.type, sa.String) else sa.cast(column, sa.String(255))
    return _Matches(text, sa.literal(pattern, sa.String()))


@contextlib.contextmanager
def invalid_patterns() -> Iterator[None]:
    """Around a query with patterns: one that only the database refuses is the caller's mistake too."""
    try:
        yield
    except db_exception.DBError as error:
        if isinstance(error, db_exception.DBConnectionError) or not re.search(
                "regular expression|regexp", str(error.inner_exception), re.IGNORECASE):
            raise
        raise exception.InvalidInput(reason="the database does not accept this regular expression") from error


@compiles(_Matches)
def _standard(element: _Matches, compiler: Any, **options: Any) -> str:
    column, pattern = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({column} REGEXP {pattern})"


@compiles(_Matches, "postgresql")
def _postgresql(element: _Matches, compiler: Any, **options: Any) -> str:
    column, pattern = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({column} ~* {pattern})"


@compiles(_Matches, "mysql")
@compiles(_Matches, "mariadb")
def _mysql(element: _Matches, compiler: Any, **options: Any) -> str:
    # Our columns compare byte by byte, so the pattern itself says that case does not matter.
    column, pattern = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({column} REGEXP CONCAT('(?i)', {pattern}))"
