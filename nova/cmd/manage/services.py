"""nova-manage service: the services that registered."""

from __future__ import annotations

import argparse
from typing import Any

from nova import context
from nova.cmd.manage import common
from nova.conductor.endpoints.services import Services


def add_commands(commands: Any) -> None:
    group = commands.add_parser("service", help="services").add_subparsers(required=True, metavar="ACTION")
    group.add_parser("list", help="list the services").set_defaults(run=_list)
    delete = group.add_parser("delete", help="delete a service that is gone (and its nodes)")
    delete.add_argument("uuid")
    delete.set_defaults(run=_delete)


def _list(_arguments: argparse.Namespace) -> None:
    found = Services(common.core()).index(context.admin())
    common.show(("UUID", "Binary", "Host", "Zone", "Status", "State", "Last seen"), (
        (service.uuid, service.binary, service.host, service.availability_zone,
         "disabled" if service.disabled else "enabled", "up" if service.up else "down",
         service.last_seen_up.strftime("%Y-%m-%d %H:%M:%S") if service.last_seen_up else None)
        for service in found))


def _delete(arguments: argparse.Namespace) -> None:
    Services(common.core()).delete(context.admin(), arguments.uuid)
