"""Length checks of written texts, also for SQLite, which does not enforce the lengths of columns."""

import functools
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception


class DoesNotFit(db_exception.DBDataError):  # type: ignore[misc]
    """Raised for a text that is longer than its column. The message is for the user and does not contain the value."""


def check_lengths(engine: sa.Engine) -> None:
    """Make statements of the engine raise DoesNotFit if they write a text that is longer than its column."""
    sa.event.listen(engine, "before_cursor_execute", _check)


def _check(_connection: Any, _cursor: Any, _statement: str, _parameters: Any, execution: Any, _many: bool) -> None:
    if not (execution.isinsert or execution.isupdate) or execution.compiled is None:
        return
    lengths = _lengths(execution.compiled.statement.table)
    for values in execution.compiled_parameters:
        for name, length in lengths:
            value = values.get(name)
            if value is not None and len(value) > length:
                raise DoesNotFit(ValueError(f"{name} may have at most {length} characters"))


@functools.cache
def _lengths(table: sa.Table) -> list[tuple[str, int]]:
    """Return the name and maximum length of each text column that has one."""
    return [(column.key, column.type.length) for column in table.c
            if isinstance(column.type, sa.String) and column.type.length]
