"""Commands for images, snapshots and backups of servers."""

import argparse
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, pairs, showing


@listing()
def image_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List images."""
    images = sorted(find.images(nova), key=lambda image: str(image.get("name")))
    return ("ID", "Name", "Status", "Server"), [
        (image["id"], image.get("name"), str(image["status"]).upper(),
         image.get("server", {}).get("id") or image.get("instance_uuid") or "")  # property in Glance
        for image in images]


@showing(arg("image", metavar="IMAGE", help="name or id of an image"))
def image_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show an image."""
    image = find.image(nova, args.image)
    properties = {f"metadata {name}": value for name, value in image.get("metadata", {}).items()}
    return dict(sorted({**_plain(image), **properties}.items()))


def _plain(image: Any) -> dict[str, Any]:
    return {name: value for name, value in image.items() if name not in ("links", "metadata")}


@showing(SERVER, arg("name", metavar="NAME", help="name of the image"),
         pairs("--metadata", help="property of the image; may be repeated"),
         flag("--show", help="show all properties of the image"),
         flag("--poll", help="report the progress until the image is active"))
def image_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create an image from a server (snapshot)."""
    server = find.server(nova, args.server)
    answer = nova.action(server, "createImage", {"name": args.name, "metadata": dict(args.metadata)})
    image_id = answer["image_id"] if answer else str(find.image(nova, args.name)["id"])
    if args.poll:
        progress.wait_for_image(nova, server["id"], image_id)
    if not args.show:
        return {"id": image_id, "name": args.name, "server": server["id"]}
    return dict(sorted(_plain(find.image(nova, image_id)).items()))


@doing(SERVER, arg("name", metavar="NAME", help="name of the image"),
       arg("backup_type", metavar="BACKUP-TYPE", help='type of the backup, such as "daily"'),
       arg("rotation", metavar="ROTATION", type=int, help="number of backups of this type to keep"))
def backup(nova: Nova, args: argparse.Namespace) -> None:
    """Back up a server to an image, and delete old backups of the same type."""
    nova.action(find.server(nova, args.server), "createBackup",
                {"name": args.name, "backup_type": args.backup_type, "rotation": args.rotation})
