"""The command line for hosts that run under a supervisor (devstack/stack.sh). The machine itself is the first host."""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import sys

from tools.hosts.running import HostError
from tools.hosts.site import Site


def create(options: argparse.Namespace) -> None:
    site = Site.create(options.directory, own=False, network=options.network, outside=options.outside)
    site.switch.set_up()


def add(options: argparse.Namespace) -> None:
    site = Site(options.directory)
    own = site.directory / f"host-{options.number}" / "disk/state"
    site.add(options.number, options.name, kvm=options.kvm, binds=[(str(own), str(options.state))])


def commands(options: argparse.Namespace) -> None:
    host = Site(options.directory).host(options.number)
    for name, command in {"power": host.power_command(), **host.libvirt_commands(), "enter": host.command()}.items():
        print(name, shlex.join(command))


def run(options: argparse.Namespace) -> None:
    command = Site(options.directory).host(options.number).command(*options.command)
    os.execv(command[0], command)  # noqa: S606


def show(options: argparse.Namespace) -> None:
    for host in Site(options.directory).hosts():
        print(host.number, host.name, host.address, "off" if host.pid is None else "on")


def remove(options: argparse.Namespace) -> None:
    site = Site(options.directory)
    if options.number is None:
        site.remove()
    else:
        site.host(options.number).remove()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.hosts", description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, help="directory of the site, with all files of its hosts")
    verbs = parser.add_subparsers(required=True)

    verb = verbs.add_parser("create", help="create the bridges between the hosts and this machine; idempotent")
    verb.add_argument("network", help="first three bytes of the addresses of the hosts; this machine is .1")
    verb.add_argument("outside", help="first three bytes of the addresses for external connections")
    verb.set_defaults(function=create)

    verb = verbs.add_parser("add", help="add a host, switched off; an existing disk is kept")
    verb.add_argument("number", type=int)
    verb.add_argument("name")
    verb.add_argument("--state", type=pathlib.Path, required=True, help="path of the host's own directory")
    verb.add_argument("--kvm", action="store_true", help="allow its guests to use /dev/kvm")
    verb.set_defaults(function=add)

    for name, function, about in (("commands", commands, "list the commands for the supervisor of a host"),
                                  ("run", run, "run a command on a host")):
        verb = verbs.add_parser(name, help=about)
        verb.add_argument("number", type=int)
        verb.set_defaults(function=function)
    verb.add_argument("command", nargs=argparse.REMAINDER)

    verbs.add_parser("list", help="list number, name, address and power state of hosts").set_defaults(function=show)
    verb = verbs.add_parser("remove", help="remove a host with its disk; without a number: the whole site")
    verb.add_argument("number", type=int, nargs="?")
    verb.set_defaults(function=remove)
    options = parser.parse_args()
    try:
        options.function(options)
    except (HostError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
