"""The commands nova-manage db, for the database schema, old rows and encrypted secrets."""

import argparse
import contextlib
import datetime
import os
import time
from typing import IO, Any

from nova import exception
from nova.cmd.manage import common
from nova.conductor.resources import certificates as issuing
from nova.conductor.resources import volume_keys
from nova.conductor.secret_cipher import SecretCipher
from nova.conductor.service import open_database
from nova.conf import CONF
from nova.db.accounts import certificates
from nova.db.maintenance import migrate, purge, readiness
from nova.db.servers import passwords
from nova.db.sql import clock

_MIN_AGE = 3600  # minimum age in seconds of rows to remove; messages that refer to older rows have expired
_MAX_HISTORY_KEEP = 1000  # maximum of --history-keep, since each action is compared with that many other actions
_PROGRESS_INTERVAL = 5.0  # seconds between two progress messages
_NOTHING = 3  # exit code if no rows were removed


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "db", "Manage the database.")
    common.add_action(group, "sync", lambda arguments: migrate.sync(CONF.database.connection, arguments.version),
                      "Upgrade the schema to the newest revision, or to VERSION.").add_argument("version", nargs="?")
    common.add_action(group, "version", lambda _arguments: print(migrate.version(CONF.database.connection) or "empty"),
                      "Print the revision of the schema.")
    command = common.add_action(group, "purge", _purge, "Remove deleted servers and their rows, and expired "
                                "certificates, from the database. Exit code 3 if no rows match.")
    command.add_argument("--older-than", type=int, default=_MIN_AGE, metavar="SECONDS",
                         help=f"only servers deleted at least this long ago (default and minimum: {_MIN_AGE})")
    command.add_argument("--history-older-than", type=int, metavar="SECONDS",
                         help="also actions and migrations of existing servers that ended at least this long ago "
                              f"(minimum: {_MIN_AGE}); os-instance-actions and os-migrations no longer show them")
    command.add_argument("--history-keep", type=int, default=0, metavar="ACTIONS",
                         help="keep this number of newest actions of each existing server (default: 0)")
    command.add_argument("--archive", metavar="FILE", help="append each removed row to this file as a line of JSON")
    command.add_argument("--page", type=int, default=purge.PAGE, metavar="ROWS",
                         help=f"number of rows per transaction (default: {purge.PAGE})")
    command.add_argument("--compact", action="store_true",
                         help="then return the free disk space to the file system; each table is locked while its "
                              "remaining rows are copied")
    command.add_argument("--dry-run", action="store_true", help="only count the rows")
    common.add_action(group, "forget_secrets", _forget_secrets, "Delete the encrypted passwords of servers that are "
                      "being built, and the private keys of root certificates, after the file "
                      "[conductor]secret_key_file was lost.")
    common.add_action(group, "renew_secrets", _renew_secrets,
                      "Encrypt the keys of volumes and of root certificates again with the first key in "
                      "[conductor]secret_key_file.")


def _forget_secrets(_arguments: argparse.Namespace) -> None:
    readiness.check(CONF.database.connection)
    with contextlib.closing(open_database()) as database:
        count, roots = database.write(
            lambda connection: (passwords.forget(connection), certificates.forget_keys(connection)))
        print(f"Deleted the passwords of {count} servers")
        if roots:
            print(f"Deleted the private keys of {roots} root certificates")


def _renew_secrets(_arguments: argparse.Namespace) -> None:
    readiness.check(CONF.database.connection)
    with contextlib.closing(open_database()) as database:
        cipher = SecretCipher(CONF.conductor.secret_key_file)
        cipher.check(database)
        print(f"Re-encrypted the volume keys of {volume_keys.renew(database, cipher)} servers")
        if roots := issuing.renew_keys(database, cipher):
            print(f"Re-encrypted the private keys of {roots} root certificates")


# --- old rows ------------------------------------------------------------------------------------------


def _purge(arguments: argparse.Namespace) -> int:
    _selection(arguments)  # refuse wrong options before connecting
    if arguments.page < 1:
        raise exception.InvalidInput(reason="--page must be at least 1")
    readiness.check(CONF.database.connection)
    with contextlib.closing(open_database()) as db, contextlib.ExitStack() as stack:
        db.read(clock.synchronize)
        selected = _selection(arguments)
        expected = purge.count(db, selected)
        if arguments.dry_run:
            common.show(("Kind", "Rows"), expected.items())
            return 0 if expected.total() else _NOTHING
        archive = stack.enter_context(_open(arguments.archive)) if arguments.archive else None
        removed = purge.Removed()
        reported = time.monotonic()
        for page in purge.purge(db, selected, archive, arguments.page):
            removed += page
            if time.monotonic() - reported > _PROGRESS_INTERVAL:
                reported = time.monotonic()
                print(f"{_sum(removed)} removed so far, of " + ", ".join(
                    f"{number} {kind}" for kind, number in expected.items()), flush=True)
        print(f"{_sum(removed)} removed")
        if arguments.compact:
            purge.compact(db)
            print("Returned the disk space to the file system")
    return 0 if removed.total() else _NOTHING


def _selection(arguments: argparse.Namespace) -> purge.What:
    """Return the rows that the options select, by the clock of the database once it is known. Raises InvalidInput."""
    older_than, keep = _before("--older-than", arguments.older_than), arguments.history_keep
    history = None
    if arguments.history_older_than is not None:
        history = _before("--history-older-than", arguments.history_older_than)
    if not 0 <= keep <= _MAX_HISTORY_KEEP:
        raise exception.InvalidInput(reason=f"--history-keep must be from 0 to {_MAX_HISTORY_KEEP}")
    if keep and history is None:
        raise exception.InvalidInput(reason="--history-keep needs --history-older-than; otherwise all history is kept")
    return purge.What(older_than, history, keep)


def _before(option: str, seconds: int) -> datetime.datetime:
    if not _MIN_AGE <= seconds <= 100 * 366 * 86400:
        raise exception.InvalidInput(reason=f"{option} must be from {_MIN_AGE} seconds to 100 years")
    return clock.after(-seconds)


def _open(path: str) -> IO[bytes]:
    """Open the archive, with mode 0600 if it is new. Raises InvalidInput."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
    except OSError as error:
        raise exception.InvalidInput(reason=f"--archive {path}: {error.strerror}") from error


def _sum(removed: purge.Removed) -> str:
    return ", ".join(f"{number} {table}" for table, number in sorted(removed.items()) if number) or "Nothing"
