"""nova-manage db purge: deleted servers and old history leave the database."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import time
from typing import IO, Any

from nova import exception
from nova.cmd.manage import common
from nova.conductor.service import open_database
from nova.conf import CONF
from nova.db import purge
from nova.db.sql import clock, readiness

# Seconds after which what was deleted may go: by then no message that names it is under way.
_LEAST = 3600
# For more a date is the better answer: each action that may go is compared with so many.
_MOST_KEPT = 1000
# Seconds between two lines about progress.
_EVERY = 5.0
# What there is nothing of: as elsewhere.
_NOTHING = 3


def add_command(group: Any) -> None:
    command = group.add_parser(
        "purge", help="remove deleted servers, with all that hangs on them; exit code 3 if there was nothing")
    command.add_argument("--older-than", type=int, default=_LEAST, metavar="SECONDS",
                         help=f"only servers that were deleted so long ago (default and least: {_LEAST})")
    command.add_argument("--history-older-than", type=int, metavar="SECONDS",
                         help="also actions and migrations of living servers that ended so long ago (least: "
                              f"{_LEAST}): os-instance-actions and os-migrations do not show them any more")
    command.add_argument("--history-keep", type=int, default=0, metavar="ACTIONS",
                         help="the newest so many actions of each living server stay, however old they are "
                              "(default: 0)")
    command.add_argument("--archive", metavar="FILE",
                         help="append what is removed to this file, a line of JSON per row, before it is gone")
    command.add_argument("--page", type=int, default=purge.PAGE, metavar="ROWS",
                         help=f"how many go in one transaction (default: {purge.PAGE})")
    command.add_argument("--compact", action="store_true",
                         help="then give the room back to the file system; what uses a table waits for as long as it "
                              "takes to copy what is left of it")
    command.add_argument("--dry-run", action="store_true", help="only count what would go")
    command.set_defaults(run=_purge)


def _purge(arguments: argparse.Namespace) -> int:
    _what(arguments)  # wrong options are refused before anything is connected to
    if arguments.page < 1:
        raise exception.InvalidInput(reason="--page must be at least 1")
    readiness.check(CONF.database.connection)
    with contextlib.closing(open_database()) as db, contextlib.ExitStack() as stack:
        db.read(clock.ask)
        what = _what(arguments)
        expected = purge.count(db, what)
        if arguments.dry_run:
            common.show(("Would go", "Rows"), expected.items())
            return 0 if expected.total() else _NOTHING
        archive = stack.enter_context(_open(arguments.archive)) if arguments.archive else None
        removed = purge.Removed()
        told = time.monotonic()
        for page in purge.purge(db, what, archive, arguments.page):
            removed += page
            if time.monotonic() - told > _EVERY:
                told = time.monotonic()
                print(f"{_sum(removed)} removed; there were " + ", ".join(
                    f"{number} {kind}" for kind, number in expected.items()), flush=True)
        print(f"{_sum(removed)} removed")
        if arguments.compact:
            purge.compact(db)
            print("The room they had is given back")
    return 0 if removed.total() else _NOTHING


def _what(arguments: argparse.Namespace) -> purge.What:
    """Return what the options select, by the database's clock if it has been asked. Raises InvalidInput."""
    return purge.What(_before("--older-than", arguments.older_than),
                      None if arguments.history_older_than is None
                      else _before("--history-older-than", arguments.history_older_than), _kept(arguments))


def _before(option: str, seconds: int) -> datetime.datetime:
    if not _LEAST <= seconds <= 100 * 366 * 86400:
        raise exception.InvalidInput(reason=f"{option} must be at least {_LEAST} seconds, and at most a century")
    return clock.after(-seconds)


def _kept(arguments: argparse.Namespace) -> int:
    keep: int = arguments.history_keep
    if not 0 <= keep <= _MOST_KEPT:
        raise exception.InvalidInput(reason=f"--history-keep must be from 0 to {_MOST_KEPT}")
    if keep and arguments.history_older_than is None:
        raise exception.InvalidInput(reason="--history-keep needs --history-older-than: without it all history stays")
    return keep


def _open(path: str) -> IO[bytes]:
    """The archive, which its owner alone may read. Raises InvalidInput."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
    except OSError as error:
        raise exception.InvalidInput(reason=f"--archive {path}: {error.strerror}") from error


def _sum(removed: purge.Removed) -> str:
    return ", ".join(f"{number} {table}" for table, number in sorted(removed.items()) if number) or "Nothing"
