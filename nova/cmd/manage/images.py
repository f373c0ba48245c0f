"""The commands nova-manage image, for the directory back end of images and for image caches of hosts."""

import argparse
import functools
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from nova import context, exception, image
from nova.cmd.manage import common
from nova.db.hosts import aggregates, precaches
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.images import image_cache as caches
from nova.objects.images.image import Image


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "image", "Manage images and image caches.")
    load = common.add_action(group, "import", _import, "Create an image from a file.")
    load.add_argument("file")
    load.add_argument("--name", required=True)
    load.add_argument("--id", help="id of the image (default: a new UUID)")
    load.add_argument("--disk-format", default="qcow2",
                      choices=["qcow2", "raw", "iso", "ami", "aki", "ari", "vmdk", "vdi", "vhd", "vhdx"])
    load.add_argument("--container-format", default="bare")
    load.add_argument("--min-disk", type=int, default=0, help="minimum disk size of servers in GiB")
    load.add_argument("--min-ram", type=int, default=0, help="minimum memory of servers in MiB")
    load.add_argument("--private", metavar="PROJECT", help="visible to this project only (default: public)")
    load.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
    common.add_action(group, "list", _list, "List images.")
    status = common.add_action(group, "cache_status", _cache_status, "Show the images that hosts of aggregates were "
                               "requested to cache. Exit codes: 0 all cached, 1 some failed, 3 in progress.")
    status.add_argument("--aggregate", metavar="NAME", help="only hosts of this aggregate (its name or id)")
    status.add_argument("--json", action="store_true", help="print JSON")


def _import(arguments: argparse.Namespace) -> None:
    if not os.path.isfile(arguments.file):
        raise exception.InvalidInput(reason=f"{arguments.file} is not a file")
    added = DirectoryStore().add(arguments.file, Image(
        id=arguments.id or new_uuid(), name=arguments.name, disk_format=arguments.disk_format,
        container_format=arguments.container_format, min_disk=arguments.min_disk, min_ram=arguments.min_ram,
        owner=arguments.private, visibility="private" if arguments.private else "public",
        properties=dict(item.split("=", 1) for item in arguments.property)))
    print(added.id)


def _list(_arguments: argparse.Namespace) -> None:
    common.show(("ID", "Name", "Format", "Size", "Visibility"), (
        (listed.id, listed.name, listed.disk_format, listed.size, listed.visibility)
        for listed in image.store().index(context.admin(), {})))


def _cache_status(arguments: argparse.Namespace) -> int:
    db = common.core().db
    existing = db.read(aggregates.index)
    aggregate_id = None if arguments.aggregate is None else _aggregate(existing, arguments.aggregate).id
    requests = db.read(functools.partial(precaches.index, aggregate_id=aggregate_id))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(requests), indent=2).decode())
    else:
        names = {aggregate.id: aggregate.name for aggregate in existing}
        common.show(("Aggregate", "Host", "Image", "State", "Message"), (
            (names.get(request.aggregate_id), request.host, request.image_id, request.state, request.message)
            for request in requests))
    if any(request.state not in caches.ENDS for request in requests):
        return 3
    return 0 if all(request.state == caches.CACHED for request in requests) else 1


def _aggregate(existing: Sequence[Aggregate], name: str) -> Aggregate:
    """Return the aggregate with a name, id or UUID. Raises AggregateNotFound."""
    for aggregate in existing:
        if name in (aggregate.name, str(aggregate.id), aggregate.uuid):
            return aggregate
    raise exception.AggregateNotFound(aggregate_id=name)
