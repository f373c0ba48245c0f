"""Commands that act on all servers of a host."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova.cli.client import Nova
from nova.cli.declare import arg, doing, flag, listing
from nova.cli.errors import CommandError, NotFound
from nova.cli.find import quoted
from nova.cli.resources.moves import request_evacuation, request_live_migration
from nova.cli.resources.servers import dict_of

_HOST = arg("host", metavar="HOST", help="name of the host")
_TARGET = arg("--target-host", metavar="HOST", help="destination host (default: the scheduler chooses)")


def _servers(nova: Nova, host: str) -> list[Mapping[str, Any]]:
    """Return all servers of a host. Raises NotFound if the host has no nova-compute service."""
    services = nova.get("/os-services", host=host, binary="nova-compute")["services"]
    if not services:
        raise NotFound(f"There is no compute host {host}; nova service-list shows the hosts.")
    return list(nova.pages("/servers/detail", "servers", host=host, all_tenants="1"))


def _for_servers(servers: Iterable[Mapping[str, Any]], column: str, request: Callable[[Mapping[str, Any]], Any]) -> Any:
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
def evacuate(nova: Nova, args: argparse.Namespace) -> Any:
    """Evacuate all servers from a failed host."""
    return _for_servers(_servers(nova, args.host), "Evacuate Accepted",
                 lambda server: request_evacuation(nova, server, args.target_host))


@listing(_HOST, _TARGET, flag("--block-migrate", help="also copy the disks (default since 2.25: if needed)"),
         arg("--max-servers", metavar="N", type=int, help="maximum number of servers"))
def evacuate_live(nova: Nova, args: argparse.Namespace) -> Any:
    """Live migrate all servers of a host to other hosts."""
    return _for_servers(_servers(nova, args.host)[:args.max_servers], "Live Migration Accepted",
                 lambda server: request_live_migration(nova, server, args.target_host, args.block_migrate))


@listing(_HOST)
def migrate(nova: Nova, args: argparse.Namespace) -> Any:
    """Migrate all servers of a host to other hosts; then confirm each migration."""
    return _for_servers(_servers(nova, args.host), "Migration Accepted", lambda server: nova.action(server, "migrate"))


@doing(_HOST, arg("action", choices=("set", "delete")),
       arg("metadata", metavar="KEY=VALUE", nargs="+", help="for delete, KEY is sufficient"))
def meta(nova: Nova, args: argparse.Namespace) -> None:
    """Set or delete metadata of all servers of a host."""
    wanted = dict_of(args.metadata) if args.action == "set" else {}
    for server in _servers(nova, args.host):
        path = f"/servers/{server['id']}/metadata"
        if wanted:
            nova.post(path, {"metadata": wanted})
            continue
        for key in {word.partition("=")[0] for word in args.metadata} & set(server["metadata"]):
            nova.delete(f"{path}/{quoted(key)}")
