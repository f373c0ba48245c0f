"""Regular expressions in queries: found anywhere, whatever the case, on every database."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa

from nova import exception


def matches(connection: sa.Connection, column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    """``pattern`` is found in the column (as text). Raises InvalidInput for what is not a pattern."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise exception.InvalidInput(reason=f"'{pattern}' is not a regular expression: {error}") from error
    if "\0" in pattern:
        raise exception.InvalidInput(reason="a regular expression cannot have null characters")
    if connection.dialect.name == "sqlite" and _explosive(pattern):
        raise exception.InvalidInput(reason=f"the regular expression '{pattern}' could take for ever: "
                                            "it repeats repetitions or alternatives, or has too many of them")
    text = column if isinstance(column.type, sa.String) else sa.cast(column, sa.String(255))
    if connection.dialect.name == "postgresql":
        return text.op("~*", is_comparison=True)(sa.literal(pattern, sa.String()))
    # SQLite calls our own function, which ignores case; MariaDB is told so by the pattern itself,
    # because our columns compare byte by byte.
    flags = "" if connection.dialect.name == "sqlite" else "(?i)"
    return text.op("REGEXP", is_comparison=True)(sa.literal(flags + pattern, sa.String()))


# Python's engine tries every way to divide a text among this many repetitions and choices within milliseconds.
_REPETITIONS = 3
_CHOICES = 10


def _explosive(pattern: str) -> bool:
    """Whether Python may need exponential time for a pattern; the databases' own engines have limits."""
    groups, repetitions, choices, repeated = [False], 0, 0, False
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|\{\d*,?\d*\}|.", pattern, re.DOTALL):
        inner, repeated = repeated, False
        if part in ("(", "(?"):
            groups.append(False)
        elif part == ")" and len(groups) > 1:
            repeated = groups.pop()
            groups[-1] |= repeated
        elif part in ("*", "+") or (part[0] == "{" and len(part) > 1):
            if inner:
                return True
            repetitions += 1
            groups[-1] = True
        elif part in ("|", "?"):
            choices += 1
            groups[-1] = True
    return repetitions > _REPETITIONS or choices > _CHOICES


def refused(error: Exception) -> bool:
    """Did the database find fault with a pattern that Python accepts? They differ in rare constructs."""
    cause = getattr(error, "inner_exception", None)
    return re.search("regular expression|regexp", str(cause), re.IGNORECASE) is not None
