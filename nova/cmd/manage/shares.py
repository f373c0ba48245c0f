"""The commands nova-manage share, for embedded shares."""

from __future__ import annotations

import argparse
from typing import Any

from nova import context
from nova.cmd.manage import common
from nova.conductor.endpoints.volumes import Shares
from nova.objects.base import new_uuid
from nova.objects.volumes.share import Share


def add_commands(commands: Any) -> None:
    group = commands.add_parser("share", help="Manage embedded shares.").add_subparsers(required=True, metavar="ACTION")
    create = group.add_parser("create", help="Create a share, a directory for servers of a project.")
    create.add_argument("--project", required=True, help="id of the owning project")
    create.add_argument("--name", default="")
    create.set_defaults(run=_create)
    common.add_list_show_delete(group, "share", (_list, _show, _delete),
                                "Delete an unused share from the database; its directory stays.")


def _create(arguments: argparse.Namespace) -> None:
    created = Shares(common.core()).create(context.admin(), Share(
        uuid=new_uuid(), project_id=arguments.project, name=arguments.name))
    print(created.uuid)


def _list(arguments: argparse.Namespace) -> None:
    common.show(("UUID", "Name", "Host", "Project"), (
        (share.uuid, share.name, share.host, share.project_id)
        for share in Shares(common.core()).index(context.admin(), arguments.project)))


def _show(arguments: argparse.Namespace) -> None:
    share = Shares(common.core()).get(context.admin(), arguments.share)
    common.show(("Field", "Value"), sorted(
        (name, getattr(share, name)) for name in share.__struct_fields__ if name not in ("id", "export_location")))


def _delete(arguments: argparse.Namespace) -> None:
    deleted = Shares(common.core()).delete(context.admin(), arguments.share)
    print(f"The directory {deleted.uuid} stays in [share]pool of {deleted.host or 'the hosts that used it'}.")
