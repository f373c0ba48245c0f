"""What an error of the database says, in answers and logs: nothing of what was to be written."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def code_of(cause: Any) -> Any:
    """PostgreSQL's SQLSTATE or MariaDB's number of a driver's error; of others, the first thing it says."""
    return getattr(cause, "pgcode", None) or next(iter(getattr(cause, "args", ())), None)


def hide_values(engine: sa.Engine) -> None:
    """From now on PostgreSQL's errors are their first sentence.

    Its driver writes values into statements, which the server repeats in what follows, or it shows the whole row. To be
    called before others that look at errors.
    """
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "handle_error", _shorten)


def _shorten(context: sa.engine.ExceptionContext) -> None:
    error: Any = context.original_exception
    primary, detail = (getattr(getattr(error, "diag", None), name, None) for name in (
        "message_primary", "message_detail"))
    if not primary:
        return
    said = str(error)
    # Which value was there already is asked for (oslo.db), and is a name.
    kept = f"{primary}\nDETAIL:  {detail}\n" if error.pgcode == "23505" else primary
    error.args = (kept,)
    if context.sqlalchemy_exception is not None:
        context.sqlalchemy_exception.args = tuple(
            part.replace(said, kept) if isinstance(part, str) else part for part in context.sqlalchemy_exception.args)
