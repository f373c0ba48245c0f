"""The commands nova-manage db, for the database schema, old rows and encrypted secrets."""

import argparse
import contextlib
from typing import Any

from nova.cmd.manage import purge
from nova.conductor.resources import volume_keys
from nova.conductor.secret_cipher import SecretCipher
from nova.conductor.service import open_database
from nova.conf import CONF
from nova.db.maintenance import migrate, readiness
from nova.db.servers import passwords


def add_commands(commands: Any) -> None:
    command = commands.add_parser("db", help="Manage the database.")
    group = command.add_subparsers(required=True, metavar="ACTION")
    sync = group.add_parser("sync", help="Upgrade the schema to the newest revision, or to VERSION.")
    sync.add_argument("version", nargs="?")
    sync.set_defaults(run=_sync)
    group.add_parser("version", help="Print the revision of the schema.").set_defaults(run=_version)
    purge.add_command(group)
    group.add_parser("forget_secrets", help="Delete the encrypted passwords of servers that are being built, after the "
                     "file [conductor]secret_key_file was lost.").set_defaults(run=_forget_secrets)
    group.add_parser("renew_secrets", help="Encrypt the keys of volumes again with the first key in "
                     "[conductor]secret_key_file.").set_defaults(run=_renew_secrets)


def _sync(arguments: argparse.Namespace) -> None:
    migrate.sync(CONF.database.connection, arguments.version)


def _version(_arguments: argparse.Namespace) -> None:
    print(migrate.version(CONF.database.connection) or "empty")


def _forget_secrets(_arguments: argparse.Namespace) -> None:
    readiness.check(CONF.database.connection)
    with contextlib.closing(open_database()) as database:
        print(f"Deleted the passwords of {database.write(passwords.forget)} servers")


def _renew_secrets(_arguments: argparse.Namespace) -> None:
    readiness.check(CONF.database.connection)
    with contextlib.closing(open_database()) as database:
        cipher = SecretCipher(CONF.conductor.secret_key_file)
        cipher.check(database)
        print(f"Re-encrypted the volume keys of {volume_keys.renew(database, cipher)} servers")
