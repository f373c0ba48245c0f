"""Commands that move one or all servers of a host, and list migrations."""

import argparse
from collections.abc import Callable
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing, table, without_none
from nova.cli.errors import CommandError, NotFound
from nova.cli.resources.servers import dict_of

_DESTINATION = arg("host", metavar="HOST", nargs="?", help="destination host (default: the scheduler chooses)")
_MIGRATION = arg("migration", metavar="MIGRATION", help="id of a migration (nova server-migration-list)")
# The first minor microversion with block_migration "auto" and without disk_over_commit.
_AUTO = 25


@doing(SERVER, arg("--host", metavar="HOST", since=56, help="destination host (default: the scheduler chooses)"),
       flag("--poll", help="report the progress until the migration completes"))
def migrate(nova: Nova, args: argparse.Namespace) -> None:
    """Migrate a server to another host. Confirm (nova resize-confirm) or revert (nova resize-revert) the migration."""
    server = find.server(nova, args.server)
    nova.action(server, "migrate", {"host": args.host} if args.host else None)
    if args.poll:
        progress.wait(nova, server["id"], "migrating", ("ACTIVE", "SHUTOFF", "VERIFY_RESIZE"))


def _live_migrate(nova: Nova, server: Any, host: str | None, block: bool) -> None:
    """Request a live migration in the form of the selected microversion."""
    wanted: dict[str, Any] = {"host": host, "block_migration": True if block else "auto"}
    if nova.version < _AUTO:
        wanted |= {"block_migration": block, "disk_over_commit": False}
    nova.action(server, "os-migrateLive", wanted)


@doing(SERVER, _DESTINATION, flag("--block-migrate", help="also copy the disks (default since 2.25: if needed)"))
def live_migration(nova: Nova, args: argparse.Namespace) -> None:
    """Live migrate a running server to another host."""
    _live_migrate(nova, find.server(nova, args.server), args.host, args.block_migrate)


@doing(SERVER, _MIGRATION, since=24)
def live_migration_abort(nova: Nova, args: argparse.Namespace) -> None:
    """Abort a live migration."""
    nova.delete(f"{find.server_path(nova, args.server)}/migrations/{args.migration}")


@doing(SERVER, _MIGRATION, since=22)
def live_migration_force_complete(nova: Nova, args: argparse.Namespace) -> None:
    """Force a live migration to complete: the guest is slowed down or paused until then."""
    nova.post(f"{find.server_path(nova, args.server)}/migrations/{args.migration}/action", {"force_complete": None})


def _evacuate(nova: Nova, server: Any, host: str | None, password: str | None = None) -> Any:
    """Request an evacuation in the form of the selected microversion."""
    wanted: dict[str, Any] = {"host": host, "adminPass": password}
    if nova.version < 14:
        wanted["onSharedStorage"] = False
    return nova.action(server, "evacuate", without_none(wanted))


@showing(SERVER, _DESTINATION, arg("--password", metavar="PASSWORD", help="password of the guest administrator"))
def evacuate(nova: Nova, args: argparse.Namespace) -> Any:
    """Evacuate a server from a failed host to another host."""
    return _evacuate(nova, find.server(nova, args.server), args.host, args.password) or {}


_FILTERS = (
    arg("--instance-uuid", metavar="ID", help="only migrations of this server"),
    arg("--host", metavar="HOST", help="only migrations from or to this host"),
    arg("--status", metavar="STATUS", help="only migrations in this status"),
    arg("--migration-type", choices=("evacuation", "live-migration", "migration", "resize")),
    arg("--source-compute", metavar="HOST", help="only migrations from this host"),
    arg("--project-id", metavar="ID", since=80, help="only migrations of servers of this project"),
    arg("--user-id", metavar="ID", since=80, help="only migrations of servers of this user"))
_FROM_TO = {"Source Node": "source_node", "Dest Node": "dest_node", "Source Compute": "source_compute",
            "Dest Compute": "dest_compute", "Dest Host": "dest_host", "Status": "status"}
_WHEN = {"Created At": "created_at", "Updated At": "updated_at"}
_WHOSE = {"Project ID": "project_id", "User ID": "user_id"}
_BYTES = {f"{what} {kind} Bytes": f"{kind.lower()}_{what.lower()}_bytes" for kind in ("Memory", "Disk")
          for what in ("Total", "Processed", "Remaining")}


@listing(*_FILTERS, arg("--marker", metavar="UUID", since=59, help="last migration of the previous page"),
         arg("--limit", metavar="N", type=int, since=59, help="maximum number of migrations"),
         arg("--changes-since", metavar="TIME", since=59, help="only migrations changed at or after TIME (ISO 8601)"),
         arg("--changes-before", metavar="TIME", since=66, help="only migrations changed at or before TIME (ISO 8601)"))
