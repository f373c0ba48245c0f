"""Commands that list, show, update and delete servers, and manage metadata and tags."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova.cli import declare, find
from nova.cli.client import Nova
from nova.cli.declare import ALL_TENANTS, SERVER, SERVERS, arg, doing, either, flag, listing, showing, truth
from nova.cli.errors import CommandError, UsageError

_POWER = {0: "NOSTATE", 1: "Running", 3: "Paused", 4: "Shutdown", 6: "Crashed", 7: "Suspended"}
_NO_IMAGE = "Attempt to boot from volume - no image supplied"

# Options that are filters of the API, whose names have "_" instead of "-", except those in _HYPHENED.
_FILTERS = (
    arg("--reservation-id", metavar="ID", help="servers of this reservation"),
    arg("--ip", metavar="REGEX", help="servers with matching IPv4 addresses"),
    arg("--ip6", metavar="REGEX", since=5, help="servers with matching IPv6 addresses"),
    arg("--name", metavar="REGEX", help="servers with matching names"),
    arg("--status", metavar="STATUS", help="servers in this status"),
    arg("--host", metavar="HOST", help="servers on this host (administrators)"),
    arg("--availability-zone", metavar="ZONE", help="servers in this availability zone"),
    arg("--key-name", metavar="NAME", help="servers with this key pair"),
    arg("--progress", metavar="PERCENT", help="servers whose running operation has this progress"),
    arg("--vm-state", metavar="STATE", help="servers in this vm_state"),
    arg("--task-state", metavar="STATE", help="servers in this task_state"),
    arg("--power-state", metavar="STATE", help="servers in this power state (a number)"),
    arg("--changes-since", metavar="TIME", help="servers changed at or after this time (ISO 8601)"),
    arg("--changes-before", metavar="TIME", since=66, help="servers changed at or before this time (ISO 8601)"),
    arg("--tags", metavar="TAG,TAG", since=26, help="servers with all of these tags"),
    arg("--tags-any", metavar="TAG,TAG", since=26, help="servers with at least one of these tags"),
    arg("--not-tags", metavar="TAG,TAG", since=26, help="servers that lack at least one of these tags"),
    arg("--not-tags-any", metavar="TAG,TAG", since=26, help="servers with none of these tags"),
    arg("--locked", metavar="TRUE|FALSE", type=truth, since=73, help="only locked (or only unlocked) servers"),
)
_HYPHENED = ("changes-since", "changes-before", "tags-any", "not-tags", "not-tags-any")


@listing(
    *_FILTERS,
    arg("--flavor", metavar="FLAVOR", help="servers of this flavor, by name or id"),
    arg("--image", metavar="IMAGE", help="servers of this image, by name or id"),
    arg("--all-tenants", nargs="?", const=True, default=False, type=truth, metavar="0|1",
        help="servers of all projects (administrators)"),
    arg("--tenant", metavar="PROJECT", help="servers of this project (administrators)"),
    arg("--user", metavar="USER", help="servers of this user, by id"),
    flag("--deleted", help="only deleted servers (administrators)"),
    either(arg("--config-drive", dest="config_drive", action="store_true", default=None,
               help="servers with a config drive"),
           arg("--no-config-drive", dest="config_drive", action="store_false", help="servers without a config drive")),
    arg("--fields", metavar="NAME,NAME", help="properties to show, as named by nova show"),
    flag("--minimal", help="show only ID and name"),
    arg("--sort", metavar="KEY[:asc|desc],…", help="sort keys (default: name)"),
    arg("--marker", metavar="ID", help="last server of the previous page"),
    arg("--limit", metavar="N", type=int, help="maximum number of servers (default: all)"))
def list_(nova: Nova, args: argparse.Namespace) -> Any:
    """List servers."""
    if args.minimal and args.fields:
        raise UsageError("--minimal and --fields are mutually exclusive")
    path = "/servers" if args.minimal else "/servers/detail"
    servers = list(nova.pages(path, "servers", limit=args.limit, marker=args.marker, **_query(nova, args)))
    if not args.sort:
        servers.sort(key=lambda server: str(server.get("name")))
    columns = _columns(args)
    return tuple(columns), [tuple(show(server) for show in columns.values()) for server in servers]


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
            title = field if ":" in field else field.replace("_", " ").title()
            columns[title] = lambda server, field=field: _field(server, field)  # type: ignore[misc]
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
        "Networks": networks_of,
    }


def _field(server: Mapping[str, Any], field: str) -> Any:
    if field == "networks":
        return networks_of(server)
    values = server if field in server else properties(server, None)
    if field not in values:
        raise UsageError(f"Servers have no property {field}; they have {', '.join(sorted(properties(server, None)))}")
    return values[field]


def networks_of(server: Mapping[str, Any]) -> str:
    """Format the addresses of a server: name=address, address; name=address"""
    addresses = server.get("addresses", {})
    return "; ".join(f"{label}={', '.join(address['addr'] for address in addresses[label])}"
                     for label in sorted(addresses))


MINIMAL = flag("--minimal", help="do not query the names of image and flavor")


@showing(SERVER, ALL_TENANTS, MINIMAL)
def show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a server."""
    return details(nova, find.server(nova, args.server, args.all_tenants)["id"], args.minimal)


def details(nova: Nova, server_id: str, minimal: bool = False, **more: Any) -> dict[str, Any]:
    """Fetch a server and return its properties by name; ``more``: properties that the API does not return."""
    server = {**nova.get(f"/servers/{server_id}")["server"], **more}
    return properties(server, None if minimal else nova)


