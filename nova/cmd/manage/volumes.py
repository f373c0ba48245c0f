"""The commands nova-manage volume and share, for embedded volumes and shares."""

import argparse
from typing import Any

from nova import context, exception, image
from nova.cmd.manage import common
from nova.conductor.endpoints.volumes import Shares, Volumes
from nova.objects.base import new_uuid
from nova.objects.volumes.share import Share
from nova.objects.volumes.volume import Volume

_GIB = 1 << 30


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "volume", "Manage volumes that Nova stores itself (without Cinder).")
    create = common.add_action(group, "create", _create, "Create a volume.")
    create.add_argument("--project", required=True, help="id of the owning project")
    create.add_argument("--size", type=int, help="size in GiB (default: the size that --image needs)")
    create.add_argument("--name", default="")
    create.add_argument("--description", default="")
    create.add_argument("--image", help="id of an image to copy to the volume, which becomes bootable")
    create.add_argument("--availability-zone")
    common.add_list_show_delete(group, "volume", (_list, _show, _delete), "Delete a volume that no server uses.")
    group = common.add_group(commands, "share", "Manage shares that Nova stores itself (without Manila).")
    create = common.add_action(group, "create", _create_share, "Create a share, a directory for servers of a project.")
    create.add_argument("--project", required=True, help="id of the owning project")
    create.add_argument("--name", default="")
    common.add_list_show_delete(group, "share", (_list_share, _show_share, _delete_share),
                                "Delete an unused share from the database; its directory stays.")


def _create(arguments: argparse.Namespace) -> None:
    source = image.store().show(context.admin(), arguments.image) if arguments.image else None
    if source is not None and source.status != "active":
        raise exception.ImageNotActive(image_id=source.id)
    needed = max(source.min_disk, -(-max(source.virtual_size or 0, source.size or 0) // _GIB), 1) if source else 0
    size = arguments.size or needed
    if not size:
        raise exception.InvalidInput(reason="--size or --image is needed")
    if size < needed:
        raise exception.InvalidInput(reason=f"image {arguments.image} needs {needed} GiB")
    created = Volumes(common.core()).create(context.admin(), Volume(
        uuid=new_uuid(), project_id=arguments.project, name=arguments.name, description=arguments.description,
        size_gb=size, availability_zone=arguments.availability_zone, image=source, bootable=source is not None))
    print(created.uuid)


def _list(arguments: argparse.Namespace) -> None:
    common.show(("UUID", "Name", "GiB", "Status", "Host", "Server", "Project"), (
        (volume.uuid, volume.name, volume.size_gb, volume.status, volume.host, volume.instance_uuid, volume.project_id)
        for volume in Volumes(common.core()).index(context.admin(), arguments.project)))


def _show(arguments: argparse.Namespace) -> None:
    volume = Volumes(common.core()).get(context.admin(), arguments.volume)
    shown = {name: getattr(volume, name) for name in volume.__struct_fields__ if name not in ("id", "image")}
    shown["image"] = volume.image.id if volume.image else None
    common.show(("Field", "Value"), sorted(shown.items()))


def _delete(arguments: argparse.Namespace) -> None:
    Volumes(common.core()).delete(context.admin(), arguments.volume)


def _create_share(arguments: argparse.Namespace) -> None:
    created = Shares(common.core()).create(context.admin(), Share(
        uuid=new_uuid(), project_id=arguments.project, name=arguments.name))
    print(created.uuid)


def _list_share(arguments: argparse.Namespace) -> None:
    common.show(("UUID", "Name", "Host", "Project"), (
        (share.uuid, share.name, share.host, share.project_id)
        for share in Shares(common.core()).index(context.admin(), arguments.project)))


def _show_share(arguments: argparse.Namespace) -> None:
    share = Shares(common.core()).get(context.admin(), arguments.share)
    common.show(("Field", "Value"), sorted(
        (name, getattr(share, name)) for name in share.__struct_fields__ if name not in ("id", "export_location")))


def _delete_share(arguments: argparse.Namespace) -> None:
    deleted = Shares(common.core()).delete(context.admin(), arguments.share)
    print(f"The directory {deleted.uuid} stays in [share]pool of {deleted.host or 'the hosts that used it'}.")
