"""nova-manage floating: pools of floating addresses."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cmd.manage import common
from nova.db import floating_ips


def add_commands(commands: Any) -> None:
    group = commands.add_parser("floating", help="floating addresses").add_subparsers(required=True, metavar="ACTION")
    create = group.add_parser("create", help="put the addresses of a network into a pool")
    create.add_argument("--pool", default="nova", help="default: %(default)s")
    create.add_argument("--ip_range", "--ip-range", required=True, help="an IPv4 network, e.g. 203.0.113.16/28; its "
                        "first and last address are left out, unless it is a /31 or /32")
    create.set_defaults(run=_create)
    group.add_parser("list", help="list the addresses").set_defaults(run=_list)
    delete = group.add_parser("delete", help="take addresses that nobody has out of their pool")
    delete.add_argument("--ip_range", "--ip-range", required=True, help="as it was put in, or a part of it")
    delete.set_defaults(run=_delete)


def _create(arguments: argparse.Namespace) -> None:
    made = common.core().db.write(
        lambda connection: floating_ips.create(connection, arguments.pool, arguments.ip_range))
    print(f"{made} addresses are in pool {arguments.pool}")


def _list(_arguments: argparse.Namespace) -> None:
    found = common.core().db.read(floating_ips.index)
    common.show(("Address", "Pool", "Project", "Server", "Fixed address"), (
        (each.address, each.pool, each.project_id or "(free)", each.instance_uuid, each.fixed_address)
        for each in found))


def _delete(arguments: argparse.Namespace) -> None:
    gone = common.core().db.write(lambda connection: floating_ips.delete(connection, arguments.ip_range))
    print(f"{gone} addresses are in no pool any more")
