"""Execution of the statements that every boot and every GET of a server needs, on the cursor of the database's driver.

SQLAlchemy compiles the statement once per dialect. For each execution SQLAlchemy needs more time (contexts, result
metadata, events) than the driver; this module only converts values. It calls the same listeners for statements and
errors as SQLAlchemy."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

_ERROR = "nova_error"  # execution option: the error that the driver has raised
_Process = Callable[[Any], Any]
_dialects: dict[str, sa.Dialect] = {}


class Execution:
    """Context of one execution: the attributes of SQLAlchemy's ExecutionContext that Nova's listeners use."""

    __slots__ = ("compiled", "compiled_parameters", "isinsert", "isupdate", "nova_lengths_checked", "root_connection")

    def __init__(self, connection: sa.Connection, compiled: Any, values: Mapping[str, Any]) -> None:
        self.root_connection, self.compiled, self.compiled_parameters = connection, compiled, [values]
        self.isinsert, self.isupdate = compiled.isinsert, compiled.isupdate


class Result:
    """The rows of a result, as named tuples, and the number of changed rows."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def first(self) -> Any:
        return self._rows[0] if self._rows else None


def execute(connection: sa.Connection, statement: Any, values: Mapping[str, Any]) -> Result:
    """Execute a statement that is built once per process. ``values``: parameters and, for an INSERT or UPDATE, values
    of columns. Raises the same errors as ``connection.execute()``; KeyError for a missing parameter."""
    dialect = connection.dialect
    if dialect.name == "sqlite":  # one dialect, so that all SQLite databases share plans: tests open many
        dialect = _dialects.setdefault(dialect.name, dialect)
    plan = _plan(statement, dialect, tuple(values))
    parameters = plan.parameters(values)
    cursor: Any = connection.connection.cursor()
    execution = Execution(connection, plan.compiled, values)
    text = plan.text
    for listener in connection.dispatch.before_cursor_execute:
        listener(connection, cursor, text, parameters, execution, False)
    try:
        for executor in connection.dialect.dispatch.do_execute:
            if executor(cursor, text, parameters, execution):
                break
        else:
            cursor.execute(text, parameters)
        description, count = cursor.description, cursor.rowcount
        stored = cursor.fetchall() if description else []
    except Exception as error:
        # SQLAlchemy converts the error, calls the listeners and discards a lost connection.
        connection.exec_driver_sql(text, execution_options={_ERROR: error})
        raise
    finally:
        cursor.close()
    return Result(plan.rows(description, stored) if stored else [], count)


def raise_errors(engine: sa.Engine) -> None:
    """Let SQLAlchemy handle errors of :func:`execute`. Call this before other listeners of executions are added."""
    def raise_error(_cursor: Any, _text: str, _parameters: Any, execution: Any) -> None:
        if not isinstance(execution, Execution) and (error := execution.execution_options.get(_ERROR)) is not None:
            raise error

    sa.event.listen(engine, "do_execute", raise_error)


class _Plan:
    """A compiled statement with the conversions of its parameters and of its result."""

    def __init__(self, statement: Any, dialect: sa.Dialect, names: tuple[str, ...]) -> None:
        self.compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        self.text = str(self.compiled)
        if self.compiled.post_compile_params or self.compiled.prefetch or self.compiled.escaped_bind_names:
            raise TypeError("a statement with lists of values, defaults or quoted parameters is not executed here")
        self._dialect = dialect
        self._positions: list[str] | None = self.compiled.positiontup
        self._constant: dict[str, Any] = {}
        self._variable: list[tuple[str, _Process | None]] = []
        for name, bind in self.compiled.binds.items():
            process = bind.type.dialect_impl(dialect).bind_processor(dialect)
            if bind.required:
                self._variable.append((name, process))
            else:
                self._constant[name] = process(bind.effective_value) if process else bind.effective_value
        # The type of rows and the conversions of columns, by index; None before the first result.
        self._described: tuple[Callable[[list[Any]], Any], list[tuple[int, _Process]]] | None = None

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters in the form of the driver."""
        converted = self._constant.copy()
        for name, process in self._variable:
            value = values[name]
            converted[name] = value if process is None else process(value)
        if self._positions is None:
            return converted
        return tuple([converted[name] for name in self._positions])

    def rows(self, description: Any, stored: list[Any]) -> list[Any]:
        """Return the rows of a result with this description as named tuples."""
        if self._described is None:
            # A single assignment, because several threads may have the first result.
            self._described = self._describe(description)
        make, processes = self._described
        rows = []
        for values in stored:
            row = list(values)
            for index, process in processes:
                row[index] = process(row[index])
            rows.append(make(row))
        return rows

    def _describe(self, description: Any) -> tuple[Callable[[list[Any]], Any], list[tuple[int, _Process]]]:
        statement: Any = self.compiled.statement
        columns = list(statement.exported_columns)
        processes = []
        for index, (column, described) in enumerate(zip(columns, description, strict=True)):
            process = column.type.dialect_impl(self._dialect).result_processor(self._dialect, described[1])
            if process is not None:
                processes.append((index, process))
        make_type: Any = collections.namedtuple
        return make_type("Row", [column.key for column in columns], rename=True)._make, processes


@functools.lru_cache(1000)
def _plan(statement: Any, dialect: sa.Dialect, names: tuple[str, ...]) -> _Plan:
    return _Plan(statement, dialect, names)