def properties(server: Mapping[str, Any], nova: Nova | None) -> dict[str, Any]:
    """Return the properties of a server for output; ``nova`` resolves the names of image and flavor, None: ids only."""
    result: dict[str, Any] = {}
    for name, value in server.items():
        if name == "addresses":
            result |= {f"{label} network": ", ".join(address["addr"] for address in addresses)
                      for label, addresses in value.items()}
        elif name == "flavor":
            result |= _flavor_of(value, nova)
        elif name == "image":
            result[name] = _image_of(value, nova)
        elif name == "security_groups":
            result[name] = ", ".join(dict.fromkeys(group["name"] for group in value))
        elif name != "links":
            result[name] = value
    return dict(sorted(result.items()))


def _flavor_of(flavor: Mapping[str, Any], nova: Nova | None) -> dict[str, Any]:
    if "id" not in flavor:  # since 2.47 the flavor is embedded in the server
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


@doing(SERVER, arg("--name", metavar="NAME", help="new name"),
       arg("--description", metavar="TEXT", since=19, help='new description; "" removes it'),
       arg("--hostname", metavar="NAME", since=90, help="new host name that the metadata service reports to the guest"))
def update(nova: Nova, args: argparse.Namespace) -> None:
    """Update the name, description or host name of a server."""
    given = {"name": args.name, "description": args.description, "hostname": args.hostname}
    changes = declare.without_none(given)
    if changes.get("description") == "":
        changes["description"] = None
    if not changes:
        raise UsageError("Nothing to change: specify --name, --description or --hostname")
    nova.put(find.server_path(nova, args.server), {"server": changes})


def for_servers(nova: Nova, names: Iterable[str], all_tenants: bool, request: Callable[[Mapping[str, Any]], Any],
                done: str) -> int:
    """Call ``request`` for each server, even after failures; print ``done`` for each accepted request. Raises
    CommandError with all failures and the exit code of the first failure."""
    failures = []
    for name in names:
        try:
            request(find.server(nova, name, all_tenants))
        except CommandError as error:
            failures.append(error)
        else:
            print(done.format(name))
    if failures:
        failure = CommandError("\n".join(str(error) for error in failures))
        failure.exit_code = failures[0].exit_code
        raise failure
    return 0


@doing(SERVERS, ALL_TENANTS)
def delete(nova: Nova, args: argparse.Namespace) -> int:
    """Delete servers."""
    return for_servers(nova, args.servers, args.all_tenants,
                       lambda server: nova.delete(f"/servers/{server['id']}"),
                       "Request to delete server {} has been accepted.")


@showing(SERVER)
def diagnostics(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the diagnostics of a server."""
    return dict(sorted(nova.get(f"{find.server_path(nova, args.server)}/diagnostics").items()))


@showing(SERVER, since=78)
def server_topology(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the NUMA topology of a server."""
    return dict(sorted(nova.get(f"{find.server_path(nova, args.server)}/topology").items()))


@doing(SERVER, arg("action", choices=("set", "delete")),
       arg("metadata", metavar="KEY=VALUE", nargs="+", help="metadata to set or delete; delete needs only KEY"))
def meta(nova: Nova, args: argparse.Namespace) -> None:
    """Set or delete metadata of a server."""
    change_items(nova, f"{find.server_path(nova, args.server)}/metadata", "metadata", args.action, args.metadata)


def change_items(nova: Nova, path: str, field: str, action: str, words: Sequence[str]) -> None:
    """Set items (``action`` "set", words KEY=VALUE) or delete them (words KEY or KEY=VALUE)."""
    if action == "set":
        nova.post(path, {field: dict_of(words)})
        return
    for word in words:
        nova.delete(f"{path}/{find.quoted(word.partition('=')[0])}")


def dict_of(words: Sequence[str]) -> dict[str, str]:
    """Parse words KEY=VALUE. Raises UsageError."""
    pairs = [word.partition("=") for word in words]
    invalid = [key for key, equals, _ in pairs if not equals]
    if invalid:
        raise UsageError(f"{', '.join(invalid)}: not KEY=VALUE")
    return {key: value for key, _, value in pairs}


TAGS = arg("tags", metavar="TAG", nargs="+")


@listing(SERVER, since=26)
def server_tag_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the tags of a server."""
    return ("Tag",), [(tag,) for tag in nova.get(f"{find.server_path(nova, args.server)}/tags")["tags"]]


@doing(SERVER, TAGS, since=26)
def server_tag_add(nova: Nova, args: argparse.Namespace) -> None:
    """Add tags to a server."""
    path = f"{find.server_path(nova, args.server)}/tags"
    for tag in args.tags:
        nova.put(f"{path}/{find.quoted(tag)}", None)
        print(f"Request to add tag {tag} to specified server has been accepted.")


@doing(SERVER, TAGS, since=26)
def server_tag_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete tags from a server."""
    path = f"{find.server_path(nova, args.server)}/tags"
    for tag in args.tags:
        nova.delete(f"{path}/{find.quoted(tag)}")
        print(f"Request to delete tag {tag} from specified server has been accepted.")


@doing(SERVER, since=26)
def server_tag_delete_all(nova: Nova, args: argparse.Namespace) -> None:
    """Delete all tags from a server."""
    nova.delete(f"{find.server_path(nova, args.server)}/tags")


@doing(SERVER, TAGS, since=26)
def server_tag_set(nova: Nova, args: argparse.Namespace) -> None:
    """Replace the tags of a server."""
    nova.put(f"{find.server_path(nova, args.server)}/tags", {"tags": args.tags})
