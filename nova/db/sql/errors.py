"""Classification of database errors as transient or permanent, and texts of errors without values of statements."""

import functools
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

# SQLSTATE classes of errors in a statement, its values or its place in a transaction: the same statement fails again.
PERMANENT_CLASSES = frozenset({
    "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23", "24", "25", "26", "27", "2B", "2D", "2F",
    "34", "38", "39", "3B", "3F", "42", "44", "54", "P0"})
# SQLSTATEs of those classes that are transient, since the state of the server or its permissions may change: a
# read-only transaction, a session that was idle or open for too long, missing privileges.
TRANSIENT_STATES = frozenset({"25006", "25P03", "25P04", "42501"})
# MariaDB's numbers of errors that are transient although their SQLSTATE is of a permanent class: access denied, no such
# database, too many connections of an account, account limits, locks in a read-only transaction.
TRANSIENT_NUMBERS = frozenset({1044, 1045, 1049, 1142, 1143, 1203, 1207, 1226, 1227, 1370, 1792})
# MariaDB's numbers of permanent errors whose SQLSTATE is of no permanent class (HY000, 08S01, 01000): a packet that is
# too long, values that do not fit or are missing, illegal characters and collations, wrong JSON, triggers.
PERMANENT_NUMBERS = frozenset({
    1046, 1111, 1153, 1172, 1196, 1210, 1215, 1221, 1235, 1263, 1265, 1267, 1270, 1271, 1286, 1289, 1300, 1301,
    1364, 1366, 1411, 1442, 1644, 4037, 4038, 4078})
# MariaDB's numbers of errors in a statement or its values, for drivers that do not keep SQLSTATE.
_STATEMENT_NUMBERS = frozenset({
    1048, 1050, 1051, 1052, 1054, 1055, 1058, 1060, 1061, 1062, 1063, 1064, 1065, 1066, 1068, 1071, 1072, 1075, 1091,
    1109, 1110, 1115, 1118, 1136, 1138, 1139, 1146, 1149, 1166, 1169, 1171, 1176, 1216, 1217, 1222, 1230, 1241, 1242,
    1247, 1248, 1264, 1292, 1305, 1365, 1367, 1406, 1416, 1425, 1441, 1451, 1452, 1557, 1582, 1586, 1690, 1761, 1762,
    4025})
# SQLite's primary result codes of errors in a statement, its values or the use of the library: SQLITE_ERROR,
# TOOBIG, CONSTRAINT, MISMATCH, MISUSE, RANGE.
PERMANENT_RESULTS = frozenset({1, 18, 19, 20, 21, 25})
# Errors of a server that became a standby or was set to read only. After them the connection is closed, since the
# address may belong to another server now.
_READ_ONLY = frozenset({"25006", 1290, 1792, 1836})
# Lock timeouts, serialization failures and deadlocks of PostgreSQL and MariaDB; SQLITE_BUSY and SQLITE_LOCKED.
_LOCKS = frozenset({"55P03", "40001", "40P01", 1205, 1213})
_LOCK_RESULTS = frozenset({5, 6})
# Exception classes of drivers that are permanent errors if the error has no code.
_PERMANENT_CLASSES_OF_DRIVERS = frozenset({"ProgrammingError", "DataError", "IntegrityError", "NotSupportedError"})
_PERMANENT_OF_OSLO = (db_exception.DBConstraintError, db_exception.DBDataError, db_exception.DBDuplicateEntry,
                      db_exception.DBInvalidUnicodeParameter, db_exception.DBNonExistentConstraint,
                      db_exception.DBNonExistentTable, db_exception.DBNotSupportedError, db_exception.DBReferenceError,
                      db_exception.ColumnError)
_TRANSIENT_OF_OSLO = (db_exception.DBDeadlock, db_exception.DBConnectionError, db_exception.RetryRequest)


def is_transient(error: BaseException) -> bool:
    """Return True if a repetition of the whole transaction may succeed.

    Errors of a statement, of its values and of Nova's own code are permanent. All other errors, also unknown ones, are
    transient: a read-only server, a full disk, a restart, terminated sessions."""
    if isinstance(error, _TRANSIENT_OF_OSLO):
        return True
    cause = driver_error(error)
    if cause is None or isinstance(error, _PERMANENT_OF_OSLO):
        return False
    if (result := getattr(cause, "sqlite_errorcode", None)) is not None:
        return result & 0xff not in PERMANENT_RESULTS
    code, state = code_of(cause), getattr(cause, "pgcode", None) or getattr(cause, "sqlstate", None)
    if code in TRANSIENT_NUMBERS or state in TRANSIENT_STATES:
        return True
    if code in PERMANENT_NUMBERS or code in _STATEMENT_NUMBERS:
        return False
    if state:
        return state[:2] not in PERMANENT_CLASSES
    return type(cause).__name__ not in _PERMANENT_CLASSES_OF_DRIVERS


