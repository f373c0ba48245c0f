"""The command nova-manage schedule explain, which shows the result of each host for a request."""

import argparse
from typing import Any

from nova import context
from nova.cmd.manage import common
from nova.conf import CONF
from nova.db.accounts import flavors
from nova.objects.base import new_uuid
from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.images.image import Image, check_image_fits
from nova.objects.requirements.requested_resources import host_requirements


def add_commands(commands: Any) -> None:
    group = commands.add_parser("schedule", help="Analyze scheduling.").add_subparsers(required=True, metavar="ACTION")
    explain = group.add_parser("explain", help="Show for each host the filter that rejects a server, or its weight.")
    explain.add_argument("--flavor", required=True, help="id of the flavor")
    explain.add_argument("--project", default="", help="id of the project")
    explain.add_argument("--zone", help="availability zone")
    explain.add_argument("--image-property", action="append", default=[], metavar="NAME=VALUE")
    explain.add_argument("--hint", action="append", default=[], metavar="NAME=VALUE")
    explain.set_defaults(run=_explain)


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
