"""Servers: what there is, and what each is like."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import ALL_TENANTS, SERVER, SERVERS, arg, doing, either, flag, listing, showing, truth
from nova.cli.errors import CommandError, UsageError

_POWER = {0: "NOSTATE", 1: "Running", 3: "Paused", 4: "Shutdown", 6: "Crashed", 7: "Suspended"}
_NO_IMAGE = "Attempt to boot from volume - no image supplied"

# Options that are filters of the API by (nearly) the same name.
_FILTERS = (
    arg("--reservation-id", metavar="ID", help="of this reservation"),
    arg("--ip", metavar="REGEX", help="whose IPv4 addresses fit"),
    arg("--ip6", metavar="REGEX", since=5, help="whose IPv6 addresses fit"),
    arg("--name", metavar="REGEX", help="whose names fit"),
    arg("--status", metavar="STATUS", help="in this status"),
    arg("--host", metavar="HOST", help="on this host (administrators)"),
    arg("--availability-zone", metavar="ZONE", help="in this zone"),
    arg("--key-name", metavar="NAME", help="with this key pair"),
    arg("--progress", metavar="PERCENT", help="with this progress"),
    arg("--vm-state", metavar="STATE", help="in this vm_state"),
    arg("--task-state", metavar="STATE", help="in this task_state"),
    arg("--power-state", metavar="STATE", help="in this power state (a number)"),
    arg("--changes-since", metavar="TIME", help="that changed at this time (ISO 8601) or later"),
    arg("--changes-before", metavar="TIME", since=66, help="that changed at this time (ISO 8601) or earlier"),
    arg("--tags", metavar="TAG,TAG", since=26, help="with all of these tags"),
    arg("--tags-any", metavar="TAG,TAG", since=26, help="with one of these tags"),
    arg("--not-tags", metavar="TAG,TAG", since=26, help="without all of these tags together"),
    arg("--not-tags-any", metavar="TAG,TAG", since=26, help="without any of these tags"),
    arg("--locked", metavar="TRUE|FALSE", type=truth, since=73, help="that are locked, or are not"),
)
_HYPHENED = ("changes-since", "changes-before", "tags-any", "not-tags", "not-tags-any")


@listing(
    *_FILTERS,
    arg("--flavor", metavar="FLAVOR", help="of this flavor, by name or id"),
    arg("--image", metavar="IMAGE", help="of this image, by name or id"),
    arg("--all-tenants", nargs="?", const=True, default=False, type=truth, metavar="0|1",
        help="of all projects (administrators)"),
    arg("--tenant", metavar="PROJECT", help="of this project (administrators)"),
    arg("--user", metavar="USER", help="of this user, by id"),
    flag("--deleted", help="only deleted ones (administrators)"),
    either(arg("--config-drive", dest="config_drive", action="store_true", default=None, help="with a config drive"),
           arg("--no-config-drive", dest="config_drive", action="store_false", help="without a config drive")),
    arg("--fields", metavar="NAME,NAME", help="these properties, as nova show names them"),
    flag("--minimal", help="ID and name alone"),
    arg("--sort", metavar="KEY[:asc|desc],…", help="by these keys (default: by name)"),
    arg("--marker", metavar="ID", help="the last server of the page before"),
    arg("--limit", metavar="N", type=int, help="so many at most (default: all)"))
def list_servers(nova: Nova, args: argparse.Namespace) -> Any:
    """List servers."""
    if args.minimal and args.fields:
        raise UsageError("--minimal and --fields exclude one another")
    path = "/servers" if args.minimal else "/servers/detail"
    found = list(nova.pages(path, "servers", limit=args.limit, marker=args.marker, **_query(nova, args)))
    if not args.sort:
        found.sort(key=lambda server: str(server.get("name")))
    columns = _columns(args)
    return tuple(columns), [tuple(show(server) for show in columns.values()) for server in found]


def _query(nova: Nova, args: argparse.Namespace) -> dict[str, Any]:
    names = [argument.names[-1].removeprefix("--") for argument in _FILTERS]
    query = {name if name in _HYPHENED else name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name
             in names}
    query |= {"config_drive": args.config_drive, "user_id": args.user, "deleted": args.deleted or None}
    if args.flavor:
        query["flavor"] = find.flavor(nova, args.flavor)["id"]
    if args.image:
        query["image"] = find.image(nova, args.image)["id"]
    if args.tenant:
        query["tenant_id"] = find.project(nova, args.tenant)
    if args.all_tenants or args.tenant or args.deleted:
        query["all_tenants"] = "1"
    if args.sort:
        pairs = [key.partition(":") for key in args.sort.split(",")]
        query |= {"sort_key": [key for key, _, _ in pairs], "sort_dir": [way or "desc" for _, _, way in pairs]}
    return query


def _columns(args: argparse.Namespace) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    columns: dict[str, Callable[[Mapping[str, Any]], Any]] = {"ID": lambda server: server["id"]}
    if args.fields:
        for field in args.fields.split(","):
            columns[_title(field)] = lambda server, field=field: _field(server, field)  # type: ignore[misc]
        return columns
    columns["Name"] = lambda server: server.get("name")
    if args.minimal:
        return columns
    if args.all_tenants or args.tenant:
        columns["Tenant ID"] = lambda server: server.get("tenant_id")
    return columns | {
        "Status": lambda server: server.get("status"),
        "Task State": lambda server: server.get("OS-EXT-STS:task_state"),
        "Power State": lambda server: _POWER.get(server.get("OS-EXT-STS:power_state"), "N/A"),
        "Networks": lambda server: networks_of(server),
    }


def _title(field: str) -> str:
    return field if ":" in field else field.replace("_", " ").title()


def _field(server: Mapping[str, Any], field: str) -> Any:
    if field == "networks":
        return networks_of(server)
    known = server if field in server else properties(server, None)
    if field not in known:
        raise UsageError(f"Servers have no property {field}: there are {', '.join(sorted(properties(server, None)))}")
    return known[field]


def networks_of(server: Mapping[str, Any]) -> str:
    """name=address, address; name=address"""
    addresses = server.get("addresses", {})
    return "; ".join(f"{label}={', '.join(one['addr'] for one in addresses[label])}" for label in sorted(addresses))


# --- one of them -------------------------------------------------------------------------------------
MINIMAL = flag("--minimal", help="do not ask for the names of image and flavor")


@showing(SERVER, ALL_TENANTS, MINIMAL)
def show_server(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a server."""
    return details(nova, find.server(nova, args.server, args.all_tenants)["id"], args.minimal)


