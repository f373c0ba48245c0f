"""Prepared statements on PostgreSQL: the server parses and plans a frequent statement once per connection.

Parsing and planning are about half of the server's work for a statement of one row. psycopg2 has no prepared statements
of its own, so this module sends PREPARE and EXECUTE."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova.db.sql import errors

_FREQUENT = 3  # number of executions on a connection at which a statement is prepared
# Maximum numbers of prepared statements of a connection (the server stores a plan of about 20 kB for each), of counted
# statements of a process, and of parameters of a prepared statement (1,000 take 200 kB, planning 66,000 takes 150 MB).
_PREPARED, _COUNTED, _PARAMETERS = 150, 600, 250
# SQLSTATEs for a prepared statement that does not exist, or already exists: a proxy shares sessions of the server.
_SHARED = frozenset({"26000", "42P05"})
_CHANGED = "0A000"  # SQLSTATE for a prepared statement whose result has other columns since a migration
_INFO = "nova_prepared"  # entry of a connection's info
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
_TYPES: dict[type, str] = {bool: "bool", int: "int4", str: "unknown", type(None): "unknown", float: "numeric",
                           decimal.Decimal: "numeric", datetime.datetime: "timestamp"}
_UNSUPPORTED = ""
_INT4, _INT8 = 2**31, 2**63


class _Statement:
    """A statement with the types of its parameters. ``accepted``: True if the server can prepare it, None before the
    first attempt. ``execute``: the command that executes the prepared statement."""

    __slots__ = ("_names", "_text", "_types", "accepted", "execute")

    def __init__(self, text: str, names: tuple[str, ...], types: tuple[str, ...]) -> None:
        self._text, self._names, self._types = text, names, types
        self.accepted = False if _UNSUPPORTED in types else None
        self.execute = ""

    def prepare(self) -> str:
        """Return the command that prepares the statement, and set ``execute``."""
        numbers = {name: f"${number}" for number, name in enumerate(self._names, 1)}
        text = _PLACEHOLDER.sub(lambda match: numbers[match[1]] if match[1] else "%", self._text)
        declared = f"({', '.join(self._types)})" if self._types else ""
        values = f"({', '.join(f'%({name})s' for name in self._names)})" if self._names else ""
        # The name is a hash of the text: in a session shared by a proxy it never stands for another statement.
        name = "nova_" + hashlib.sha256(f"{declared} {text}".encode()).hexdigest()[:40]
        self.execute = f"EXECUTE {name}{values}"
        return f"PREPARE {name}{declared} AS {text}"


class _Session:
    """The statements of one connection."""

    def __init__(self) -> None:
        self.executions: dict[_Statement, int] = {}  # counted up to _FREQUENT, when the statement is prepared
        self.prepared = 0
        self.executing = False  # True during and after an EXECUTE command, until the next statement


class Preparer:
    """Prepares the frequent statements of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self._names: dict[str, tuple[str, ...]] = {}  # parameters of a statement, in the order of its text
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
        statement = self._find(execution.compiled.statement, text, parameters)
        if statement is None:
            return False
        count = session.executions.get(statement, 0)
        if count < _FREQUENT and not self._prepare(cursor, session, statement, count + 1):
            return False
        session.executing = True
        cursor.execute(statement.execute, parameters)
        return True

    def _find(self, source: Any, text: str, parameters: Mapping[str, Any]) -> _Statement | None:
        """Return the statement for these parameters, or None if it must not be prepared. Savepoint commands are
        never prepared, since they must also work in a failed transaction."""
        names = self._names.get(text)
        if names is None:
            if len(self._names) >= _COUNTED or len(parameters) > _PARAMETERS or not (source.is_select or source.is_dml):
                return None
            names = self._names[text] = tuple(dict.fromkeys(filter(None, _PLACEHOLDER.findall(text))))
        types = _types([parameters[name] for name in names])
        statement = self._statements.get((text, types))
        if statement is None and len(self._statements) < _COUNTED:
            statement = self._statements[text, types] = _Statement(text, names, types)
        return statement

    def _prepare(self, cursor: Any, session: _Session, statement: _Statement, count: int) -> bool:
        """Count an execution, and prepare a frequent statement; return True if it is prepared."""
        if statement.accepted is False or session.prepared >= _PREPARED:
            return False
        if count == _FREQUENT:
            if statement.accepted:
                cursor.execute(statement.prepare())
            elif not self._try(cursor, statement):
                return False
            session.prepared += 1
        session.executions[statement] = count
        return count == _FREQUENT

    @staticmethod
    def _try(cursor: Any, statement: _Statement) -> bool:
        """Prepare a statement for the first time; the transaction continues if the server refuses it."""
        in_transaction = not cursor.connection.autocommit
        if in_transaction:
            cursor.execute("SAVEPOINT nova_prepare")
        try:
            cursor.execute(statement.prepare())
            statement.accepted = True
        except cursor.connection.ProgrammingError:
            if in_transaction:
                cursor.execute("ROLLBACK TO SAVEPOINT nova_prepare")
            statement.accepted = False
        if in_transaction:
            cursor.execute("RELEASE SAVEPOINT nova_prepare")
        return statement.accepted

    def _discard(self, context: sa.engine.ExceptionContext) -> None:
        """Close a connection whose prepared statements are lost, so that its transaction is repeated on another one."""
        code = errors.code_of(context.original_exception)
        session = context.connection.info.get(_INFO) if context.connection is not None else None
        if code in _SHARED:
            self._enabled = False
        elif code != _CHANGED or session is None or not session.executing:
            return
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
        raise db_exception.RetryRequest(context.original_exception)


def _types(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the types that the server would derive from literals of these values. Other types could change results:
    the sum of int4 values is an integer, the sum of int8 values is not."""
    types = tuple([_TYPES.get(type(value), _UNSUPPORTED) for value in values])
    if "int4" in types or "timestamp" in types:
        return tuple([_exact(kind, value) for kind, value in zip(types, values, strict=True)])
    return types


def _exact(kind: str, value: Any) -> str:
    if kind == "int4":
        return kind if -_INT4 < value < _INT4 else "int8" if -_INT8 < value < _INT8 else "numeric"
    return "timestamptz" if kind == "timestamp" and value.tzinfo is not None else kind
