"""nova-manage host drain, evacuate: a host is emptied. Conductors do it; the command says so, and watches."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.cmd.manage import common
from nova.conductor.background import drains as keeper
from nova.conductor.background.drain_plan import plan
from nova.conductor.core import Core
from nova.db import drains, services
from nova.db.sql import clock
from nova.objects import drain as drain_states
from nova.objects.base import new_uuid
from nova.objects.drain import Drain, DrainedServer

# Seconds between two looks at how far it is.
_LOOK = 1.0
_PAGE = 500
# Exit code: it goes on, and nobody watches any more.
_UNDER_WAY = 3
_STATES = (drain_states.MOVED, drain_states.GONE, drain_states.LEFT, drain_states.MOVING, drain_states.WAITING)


def add_commands(group: Any) -> None:
    drain = group.add_parser("drain", help="move all servers away from a host that is up; exit codes: 0 it is empty, "
                                           "1 servers were left, 3 it goes on")
    drain.add_argument("--cold", action="store_true", help="shut running guests down that cannot be migrated live, and "
                                                           "move them (default: they are left)")
    drain.set_defaults(run=_run, kind=drain_states.DRAIN)
    evacuate = group.add_parser("evacuate", help="have the servers of a host that is down go on elsewhere; exit codes "
                                                 "as for drain. Make sure that the host is off")
    evacuate.set_defaults(run=_run, kind=drain_states.EVACUATE, cold=False)
    for command in (drain, evacuate):
        _add_options(command)


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("host", help="the [DEFAULT]host of its nova-compute")
    command.add_argument("--parallel", type=_positive, default=2, metavar="N",
                         help="so many servers move at the same time (default: 2)")
    command.add_argument("--to", default="", metavar="HOST", help="move them there (default: the scheduler chooses)")
    command.add_argument("--patience", type=_seconds, default=600, metavar="SECONDS",
                         help="wait so long for a server that something else is done with (default: 600)")
    command.add_argument("--reason", metavar="TEXT", help="why the host is disabled")
    command.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="watch for so long; it goes on afterwards")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    instead = command.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true",
                         help="say what would be done with each server, and do nothing")
    instead.add_argument("--status", action="store_true", help="say how far it is, and do nothing")
    instead.add_argument("--stop", action="store_true", help="begin no more moves; those under way go on")


def _positive(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1000:
        raise argparse.ArgumentTypeError("must be from 1 to 1000")
    return number


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError("must be a number of seconds")
    return number


def _run(arguments: argparse.Namespace) -> int:
    core = common.core()
    if arguments.dry_run:
        return _dry_run(core, arguments)
    if arguments.stop:
        core.db.write(functools.partial(drains.stop, host=arguments.host))
    elif not arguments.status:
        keeper.begin(core, _wanted(arguments), arguments.reason or f"nova-manage host {arguments.kind}")
    try:
        if not arguments.status:
            _watch(core, arguments)
    except KeyboardInterrupt:
        print("It goes on without this command: --status says how far it is, --stop ends it.", flush=True)
    return _report(core, arguments)


def _wanted(arguments: argparse.Namespace) -> Drain:
    return Drain(uuid=new_uuid(), host=arguments.host, kind=arguments.kind, parallel=arguments.parallel,
                 cold=arguments.cold, target=arguments.to, patience=arguments.patience, created_at=clock.now())


def _watch(core: Core, arguments: argparse.Namespace) -> None:
    """Print each server that is done with, until all are, or for --timeout seconds."""
    told: set[str] = set()
    until = time.monotonic() + (float("inf") if arguments.timeout is None else arguments.timeout)
    while True:
        drain, lines = core.db.read(functools.partial(drains.get, host=arguments.host))
        for line in lines:
            if line.ended_at is not None and line.instance_uuid not in told:
                told.add(line.instance_uuid)
                if not arguments.json:
                    print(f"{line.instance_uuid} {line.state} {line.how} {line.destination} {line.reason}".rstrip(),
                          flush=True)
        if drain.state == drain_states.ENDED or time.monotonic() >= until:
            return
        time.sleep(min(_LOOK, max(0.0, until - time.monotonic())))


def _report(core: Core, arguments: argparse.Namespace) -> int:
    """A line for each server, and how many there are of each kind."""
    drain, lines = core.db.read(functools.partial(drains.get, host=arguments.host))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode({"drain": drain, "servers": lines}), indent=2).decode())
    else:
        names = core.db.read(functools.partial(drains.names, uuids=[line.instance_uuid for line in lines]))
        common.show(("Server", "Name", "State", "How", "To", "Seconds", "Reason"),
                    (_row(line, names) for line in lines))
        counts = ", ".join(f"{count} {state}" for state in _STATES
                           if (count := sum(line.state == state for line in lines)))
        print(f"{drain.kind} of {drain.host}: {drain.state}; {counts or 'there were no servers'}")
    if drain.state != drain_states.ENDED:
        return _UNDER_WAY
    return 1 if any(line.state == drain_states.LEFT for line in lines) else 0


def _row(line: DrainedServer, names: dict[str, str]) -> Sequence[Any]:
    seconds = f"{(line.ended_at - line.started_at).total_seconds():.1f}" if line.ended_at and line.started_at else ""
    return (line.instance_uuid, names.get(line.instance_uuid), line.state, line.how, line.destination, seconds,
            line.reason)


def _dry_run(core: Core, arguments: argparse.Namespace) -> int:
    wanted = _wanted(arguments)
    if not core.db.read(functools.partial(services.compute_exists, host=wanted.host)):
        raise exception.HostBinaryNotFound(host=wanted.host, binary=services.COMPUTE)
    rows = list(_planned(core, wanted))
    common.show(("Server", "State", "How", "Reason"), rows)
    stay = sum(not how for _uuid, _state, how, _reason in rows)
    print(f"{wanted.kind} of {wanted.host}: {len(rows) - stay} would leave it, {stay} would stay")
    return 1 if stay else 0


def _planned(core: Core, wanted: Drain) -> Iterator[tuple[str, str, str, str]]:
    after = ""
    while True:
        page = core.db.read(functools.partial(drains.candidates, drain=wanted, limit=_PAGE, after=after))
        for server in page:
            found = plan(wanted, server)
            yield server.uuid, server.vm_state, found.how, found.reason
        if len(page) < _PAGE:
            break
        after = page[-1].uuid
    for uuid, host in core.db.read(functools.partial(drains.moved_out, drain=wanted)):
        yield uuid, "resized", "", f"it is on {host}, and its disks are here"
