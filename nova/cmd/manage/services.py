"""The commands nova-manage service, for registered services, and nova-manage schedule explain, which shows the result
of each host for a request."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nova import context
from nova.cmd.manage import common
from nova.conductor.endpoints.hosts import Services
from nova.conf import CONF
from nova.db.accounts import flavors
from nova.db.hosts import services
from nova.objects.base import new_uuid
from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.hosts.service import Service
from nova.objects.images.image import Image, check_image_fits
from nova.objects.requirements.requested_resources import host_requirements


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "service", "Manage services.")
    listing = common.add_action(group, "list", _list, "List services with the load of their worker processes.")
    listing.add_argument("--json", action="store_true", help="print JSON")
    common.add_action(
        group, "delete", lambda arguments: Services(common.core()).delete(context.admin(), arguments.uuid),
        "Delete a service that no longer exists, with its nodes.").add_argument("uuid", help="UUID of the service")
    group = common.add_group(commands, "schedule", "Analyze scheduling.")
    explain = common.add_action(group, "explain", _explain,
                                "Show for each host the filter that rejects a server, or its weight.")
    explain.add_argument("--flavor", required=True, help="id of the flavor")
    explain.add_argument("--project", default="", help="id of the project")
    explain.add_argument("--zone", help="availability zone")
    explain.add_argument("--image-property", action="append", default=[], metavar="NAME=VALUE")
    explain.add_argument("--hint", action="append", default=[], metavar="NAME=VALUE")


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


def _explain(arguments: argparse.Namespace) -> int:
    core = common.core()
    flavor = core.db.read(lambda connection: flavors.get(connection, arguments.flavor))
    properties = dict(item.split("=", 1) for item in arguments.image_property)
    image = Image(id="", properties=properties) if properties else None
    check_image_fits(flavor, image, volume_backed=False)
    verdicts = core.scheduler.explain(context.admin(), RequestSpec(
        instance_uuids=[new_uuid()], project_id=arguments.project, availability_zone=arguments.zone,
        hints=dict(item.split("=", 1) for item in arguments.hint),
        **host_requirements(flavor, image, aliases=CONF.pci.alias)))
    common.show(("Host", "Node", "Verdict", "Reason", "Weight"), (
        (verdict.host, verdict.node, verdict.refused_by or "passes", verdict.reason,
         None if verdict.weight is None else f"{verdict.weight:.3f}") for verdict in verdicts))
    return 0 if any(verdict.refused_by is None for verdict in verdicts) else 1
