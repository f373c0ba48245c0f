"""What the commands share: the database, a conductor's view of it, tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import prettytable

from nova import bus
from nova.conductor.core import Core
from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.usage import UsageFeed
from nova.conductor.service import open_database
from nova.conf import CONF
from nova.db.sql import clock, readiness
from nova.objects.base import new_uuid
from nova.rpcapi import compute, scheduler


def core() -> Core:
    """A conductor's core in this process: the same code as the service's, and the schedulers are told.

    Raises DatabaseUnusable.
    """
    readiness.check(CONF.database.connection)
    transport = bus.connect(CONF)
    name = f"nova-manage@{CONF.host}:{new_uuid()[:8]}"
    db = open_database()
    db.read(clock.ask)  # liveness is judged as conductors do
    scheduler_proxy = bus.client(transport, scheduler.Scheduler)
    publisher = FleetAnnouncer(scheduler_proxy, name)
    return Core(name=name, db=db, transport=transport, scheduler=scheduler_proxy,
                compute=bus.client(transport, compute.Compute), fleet=publisher, usage=UsageFeed(db, publisher))


Run = Callable[[argparse.Namespace], None]


def add_list_show_delete(group: Any, thing: str, runs: tuple[Run, Run, Run], deletes: str) -> None:
    """The three actions on what projects own: list [--project ID], show UUID, delete UUID (``deletes``: its help)."""
    listing = group.add_parser("list", help=f"list the {thing}s")
    listing.add_argument("--project", help="only those of this project")
    show = group.add_parser("show", help=f"all that is known of a {thing}")
    delete = group.add_parser("delete", help=deletes)
    for one in (show, delete):
        one.add_argument(thing, help="its uuid")
    for parser, run in zip((listing, show, delete), runs, strict=True):
        parser.set_defaults(run=run)


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    table = prettytable.PrettyTable(list(columns))
    table.align = "l"
    for row in rows:
        table.add_row(["" if value is None else value for value in row])
    print(table)