def details(nova: Nova, server_id: str, minimal: bool = False, **more: Any) -> dict[str, Any]:
    """The properties of a server as it is now, by name; ``more`` is not in the API's answer."""
    server = {**nova.get(f"/servers/{server_id}")["server"], **more}
    return properties(server, None if minimal else nova)


def properties(server: Mapping[str, Any], nova: Nova | None) -> dict[str, Any]:
    """What is shown of a server; names of its image and flavor if ``nova`` may be asked for them."""
    shown: dict[str, Any] = {}
    for name, value in server.items():
        if name == "addresses":
            shown |= {f"{label} network": ", ".join(one["addr"] for one in found) for label, found in value.items()}
        elif name == "flavor":
            shown |= _flavor_of(value, nova)
        elif name == "image":
            shown[name] = _image_of(value, nova)
        elif name == "security_groups":
            shown[name] = ", ".join(dict.fromkeys(group["name"] for group in value))
        elif name != "links":
            shown[name] = value
    return dict(sorted(shown.items()))


def _flavor_of(flavor: Mapping[str, Any], nova: Nova | None) -> dict[str, Any]:
    if "id" not in flavor:  # since 2.47 the flavor as the server has it
        return {f"flavor:{name}": value for name, value in flavor.items()}
    try:
        name = find.flavor(nova, flavor["id"])["name"] if nova else ""
    except CommandError:
        name = "Flavor not found"
    return {"flavor": f"{name} ({flavor['id']})" if name else flavor["id"]}


def _image_of(image: Any, nova: Nova | None) -> str:
    if not image:
        return _NO_IMAGE
    try:
        name = find.image(nova, image["id"])["name"] if nova else ""
    except CommandError:
        name = "Image not found"
    return f"{name} ({image['id']})" if name else str(image["id"])


@doing(SERVER, arg("--name", metavar="NAME", help="the new name"),
       arg("--description", metavar="TEXT", since=19, help='the new description; "" removes it'),
       arg("--hostname", metavar="NAME", since=90, help="the new host name that the metadata service tells"))
