"""Commands for host aggregates."""

import argparse
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import arg, doing, listing, table, without_none
from nova.cli.errors import UsageError

_AGGREGATE = arg("aggregate", metavar="AGGREGATE", help="name or id of an aggregate")
_HOST = arg("host", metavar="HOST", help="name of a host")
# The first minor microversion with UUIDs of aggregates.
_UUIDS = 41


def _detail(nova: Nova, aggregate: Mapping[str, Any]) -> Any:
    columns = ("Id", "Name", "Availability Zone", "Hosts", "Metadata")
    row = (aggregate["id"], aggregate["name"], aggregate["availability_zone"], _quoted(aggregate["hosts"]),
           _quoted(f"{name}={value}" for name, value in sorted(aggregate["metadata"].items())))
    if nova.version < _UUIDS:
        return columns, [row]
    return (*columns, "UUID"), [(*row, aggregate["uuid"])]


def _quoted(words: Any) -> str:
    return ", ".join(f"'{word}'" for word in words)


@listing()
def aggregate_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List aggregates (administrators)."""
    columns = {"Id": "id", "Name": "name", "Availability Zone": "availability_zone"}
    if nova.version >= _UUIDS:
        columns["UUID"] = "uuid"
    return table(columns, nova.get("/os-aggregates")["aggregates"])


@listing(_AGGREGATE)
def aggregate_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show an aggregate (administrators)."""
    return _detail(nova, find.aggregate(nova, args.aggregate))


@listing(arg("name", metavar="NAME"), arg("availability_zone", metavar="ZONE", nargs="?", help="zone of the hosts"))
def aggregate_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create an aggregate (administrators)."""
    wanted = {"name": args.name, "availability_zone": args.availability_zone}
    made = nova.post("/os-aggregates", {"aggregate": wanted})["aggregate"]
    # the response of the creation lacks hosts and metadata
    return _detail(nova, nova.get(f"/os-aggregates/{made['id']}")["aggregate"])


@doing(_AGGREGATE)
def aggregate_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete an aggregate (administrators)."""
    aggregate = find.aggregate(nova, args.aggregate)
    nova.delete(f"/os-aggregates/{aggregate['id']}")
    print(f"Aggregate {aggregate['id']} has been successfully deleted.")


@listing(_AGGREGATE, arg("--name", metavar="NAME", help="the new name"),
         arg("--availability-zone", metavar="ZONE", help="zone of the hosts"))
def aggregate_update(nova: Nova, args: argparse.Namespace) -> Any:
    """Update the name or the availability zone of an aggregate (administrators)."""
    changes = without_none({"name": args.name, "availability_zone": args.availability_zone})
    if not changes:
        raise UsageError("Nothing to change: specify --name or --availability-zone")
    path = f"/os-aggregates/{find.aggregate(nova, args.aggregate)['id']}"
    return _detail(nova, nova.put(path, {"aggregate": changes})["aggregate"])


def _act(nova: Nova, args: argparse.Namespace, action: str, value: Mapping[str, Any]) -> Any:
    path = f"/os-aggregates/{find.aggregate(nova, args.aggregate)['id']}/action"
    return _detail(nova, nova.post(path, {action: value})["aggregate"])


@listing(_AGGREGATE, arg("metadata", metavar="KEY=VALUE", nargs="+", help="KEY without a value deletes the key"))
def aggregate_set_metadata(nova: Nova, args: argparse.Namespace) -> Any:
    """Set or delete metadata of an aggregate (administrators)."""
    pairs = [word.partition("=") for word in args.metadata]
    return _act(nova, args, "set_metadata",
                {"metadata": {key: value if equals else None for key, equals, value in pairs}})


@doing(_AGGREGATE, arg("images", metavar="IMAGE", nargs="+", help="names or ids of images"), since=81)
def aggregate_cache_images(nova: Nova, args: argparse.Namespace) -> None:
    """Cache images on the hosts of an aggregate, so that later boots need no download (administrators)."""
    path = f"/os-aggregates/{find.aggregate(nova, args.aggregate)['id']}/images"
    nova.post(path, {"cache": [{"id": find.image(nova, image)["id"]} for image in args.images]})


@listing(_AGGREGATE, _HOST)
def aggregate_add_host(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a host to an aggregate (administrators)."""
    return _act(nova, args, "add_host", {"host": args.host})


@listing(_AGGREGATE, _HOST)
def aggregate_remove_host(nova: Nova, args: argparse.Namespace) -> Any:
    """Remove a host from an aggregate (administrators)."""
    return _act(nova, args, "remove_host", {"host": args.host})