def is_read_only(error: BaseException) -> bool:
    """Return True if the server refused a write because it is read only."""
    return code_of(driver_error(error)) in _READ_ONLY


def refuses_writes(error: BaseException) -> bool:
    """Return True if the server responds but stores nothing; False for locks, deadlocks and lost connections."""
    if isinstance(error, db_exception.DBDeadlock | db_exception.RetryRequest):
        return False
    cause = driver_error(error)
    if (result := getattr(cause, "sqlite_errorcode", None)) is not None:
        return result & 0xff not in _LOCK_RESULTS
    if isinstance(error, db_exception.DBConnectionError):
        return is_read_only(error)
    return code_of(cause) not in _LOCKS


def is_outage(error: BaseException) -> bool:
    """Return True if the server does not respond or stores nothing; False for locks and deadlocks on single rows."""
    return isinstance(error, db_exception.DBConnectionError) or refuses_writes(error)


def driver_error(error: BaseException | None) -> Any:
    """Return the error that the database's driver raised, or None if the driver did not cause ``error``."""
    while error is not None and not _is_of_driver(error):
        error = getattr(error, "orig", None) or getattr(error, "inner_exception", None)
    return error


def _is_of_driver(error: BaseException) -> bool:
    """Return True for an error of a DB-API module, whose classes derive from its DatabaseError or InterfaceError."""
    return not isinstance(error, sa.exc.SQLAlchemyError | db_exception.DBError) and bool(
        {"DatabaseError", "InterfaceError"} & {kind.__name__ for kind in type(error).__mro__})


def code_of(cause: Any) -> Any:
    """Return the SQLSTATE (PostgreSQL) or number (MariaDB) of a driver's error; otherwise its first argument."""
    return getattr(cause, "pgcode", None) or next(iter(getattr(cause, "args", ())), None)


def reconnect_when_read_only(engine: sa.Engine) -> None:
    """Close each connection whose server reports that it is read only, so that the next attempt opens a new one."""
    def discard(context: sa.engine.ExceptionContext) -> None:
        if is_read_only(context.original_exception):
            context.is_disconnect, context.invalidate_pool_on_disconnect = True, False

    sa.event.listen(engine, "handle_error", discard)


def hide_values(engine: sa.Engine) -> None:
    """Shorten errors of PostgreSQL to their first sentence: the rest may contain values of the statement, or the whole
    row. Call this before other listeners for errors are added."""
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "handle_error", _shorten)


def _shorten(context: sa.engine.ExceptionContext) -> None:
    error: Any = context.original_exception
    primary, detail = (getattr(getattr(error, "diag", None), name, None) for name in (
        "message_primary", "message_detail"))
    if not primary:
        return
    original = str(error)
    # Keep the detail of a duplicate key error (23505): oslo.db parses it, and the keys contain no secrets.
    shortened = f"{primary}\nDETAIL:  {detail}\n" if error.pgcode == "23505" else primary
    error.args = (shortened,)
    if context.sqlalchemy_exception is not None:
        context.sqlalchemy_exception.args = tuple(part.replace(original, shortened) if isinstance(part, str) else part
                                                  for part in context.sqlalchemy_exception.args)


def summary(error: Exception) -> str:
    """Return one line for logs: the class and the first line of the driver's error."""
    cause = driver_error(error) or error
    return f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"


class DoesNotFit(db_exception.DBDataError):  # type: ignore[misc]
    """Raised for a text that is longer than its column. The message is for the user and does not contain the value."""


def check_lengths(engine: sa.Engine) -> None:
    """Make statements of the engine raise DoesNotFit if they write a text that is longer than its column, also with
    SQLite, which does not enforce the lengths of columns."""
    sa.event.listen(engine, "before_cursor_execute", _check_lengths)


def _check_lengths(_connection: Any, _cursor: Any, _statement: str, _parameters: Any, execution: Any,
                   _many: bool) -> None:
    if not (execution.isinsert or execution.isupdate) or execution.compiled is None:
        return
    if getattr(execution, "nova_lengths_checked", False):
        return  # a further batch of an INSERT: the parameters of all batches were checked with the first
    execution.nova_lengths_checked = True
    lengths = _lengths(execution.compiled.statement.table)
    for values in execution.compiled_parameters:
        for name, length in lengths:
            value = values.get(name)
            if value is not None and len(value) > length:
                raise DoesNotFit(ValueError(f"{name} may have at most {length} characters"))


@functools.cache
def _lengths(table: sa.Table) -> list[tuple[str, int]]:
    return [(column.key, column.type.length) for column in table.c
            if isinstance(column.type, sa.String) and column.type.length]
