"""What is done to all servers of a host."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova.cli.client import Nova
from nova.cli.declare import arg, doing, flag, listing
from nova.cli.errors import CommandError, NotFound
from nova.cli.find import quoted
from nova.cli.resources.moves import live, rise_elsewhere
from nova.cli.resources.servers import dict_of

_HOST = arg("host", metavar="HOST", help="name of the host")
_TARGET = arg("--target-host", metavar="HOST", help="where to (default: the scheduler chooses)")


def _servers(nova: Nova, host: str) -> list[Mapping[str, Any]]:
    """All on this host. Raises NotFound if there is no such host."""
    services = nova.get("/os-services", host=host, binary="nova-compute")["services"]
    if not services:
        raise NotFound(f"There is no compute host {host}; nova service-list shows what there is.")
    return list(nova.pages("/servers/detail", "servers", host=host, all_tenants="1"))


def _each(servers: Iterable[Mapping[str, Any]], column: str, do: Callable[[Mapping[str, Any]], Any]) -> Any:
    """A row per server: whether its request was accepted, and if not, why."""
    rows = []
    for server in servers:
        try:
            do(server)
        except CommandError as error:
            rows.append((server["id"], False, str(error)))
        else:
            rows.append((server["id"], True, ""))
    return ("Server UUID", column, "Error Message"), rows


@listing(_HOST, _TARGET)
def evacuate(nova: Nova, args: argparse.Namespace) -> Any:
    """Have all servers of a host that is down rise on others."""
    return _each(_servers(nova, args.host), "Evacuate Accepted",
                 lambda server: rise_elsewhere(nova, server, args.target_host))


@listing(_HOST, _TARGET, flag("--block-migrate", help="copy disks, too (since 2.25 the default finds out)"),
         arg("--max-servers", metavar="N", type=int, help="so many at most"))
def evacuate_live(nova: Nova, args: argparse.Namespace) -> Any:
    """Move all servers of a host to others while they run."""
    return _each(_servers(nova, args.host)[:args.max_servers], "Live Migration Accepted",
                 lambda server: live(nova, server, args.target_host, args.block_migrate))


@listing(_HOST)
def migrate(nova: Nova, args: argparse.Namespace) -> Any:
    """Migrate all servers of a host to others; each is to be confirmed."""
    return _each(_servers(nova, args.host), "Migration Accepted", lambda server: nova.action(server, "migrate"))


@doing(_HOST, arg("action", choices=("set", "delete")),
       arg("metadata", metavar="KEY=VALUE", nargs="+", help="to delete the key is enough"))
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
