"""Prepared statements on PostgreSQL: the server parses and plans a frequent statement once per connection.

Parsing and planning are about half of the server's work for a statement of one row. psycopg2 has no prepared statements
of its own, so this module sends PREPARE and EXECUTE.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova.db.sql import errors

# A statement is prepared at this execution on a connection.
_FREQUENT = 3
# Bounds: prepared statements of a connection, for each of which the server keeps a plan of some 20 kB, and statements
# of a process that are counted.
_PREPARED, _COUNTED = 150, 600
# SQLSTATE of a prepared statement that does not exist, or exists already: a proxy shares the sessions of the server.
_SHARED = frozenset({"26000", "42P05"})
# SQLSTATE of a statement whose plan has other columns since a migration.
_CHANGED = "0A000"
_INFO = "nova_prepared"  # entry of a connection's info
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
_TYPES: dict[type, str] = {bool: "bool", int: "int8", str: "unknown", type(None): "unknown", float: "numeric",
                           decimal.Decimal: "numeric", datetime.datetime: "timestamp"}
_UNSUPPORTED = ""
_INT8 = 2**63


class _Statement:
    """A statement with the types of its parameters. ``accepted``: whether the server prepares it; None before the first
    attempt. ``execute``: the command that executes it, once it is prepared."""

    __slots__ = ("_text", "_types", "accepted", "execute")

    def __init__(self, text: str, types: tuple[str, ...]) -> None:
        self._text, self._types = text, types
        self.accepted = False if _UNSUPPORTED in types else None
        self.execute = ""

    def prepare(self, parameters: Mapping[str, Any]) -> str:
        """Return the command that prepares the statement, and set ``execute``. ``parameters``: any values."""
        types = dict(zip(parameters, self._types, strict=True))
        names: dict[str, int] = {}
        text = _PLACEHOLDER.sub(lambda match: "%" if match[1] is None else
                                f"${names.setdefault(match[1], len(names) + 1)}", self._text)
        declared = f"({', '.join(types[name] for name in names)})" if names else ""
        values = f"({', '.join(f'%({name})s' for name in names)})" if names else ""
        # The name depends on the text: a session that a proxy shares never has another statement of this name.
        name = "nova_" + hashlib.sha256(f"{declared} {text}".encode()).hexdigest()[:40]
        self.execute = f"EXECUTE {name}{values}"
        return f"PREPARE {name}{declared} AS {text}"


class _Session:
    """The statements of one connection."""

    def __init__(self) -> None:
        self.executions: dict[_Statement, int] = {}  # up to _FREQUENT, from where on the statement is prepared
        self.prepared = 0
        self.executing = False  # True during and after an EXECUTE command, until the next statement


class Preparer:
    """Prepares the frequent statements of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self._statements: dict[tuple[str, tuple[str, ...]], _Statement] = {}
        self._enabled = True
        sa.event.listen(engine, "do_execute", self._execute)
        sa.event.listen(engine, "handle_error", self._discard)

    def _execute(self, cursor: Any, text: str, parameters: Any, execution: Any) -> bool:
        """Execute a statement; return False if SQLAlchemy has to execute it unprepared."""
        if execution.compiled is None or not self._enabled or cursor.name:  # server-side cursors have names
            return False
        info = execution.root_connection.info
        session = info.get(_INFO) or info.setdefault(_INFO, _Session())
        session.executing = False
        types = _types(parameters)
        statement = self._statements.get((text, types))
        if statement is None:
            if len(self._statements) >= _COUNTED:
                return False
            statement = self._statements[text, types] = _Statement(text, types)
        count = session.executions.get(statement, 0)
        if count < _FREQUENT and not self._prepare(cursor, session, statement, parameters, count + 1):
            return False
        session.executing = True
        cursor.execute(statement.execute, parameters)
        return True

    def _prepare(self, cursor: Any, session: _Session, statement: _Statement, parameters: Mapping[str, Any],
                 count: int) -> bool:
        """Count an execution, and prepare a frequent statement; return True if it is prepared."""
        if statement.accepted is False or session.prepared >= _PREPARED:
            return False
        if count == _FREQUENT:
            if statement.accepted:
                cursor.execute(statement.prepare(parameters))
            elif not self._try(cursor, statement, parameters):
                return False
            session.prepared += 1
        session.executions[statement] = count
        return count == _FREQUENT

    @staticmethod
    def _try(cursor: Any, statement: _Statement, parameters: Mapping[str, Any]) -> bool:
        """Prepare a statement for the first time; the transaction continues if the server refuses it."""
        in_transaction = not cursor.connection.autocommit
        if in_transaction:
            cursor.execute("SAVEPOINT nova_prepare")
        try:
            cursor.execute(statement.prepare(parameters))
            statement.accepted = True
        except cursor.connection.ProgrammingError:
            if in_transaction:
                cursor.execute("ROLLBACK TO SAVEPOINT nova_prepare")
            statement.accepted = False
        if in_transaction:
            cursor.execute("RELEASE SAVEPOINT nova_prepare")
        return statement.accepted

    def _discard(self, context: sa.engine.ExceptionContext) -> None:
        """Discard a connection whose prepared statements are lost, and let its transaction be repeated."""
        code = errors.code_of(context.original_exception)
        session = context.connection.info.get(_INFO) if context.connection is not None else None
        if code in _SHARED:
            self._enabled = False
        elif code != _CHANGED or session is None or not session.executing:
            return
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
        raise db_exception.RetryRequest(context.original_exception)


def _types(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types that the server derives from the literals of these values."""
    types = tuple([_TYPES.get(type(value), _UNSUPPORTED) for value in parameters.values()])
    if "int8" in types or "timestamp" in types:
        return tuple([_exact(kind, value) for kind, value in zip(types, parameters.values(), strict=True)])
    return types


def _exact(kind: str, value: Any) -> str:
    if kind == "int8" and not -_INT8 <= value < _INT8:
        return "numeric"
    return "timestamptz" if kind == "timestamp" and value.tzinfo is not None else kind
