"""nova-manage image: the directory image back end, and what hosts have cached since they were asked to."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from nova import context, exception, image
from nova.cmd.manage import common
from nova.db import aggregates, precaches
from nova.image.directory import DirectoryStore
from nova.objects import image_cache as caches
from nova.objects.aggregate import Aggregate
from nova.objects.base import new_uuid
from nova.objects.image import Image


def add_commands(commands: Any) -> None:
    group = commands.add_parser("image", help="images of the directory back end, and caches of hosts").add_subparsers(
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
    status = group.add_parser("cache_status", help="what has become of images that the hosts of aggregates were asked "
                                                   "to cache; exit codes: 0 all are there, 1 some are not, 3 not yet")
    status.add_argument("--aggregate", metavar="NAME", help="of this aggregate (its name or id)")
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.set_defaults(run=_cache_status)


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


def _cache_status(arguments: argparse.Namespace) -> int:
    db = common.core().db
    known = db.read(aggregates.index)
    chosen = None if arguments.aggregate is None else _chosen(known, arguments.aggregate).id
    found = db.read(functools.partial(precaches.index, aggregate_id=chosen))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        names = {aggregate.id: aggregate.name for aggregate in known}
        common.show(("Aggregate", "Host", "Image", "State", "Message"), (
            (names.get(each.aggregate_id), each.host, each.image_id, each.state, each.message) for each in found))
    if any(each.state not in caches.ENDS for each in found):
        return 3
    return 0 if all(each.state == caches.CACHED for each in found) else 1


def _chosen(known: Sequence[Aggregate], name: str) -> Aggregate:
    """Raises AggregateNotFound."""
    for aggregate in known:
        if name in (aggregate.name, str(aggregate.id), aggregate.uuid):
            return aggregate
    raise exception.AggregateNotFound(aggregate_id=name)
