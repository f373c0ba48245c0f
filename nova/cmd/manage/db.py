"""nova-manage db: the schema."""

from __future__ import annotations

import argparse
from typing import Any

from nova.conf import CONF
from nova.db import migrate


def add_commands(commands: Any) -> None:
    group = commands.add_parser("db", help="the database schema").add_subparsers(required=True, metavar="ACTION")
    sync = group.add_parser("sync", help="bring the schema to the newest revision (or to VERSION)")
    sync.add_argument("version", nargs="?")
    sync.set_defaults(run=_sync)
    group.add_parser("version", help="print the revision of the schema").set_defaults(run=_version)


def _sync(arguments: argparse.Namespace) -> None:
    migrate.sync(CONF.database.connection, arguments.version)


def _version(_arguments: argparse.Namespace) -> None:
    print(migrate.version(CONF.database.connection) or "empty")
