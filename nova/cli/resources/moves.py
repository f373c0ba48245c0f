"""Commands that move servers to other hosts, and list migrations."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing, showing

_HOST = arg("host", metavar="HOST", nargs="?", help="destination host (default: the scheduler chooses)")
_MIGRATION = arg("migration", metavar="MIGRATION", help="id of a migration (nova server-migration-list)")
# The first minor microversion with block_migration "auto" and without disk_over_commit; that without forced hosts.
_AUTO, _UNFORCED = 25, 68


@doing(SERVER, arg("--host", metavar="HOST", since=56, help="destination host (default: the scheduler chooses)"),
       flag("--poll", help="report the progress until the migration completes"))
def migrate(nova: Nova, args: argparse.Namespace) -> None:
    """Migrate a server to another host; then confirm (nova resize-confirm) or revert (nova resize-revert) it."""
    server = find.server(nova, args.server)
    nova.action(server, "migrate", {"host": args.host} if args.host else None)
    if args.poll:
        progress.wait(nova, server["id"], "migrating", ("ACTIVE", "SHUTOFF", "VERIFY_RESIZE"))


def request_live_migration(nova: Nova, server: Any, host: str | None, block: bool) -> None:
    """Request a live migration in the form of the selected microversion."""
    wanted: dict[str, Any] = {"host": host, "block_migration": True if block else "auto"}
    if nova.version < _AUTO:
        wanted |= {"block_migration": block, "disk_over_commit": False}
    nova.action(server, "os-migrateLive", wanted)


@doing(SERVER, _HOST, flag("--block-migrate", help="also copy the disks (default since 2.25: if needed)"))
def live_migration(nova: Nova, args: argparse.Namespace) -> None:
    """Live migrate a running server to another host."""
    request_live_migration(nova, find.server(nova, args.server), args.host, args.block_migrate)


@doing(SERVER, _MIGRATION, since=24)
def abort(nova: Nova, args: argparse.Namespace) -> None:
    """Abort a live migration."""
    nova.delete(f"/servers/{find.server(nova, args.server)['id']}/migrations/{args.migration}")


@doing(SERVER, _MIGRATION, since=22)
def force_complete(nova: Nova, args: argparse.Namespace) -> None:
    """Force a live migration to complete: the guest is slowed down or paused until then."""
    path = f"/servers/{find.server(nova, args.server)['id']}/migrations/{args.migration}/action"
    nova.post(path, {"force_complete": None})


def request_evacuation(nova: Nova, server: Any, host: str | None, password: str | None = None) -> Any:
    """Request an evacuation in the form of the selected microversion."""
    wanted: dict[str, Any] = {"host": host, "adminPass": password}
    if nova.version < 14:
        wanted["onSharedStorage"] = False
    return nova.action(server, "evacuate", {name: value for name, value in wanted.items() if value is not None})


@showing(SERVER, _HOST, arg("--password", metavar="PASSWORD", help="password of the guest administrator"))
def evacuate(nova: Nova, args: argparse.Namespace) -> Any:
    """Evacuate a server from a failed host to another host."""
    return request_evacuation(nova, find.server(nova, args.server), args.host, args.password) or {}


# --- lists of migrations -----------------------------------------------------------------------------
_FILTERS = (
    arg("--instance-uuid", metavar="ID", help="of this server"),
    arg("--host", metavar="HOST", help="from or to this host"),
    arg("--status", metavar="STATUS", help="in this status"),
    arg("--migration-type", choices=("evacuation", "live-migration", "migration", "resize")),
    arg("--source-compute", metavar="HOST", help="from this host"),
    arg("--project-id", metavar="ID", since=80, help="of this project"),
    arg("--user-id", metavar="ID", since=80, help="of this user"))
_FROM_TO = {"Source Node": "source_node", "Dest Node": "dest_node", "Source Compute": "source_compute",
            "Dest Compute": "dest_compute", "Dest Host": "dest_host", "Status": "status"}
_WHEN = {"Created At": "created_at", "Updated At": "updated_at"}
_WHOSE = {"Project ID": "project_id", "User ID": "user_id"}
_BYTES = {f"{what} {kind} Bytes": f"{kind.lower()}_{what.lower()}_bytes" for kind in ("Memory", "Disk")
          for what in ("Total", "Processed", "Remaining")}


@listing(*_FILTERS, arg("--marker", metavar="UUID", since=59, help="last migration of the previous page"),
         arg("--limit", metavar="N", type=int, since=59, help="maximum number of migrations"),
         arg("--changes-since", metavar="TIME", since=59, help="changed at or after this time (ISO 8601)"),
         arg("--changes-before", metavar="TIME", since=66, help="changed at or before this time (ISO 8601)"))
def list_migrations(nova: Nova, args: argparse.Namespace) -> Any:
    """List migrations (administrators)."""
    query = {name: getattr(args, name) for name in (
        "instance_uuid", "host", "status", "migration_type", "source_compute", "project_id", "user_id")}
    query |= {"changes-since": args.changes_since, "changes-before": args.changes_before}
    migrations = nova.pages("/os-migrations", "migrations", mark="uuid", limit=args.limit, marker=args.marker, **query)
    columns = {"Id": "id", **({"UUID": "uuid"} if nova.version >= 59 else {}), **_FROM_TO,
               "Instance UUID": "instance_uuid",
               "Old Flavor": "old_instance_type_id", "New Flavor": "new_instance_type_id", **_WHEN,
               **({"Type": "migration_type"} if nova.version >= 23 else {}), **(_WHOSE if nova.version >= 80 else {})}
    return tuple(columns), [tuple(migration.get(name) for name in columns.values()) for migration in migrations]


@listing(SERVER, since=23)
def of_server(nova: Nova, args: argparse.Namespace) -> Any:
    """List the live migrations of a server in progress."""
    migrations = nova.get(f"/servers/{find.server(nova, args.server)['id']}/migrations")["migrations"]
    columns = {"Id": "id", **({"UUID": "uuid"} if nova.version >= 59 else {}), **_FROM_TO, "Server UUID": "server_uuid",
               **_WHEN, **(_WHOSE if nova.version >= 80 else {}), **_BYTES}
    return tuple(columns), [tuple(migration.get(name) for name in columns.values()) for migration in migrations]


@showing(SERVER, _MIGRATION, since=23)
def show_migration(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a live migration of a server in progress."""
    path = f"/servers/{find.server(nova, args.server)['id']}/migrations/{args.migration}"
    return dict(sorted(nova.get(path)["migration"].items()))
