"""nova-manage image: the directory image back end."""

from __future__ import annotations

import argparse
import os
from typing import Any

from nova import context, exception, image
from nova.cmd.manage import common
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.image import Image


def add_commands(commands: Any) -> None:
    group = commands.add_parser("image", help="images of the directory back end").add_subparsers(
        required=True, metavar="ACTION")
    load = group.add_parser("import", help="add a file as an image")
    load.add_argument("file")
    load.add_argument("--name", required=True)
    load.add_argument("--id", help="default: a new uuid")
    load.add_argument("--disk-format", default="qcow2",
                      choices=["qcow2", "raw", "iso", "ami", "aki", "ari", "vmdk", "vdi", "vhd", "vhdx"])
    load.add_argument("--container-format", default="bare")
    load.add_argument("--min-disk", type=int, default=0, help="GiB")
    load.add_argument("--min-ram", type=int, default=0, help="MiB")
    load.add_argument("--private", metavar="PROJECT", help="only for this project; default: public")
    load.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
    load.set_defaults(run=_import)
    group.add_parser("list", help="list the images").set_defaults(run=_list)


def _import(arguments: argparse.Namespace) -> None:
    if not os.path.isfile(arguments.file):
        raise exception.InvalidInput(reason=f"there is no file {arguments.file}")
    added = DirectoryStore().add(arguments.file, Image(
        id=arguments.id or new_uuid(), name=arguments.name, disk_format=arguments.disk_format,
        container_format=arguments.container_format, min_disk=arguments.min_disk, min_ram=arguments.min_ram,
        owner=arguments.private, visibility="private" if arguments.private else "public",
        properties=dict(item.split("=", 1) for item in arguments.property)))
    print(added.id)


def _list(_arguments: argparse.Namespace) -> None:
    common.show(("ID", "Name", "Format", "Size", "Visibility"), (
        (found.id, found.name, found.disk_format, found.size, found.visibility)
        for found in image.store().index(context.admin(), {})))
