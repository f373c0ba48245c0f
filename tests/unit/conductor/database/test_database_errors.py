"""Classification of database errors into retried and permanent ones: every SQLSTATE, MariaDB's errors and SQLite's
results."""

from __future__ import annotations

import collections
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg2.errorcodes
import psycopg2.errors
import pymysql.err
import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception
from pymysql.constants import ER

from nova.db.sql import errors

# SQLSTATE classes of transient errors: connection, invalid authorization and catalog (of a server that is
# replaced), rollback, resources, object state, intervention, system, configuration, internal.
_TRANSIENT = {"08", "28", "3D", "40", "53", "55", "57", "58", "F0", "HV", "XX", "72"}
_PERMANENT = {"09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23", "24", "25", "26", "27",
              "2B", "2D", "2F", "34", "38", "39", "3B", "3F", "42", "44", "54", "P0"}
# Classes that are no errors: success, warnings, "no data".
_NO_ERROR = {"00", "01", "02", "03"}
_EXCEPTIONS = {"25006": True, "25P03": True, "25P04": True, "42501": True}
# MariaDB: the same statement succeeds once the server is up, has space, is writable or has released its locks.
_MARIADB_TRANSIENT = {
    3: "error writing file", 28: "no space left", 126: "index is corrupt", 1020: "record changed", 1021: "disk full",
    1026: "error writing file", 1030: "error from the storage engine", 1037: "out of memory",
    1038: "out of sort memory", 1040: "too many connections", 1041: "out of memory", 1044: "access denied",
    1045: "access denied", 1049: "unknown database",
    1053: "shutdown", 1077: "shutdown", 1114: "table full", 1142: "no privilege", 1158: "network read",
    1105: "unknown error", 1159: "network timeout", 1160: "network write", 1180: "error during COMMIT",
    1203: "connections of the account",
    1205: "lock wait timeout", 1206: "lock table full", 1213: "deadlock", 1226: "limits of the account",
    1290: "--read-only", 1317: "interrupted", 1792: "read-only transaction", 1836: "read-only mode",
    1927: "connection killed", 1969: "statement time", 2006: "server has gone away", 2013: "lost connection",
    2014: "commands out of sync", 4031: "idle connection"}
_MARIADB_PERMANENT = {
    1048: "null", 1054: "unknown column", 1062: "duplicate", 1064: "syntax", 1136: "column count", 1146: "no table",
    1153: "packet too long", 1216: "foreign key", 1242: "more than one row", 1264: "out of range",
    1292: "wrong value", 1300: "invalid character", 1364: "no default", 1366: "incorrect string",
    1406: "too long", 1411: "wrong value for a function", 1451: "foreign key", 1452: "foreign key", 1644: "signal",
    1690: "out of range", 4025: "check constraint"}
_SQLITE_PERMANENT = {"SQLITE_ERROR", "SQLITE_TOOBIG", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_MISUSE",
                     "SQLITE_RANGE"}
_SQLITE_NO_ERROR = {"SQLITE_OK", "SQLITE_ROW", "SQLITE_DONE", "SQLITE_NOTICE", "SQLITE_WARNING"}


def _wrapped(cause: Any) -> Iterator[Exception]:
    """Yield the error of a driver as wrapped by SQLAlchemy and by oslo.db."""
    wrapped = sa.exc.DBAPIError("UPDATE t", {}, cause)
    yield wrapped
    yield db_exception.DBError(wrapped)
    yield db_exception.DBError(cause)


def _verdict(cause: Any) -> bool:
    """Return True if the error is retried; assert that the wrapper makes no difference."""
    found = {errors.is_transient(each) for each in _wrapped(cause)}
    assert len(found) == 1, cause
    return found.pop()


def _of_postgresql(code: str) -> Exception:
    try:
        kind = psycopg2.errors.lookup(code)
    except KeyError:  # the driver does not support this release of PostgreSQL
        kind = psycopg2.DatabaseError
    error = kind("it failed")
    error.__setstate__({"pgcode": code})
    return error


def test_every_sqlstate_is_classified_by_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    table: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    for name, code in vars(psycopg2.errorcodes).items():
        if not name.isupper() or name.startswith("CLASS_") or len(code) != 5 or code[:2] in _NO_ERROR:
            continue
        assert code[:2] in _TRANSIENT | _PERMANENT, f"{name} {code} is of a class that this test does not list"
        expected = _EXCEPTIONS.get(code, code[:2] in _TRANSIENT)
        assert _verdict(_of_postgresql(code)) is expected, f"{name} {code}"
        table[code[:2]][expected] += 1
    for code in ("25006", "53100", "57P01", "08006", "XX000"):
        assert _verdict(_of_postgresql(code)), code
    assert len(table) > 30
    with capsys.disabled():
        lines = [f"{name} {each[True]} retried {each[False]} permanent" for name, each in sorted(table.items())]
        print(f"\nSQLSTATE: {sum(sum(each.values()) for each in table.values())} codes of {len(lines)} classes, "
              + ", ".join(lines))


