"""The commands nova-manage floating, for pools of floating IP addresses."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cmd.manage import common
from nova.db.networks import floating_ips


def add_commands(commands: Any) -> None:
    group = commands.add_parser("floating", help="Manage floating IP addresses.").add_subparsers(
        required=True, metavar="ACTION")
    create = group.add_parser("create", help="Add the addresses of a network to a pool.")
    create.add_argument("--pool", default="nova", help="name of the pool (default: %(default)s)")
    create.add_argument("--ip_range", "--ip-range", required=True, help="IPv4 network, such as 203.0.113.16/28; "
                        "its first and last address are omitted, except for /31 and /32")
    create.set_defaults(run=_create)
    group.add_parser("list", help="List floating IP addresses.").set_defaults(run=_list)
    delete = group.add_parser("delete", help="Remove unallocated addresses from their pools.")
    delete.add_argument("--ip_range", "--ip-range", required=True, help="the added network, or a part of it")
    delete.set_defaults(run=_delete)


def _create(arguments: argparse.Namespace) -> None:
    made = common.core().db.write(
        lambda connection: floating_ips.create(connection, arguments.pool, arguments.ip_range))
    print(f"Added {made} addresses to pool {arguments.pool}")


def _list(_arguments: argparse.Namespace) -> None:
    addresses = common.core().db.read(floating_ips.index)
    common.show(("Address", "Pool", "Project", "Server", "Fixed address"), (
        (floating.address, floating.pool, floating.project_id or "(free)", floating.instance_uuid,
         floating.fixed_address) for floating in addresses))


def _delete(arguments: argparse.Namespace) -> None:
    removed = common.core().db.write(lambda connection: floating_ips.delete(connection, arguments.ip_range))
    print(f"Removed {removed} addresses")