def migration_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List migrations (administrators)."""
    query = {name: getattr(args, name) for name in (
        "instance_uuid", "host", "status", "migration_type", "source_compute", "project_id", "user_id")}
    query |= {"changes-since": args.changes_since, "changes-before": args.changes_before}
    migrations = nova.pages("/os-migrations", "migrations", mark="uuid", limit=args.limit, marker=args.marker, **query)
    columns = {"Id": "id", **({"UUID": "uuid"} if nova.version >= 59 else {}), **_FROM_TO,
               "Instance UUID": "instance_uuid",
               "Old Flavor": "old_instance_type_id", "New Flavor": "new_instance_type_id", **_WHEN,
               **({"Type": "migration_type"} if nova.version >= 23 else {}), **(_WHOSE if nova.version >= 80 else {})}
    return table(columns, migrations)


@listing(SERVER, since=23)
def server_migration_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the live migrations in progress of a server."""
    columns = {"Id": "id", **({"UUID": "uuid"} if nova.version >= 59 else {}), **_FROM_TO, "Server UUID": "server_uuid",
               **_WHEN, **(_WHOSE if nova.version >= 80 else {}), **_BYTES}
    return table(columns, nova.get(f"{find.server_path(nova, args.server)}/migrations")["migrations"])


@showing(SERVER, _MIGRATION, since=23)
def server_migration_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a live migration in progress of a server."""
    migration = nova.get(f"{find.server_path(nova, args.server)}/migrations/{args.migration}")["migration"]
    return dict(sorted(migration.items()))


_HOST = arg("host", metavar="HOST", help="name of the host")
_TARGET = arg("--target-host", metavar="HOST", help="destination host (default: the scheduler chooses)")


def _servers(nova: Nova, host: str) -> list[find.Thing]:
    """Return all servers of a host. Raises NotFound if the host has no nova-compute service."""
    services = nova.get("/os-services", host=host, binary="nova-compute")["services"]
    if not services:
        raise NotFound(f"There is no compute host {host}; nova service-list shows the hosts.")
    return list(nova.pages("/servers/detail", "servers", host=host, all_tenants="1"))


def _for_servers(servers: list[find.Thing], column: str, request: Callable[[find.Thing], Any]) -> Any:
    """Call ``request`` for each server; return a row per server: accepted or not, and the error."""
    rows = []
    for server in servers:
        try:
            request(server)
        except CommandError as error:
            rows.append((server["id"], False, str(error)))
        else:
            rows.append((server["id"], True, ""))
    return ("Server UUID", column, "Error Message"), rows


@listing(_HOST, _TARGET)
def host_evacuate(nova: Nova, args: argparse.Namespace) -> Any:
    """Evacuate all servers from a failed host."""
    return _for_servers(_servers(nova, args.host), "Evacuate Accepted",
                        lambda server: _evacuate(nova, server, args.target_host))


@listing(_HOST, _TARGET, flag("--block-migrate", help="also copy the disks (default since 2.25: if needed)"),
         arg("--max-servers", metavar="N", type=int, help="maximum number of servers"))
def host_evacuate_live(nova: Nova, args: argparse.Namespace) -> Any:
    """Live migrate all servers of a host to other hosts."""
    return _for_servers(_servers(nova, args.host)[:args.max_servers], "Live Migration Accepted",
                        lambda server: _live_migrate(nova, server, args.target_host, args.block_migrate))


@listing(_HOST)
def host_servers_migrate(nova: Nova, args: argparse.Namespace) -> Any:
    """Migrate all servers of a host to other hosts; then confirm each migration."""
    return _for_servers(_servers(nova, args.host), "Migration Accepted", lambda server: nova.action(server, "migrate"))


@doing(_HOST, arg("action", choices=("set", "delete")),
       arg("metadata", metavar="KEY=VALUE", nargs="+", help="metadata to set or delete; delete needs only KEY"))
def host_meta(nova: Nova, args: argparse.Namespace) -> None:
    """Set or delete metadata of all servers of a host."""
    wanted = dict_of(args.metadata) if args.action == "set" else {}
    for server in _servers(nova, args.host):
        path = f"/servers/{server['id']}/metadata"
        if wanted:
            nova.post(path, {"metadata": wanted})
            continue
        for key in {word.partition("=")[0] for word in args.metadata} & set(server["metadata"]):
            nova.delete(f"{path}/{find.quoted(key)}")
