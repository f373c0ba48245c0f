"""What the commands share: the database, a conductor's view of it, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    table = prettytable.PrettyTable(list(columns))
    table.align = "l"
    for row in rows:
        table.add_row(["" if value is None else value for value in row])
    print(table)
