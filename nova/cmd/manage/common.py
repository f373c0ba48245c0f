"""Shared code of the commands: access to the database as in a conductor, and tables."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import prettytable

from nova import bus
from nova.conductor.core import Core
from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.feed import UsageFeed
from nova.conductor.service import open_database
from nova.conf import CONF
from nova.db.maintenance import readiness
from nova.db.sql import clock
from nova.objects.base import new_uuid
from nova.rpcapi import compute, scheduler


def core() -> Core:
    """Return the core of a conductor, which also sends changes to the schedulers. Raises DatabaseUnusable."""
    readiness.check(CONF.database.connection)
    transport = bus.connect(CONF)
    name = f"nova-manage@{CONF.host}:{new_uuid()[:8]}"
    db = open_database()
    db.read(clock.synchronize)  # use the clock of the database, as conductors do
    scheduler_proxy = bus.client(transport, scheduler.Scheduler)
    publisher = FleetAnnouncer(scheduler_proxy, name)
    return Core(name=name, db=db, transport=transport, scheduler=scheduler_proxy,
                compute=bus.client(transport, compute.Compute), fleet=publisher, usage=UsageFeed(db, publisher))


Run = Callable[[argparse.Namespace], int | None]


def add_group(commands: Any, name: str, text: str) -> Any:
    """Add a command that consists of actions. ``text``: its help."""
    return commands.add_parser(name, help=text).add_subparsers(required=True, metavar="ACTION")


def add_action(group: Any, name: str, run: Run, text: str, **defaults: Any) -> argparse.ArgumentParser:
    """Add an action, for which ``run`` is called, and return its parser. ``text``: its help."""
    parser: argparse.ArgumentParser = group.add_parser(name, help=text)
    parser.set_defaults(run=run, **defaults)
    return parser


def add_list_show_delete(group: Any, resource: str, runs: tuple[Run, Run, Run], delete_help: str) -> None:
    """Add the actions list [--project ID], show UUID and delete UUID for a resource of projects."""
    listing, showing, deletion = runs
    add_action(group, "list", listing, f"List {resource}s.").add_argument(
        "--project", help=f"only {resource}s of the project with this id")
    for parser in (add_action(group, "show", showing, f"Show details of a {resource}."),
                   add_action(group, "delete", deletion, delete_help)):
        parser.add_argument(resource, help=f"UUID of the {resource}")


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    table = prettytable.PrettyTable(list(columns))
    table.align = "l"
    for row in rows:
        table.add_row(["" if value is None else value for value in row])
    print(table)
