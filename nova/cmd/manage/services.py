"""The commands nova-manage service, for registered services."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nova import context
from nova.cmd.manage import common
from nova.conductor.endpoints.hosts import Services
from nova.db.hosts import services
from nova.objects.hosts.service import Service


def add_commands(commands: Any) -> None:
    group = commands.add_parser("service", help="Manage services.").add_subparsers(required=True, metavar="ACTION")
    listing = group.add_parser("list", help="List services with the load of their worker processes.")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    delete = group.add_parser("delete", help="Delete a service that no longer exists, with its nodes.")
    delete.add_argument("uuid", help="UUID of the service")
    delete.set_defaults(run=lambda arguments: Services(common.core()).delete(context.admin(), arguments.uuid))


def _list(arguments: argparse.Namespace) -> None:
    rows = common.core().db.read(lambda connection: services.index(connection, hidden=True))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    common.show(("UUID", "Binary", "Host", "Zone", "Status", "State", "Last seen", "Worker", "Per s", "Busy", "Waiting",
                 "CPU %", "RSS MB"), (row for service in rows for row in _rows(service)))


def _rows(service: Service) -> Iterator[Sequence[Any]]:
    """Yield a row for each worker process, or a single row for a service that is down."""
    columns = (service.uuid, service.binary, service.host, service.availability_zone,
             "disabled" if service.disabled else "enabled", "up" if service.up else "down",
             service.last_seen_up.strftime("%Y-%m-%d %H:%M:%S") if service.last_seen_up else None)
    loads = service.load if service.up and service.load else []
    for load in loads:
        yield (*columns, load.worker, load.per_second, load.busy, load.waiting, load.cpu_percent, load.rss_mb)
    if not loads:
        yield (*columns, None, None, None, None, None, None)