@pytest.mark.parametrize(("code", "what"), [*_MARIADB_TRANSIENT.items(), *_MARIADB_PERMANENT.items()])
@pytest.mark.parametrize("state", [None, "HY000"])
def test_mariadb_errors_are_classified_by_number(code: int, what: str, state: str | None) -> None:
    """Drivers may lose the SQLSTATE, and it may be unspecific."""
    kind = pymysql.err.error_map.get(code, pymysql.err.InternalError if code < 1000 else pymysql.err.OperationalError)
    error = kind(code, what)
    error.sqlstate = state
    assert _verdict(error) is (code in _MARIADB_TRANSIENT)


def test_every_error_number_of_the_mariadb_driver_is_classified(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts: collections.Counter[bool] = collections.Counter()
    for code in (value for name, value in vars(ER).items() if name.isupper() and isinstance(value, int)):
        kind = pymysql.err.error_map.get(code, pymysql.err.OperationalError)
        verdict = _verdict(kind(code, "it failed"))
        # An error that the driver attributes to the statement or its values must not be retried.
        assert not (verdict and issubclass(kind, pymysql.err.ProgrammingError | pymysql.err.DataError
                                           | pymysql.err.IntegrityError | pymysql.err.NotSupportedError)), code
        verdicts[verdict] += 1
    with capsys.disabled():
        print(f"\nMariaDB: {verdicts[True]} numbers retried, {verdicts[False]} permanent; by name "
              f"{len(_MARIADB_TRANSIENT)} and {len(_MARIADB_PERMANENT)}")


def test_every_sqlite_result_is_classified(capsys: pytest.CaptureFixture[str]) -> None:
    seen: collections.Counter[bool] = collections.Counter()
    primary = {value: name for name, value in vars(sqlite3).items() if name in _SQLITE_NO_ERROR | _SQLITE_PERMANENT}
    for name, value in vars(sqlite3).items():
        if not name.startswith("SQLITE_") or not isinstance(value, int) or name in _SQLITE_NO_ERROR or not _is_result(
                name, value):
            continue
        error = sqlite3.OperationalError("it failed")
        error.sqlite_errorcode, error.sqlite_errorname = value, name
        expected = primary.get(value & 0xff) not in _SQLITE_PERMANENT
        assert _verdict(error) is expected, name
        seen[expected] += 1
    assert min(seen.values()) > 5
    with capsys.disabled():
        print(f"\nSQLite: {seen[True]} results retried, {seen[False]} permanent")


def _is_result(name: str, value: int) -> bool:
    """Return True for a result code: the module has other constants with the same prefix."""
    results = ("ABORT", "AUTH", "BUSY", "CANTOPEN", "CONSTRAINT", "CORRUPT", "EMPTY", "ERROR", "FORMAT", "FULL",
               "INTERNAL", "INTERRUPT", "IOERR", "LOCKED", "MISMATCH", "MISUSE", "NOLFS", "NOMEM", "NOTADB",
               "NOTFOUND", "PERM", "PROTOCOL", "RANGE", "READONLY", "SCHEMA", "TOOBIG")
    return value > 0 and name.removeprefix("SQLITE_").split("_")[0] in results


@pytest.mark.parametrize("error", [
    db_exception.DBDuplicateEntry(), db_exception.DBReferenceError("t", "c", "k", "kt"), db_exception.DBDataError(),
    db_exception.DBNonExistentTable("t"), db_exception.DBInvalidUnicodeParameter(), sa.exc.ArgumentError("ours"),
    sa.exc.StatementError("ours", "SELECT", {}, ValueError("ours")), db_exception.DBError(TypeError("ours")),
    ValueError("ours"), psycopg2.ProgrammingError("can't adapt type 'object'")])
def test_programming_errors_are_not_retried(error: Exception) -> None:
    assert not errors.is_transient(error)


@pytest.mark.parametrize("error", [
    db_exception.DBDeadlock(), db_exception.DBConnectionError(), db_exception.RetryRequest(ValueError()),
    db_exception.DBError(psycopg2.OperationalError("server closed the connection unexpectedly")),
    db_exception.DBError(psycopg2.InterfaceError("connection already closed")),
    db_exception.DBError(pymysql.err.InterfaceError(0, ""))])
def test_lost_connections_are_retried(error: Exception) -> None:
    assert errors.is_transient(error)