def update(nova: Nova, args: argparse.Namespace) -> None:
    """Change the name, the description or the host name of a server."""
    given = {"name": args.name, "description": args.description, "hostname": args.hostname}
    changes = {name: value for name, value in given.items() if value is not None}
    if changes.get("description") == "":
        changes["description"] = None
    if not changes:
        raise UsageError("Nothing to change: give --name, --description or --hostname")
    nova.put(f"/servers/{find.server(nova, args.server)['id']}", {"server": changes})


def each(nova: Nova, names: Iterable[str], all_tenants: bool, do: Callable[[Mapping[str, Any]], Any], done: str) -> int:
    """Do it to each of them, whatever becomes of the others; ``done`` is said of those that were accepted."""
    failed = []
    for name in names:
        try:
            do(find.server(nova, name, all_tenants))
        except CommandError as error:
            failed.append(error)
        else:
            print(done.format(name))
    if failed:
        failure = CommandError("\n".join(str(error) for error in failed))
        failure.exit_code = failed[0].exit_code
        raise failure
    return 0


@doing(SERVERS, ALL_TENANTS)
def delete(nova: Nova, args: argparse.Namespace) -> int:
    """Delete servers."""
    return each(nova, args.servers, args.all_tenants, lambda server: nova.delete(f"/servers/{server['id']}"),
                "Request to delete server {} has been accepted.")


@showing(SERVER)
def diagnostics(nova: Nova, args: argparse.Namespace) -> Any:
    """Show what the hypervisor measures of a server."""
    found = nova.get(f"/servers/{find.server(nova, args.server)['id']}/diagnostics")
    return dict(sorted(found.items()))


@showing(SERVER, since=78)
def topology(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the NUMA cells of a server."""
    return dict(sorted(nova.get(f"/servers/{find.server(nova, args.server)['id']}/topology").items()))


# --- metadata and tags -------------------------------------------------------------------------------
@doing(SERVER, arg("action", choices=("set", "delete")),
       arg("metadata", metavar="KEY=VALUE", nargs="+", help="to delete the key is enough"))
def meta(nova: Nova, args: argparse.Namespace) -> None:
    """Set or delete metadata of a server."""
    change_items(nova, f"/servers/{find.server(nova, args.server)['id']}/metadata", "metadata", args.action,
                 args.metadata)


def change_items(nova: Nova, path: str, field: str, action: str, words: Sequence[str]) -> None:
    """``action`` set: KEY=VALUE …; else the items of these keys are removed, with a value behind them or without."""
    if action == "set":
        nova.post(path, {field: dict_of(words)})
        return
    for word in words:
        nova.delete(f"{path}/{find.quoted(word.partition('=')[0])}")


def dict_of(words: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE … Raises UsageError."""
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: not KEY=VALUE")
    return {key: value for key, _, value in pairs}


TAGS = arg("tags", metavar="TAG", nargs="+")


def _tags(nova: Nova, name: str) -> str:
    return f"/servers/{find.server(nova, name)['id']}/tags"


@listing(SERVER, since=26)
def tag_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the tags of a server."""
    return ("Tag",), [(tag,) for tag in nova.get(_tags(nova, args.server))["tags"]]


@doing(SERVER, TAGS, since=26)
def tag_add(nova: Nova, args: argparse.Namespace) -> None:
    """Give tags to a server."""
    path = _tags(nova, args.server)
    for tag in args.tags:
        nova.put(f"{path}/{find.quoted(tag)}", None)
        print(f"Request to add tag {tag} to specified server has been accepted.")


@doing(SERVER, TAGS, since=26)
def tag_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Take tags from a server."""
    path = _tags(nova, args.server)
    for tag in args.tags:
        nova.delete(f"{path}/{find.quoted(tag)}")
        print(f"Request to delete tag {tag} from specified server has been accepted.")


@doing(SERVER, since=26)
def tag_delete_all(nova: Nova, args: argparse.Namespace) -> None:
    """Take all tags from a server."""
    nova.delete(_tags(nova, args.server))


@doing(SERVER, TAGS, since=26)
def tag_set(nova: Nova, args: argparse.Namespace) -> None:
    """Replace the tags of a server."""
    nova.put(_tags(nova, args.server), {"tags": args.tags})
