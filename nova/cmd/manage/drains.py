"""The commands nova-manage host drain and evacuate, which start a drain of a host by conductors and watch it."""

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
from nova.db.hosts import drains, services
from nova.db.sql import clock
from nova.objects.base import new_uuid
from nova.objects.hosts import drain as drain_states
from nova.objects.hosts.drain import Drain, DrainedServer

# Seconds between two reads of the progress.
_POLL_INTERVAL = 1.0
_PAGE = 500
# Exit code if the drain continues in the background.
_RUNNING = 3
_STATES = (drain_states.MOVED, drain_states.DELETED, drain_states.LEFT, drain_states.MOVING, drain_states.WAITING)


def add_commands(group: Any) -> None:
    drain = common.add_action(group, "drain", _run, "Move all servers from a running host to other hosts. Exit codes: "
                              "0 the host is empty, 1 some servers stayed, 3 the drain continues.",
                              kind=drain_states.DRAIN)
    drain.add_argument("--cold", action="store_true", help="shut down guests that cannot be live-migrated, and migrate "
                                                           "them (default: they stay on the host)")
    evacuate = common.add_action(
        group, "evacuate", _run, "Evacuate all servers from a failed host, which must be powered off. Exit codes as for"
        " drain.", kind=drain_states.EVACUATE, cold=False)
    for command in (drain, evacuate):
        command.add_argument("host", help="name of the compute host ([DEFAULT]host)")
        command.add_argument("--parallel", type=_positive, default=2, metavar="N",
                             help="number of servers that move at the same time (default: 2)")
        command.add_argument("--to", default="", metavar="HOST",
                             help="destination host (default: the scheduler selects)")
        command.add_argument("--patience", type=_seconds, default=600, metavar="SECONDS",
                             help="time to wait for the running operation of a server (default: 600)")
        command.add_argument("--reason", metavar="TEXT", help="reason for disabling the host")
        command.add_argument("--timeout", type=_seconds, metavar="SECONDS",
                             help="time to watch the drain; then the command ends and the drain continues")
        command.add_argument("--json", action="store_true", help="print the report as JSON")
        instead = command.add_mutually_exclusive_group()
        instead.add_argument("--dry-run", action="store_true", help="only print the planned move of each server")
        instead.add_argument("--status", action="store_true", help="only print the progress of the drain")
        instead.add_argument("--stop", action="store_true", help="start no further moves; running moves continue")


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
        wanted = _wanted(arguments)
        if not core.db.read(functools.partial(services.compute_exists, host=wanted.host)):
            raise exception.HostBinaryNotFound(host=wanted.host, binary=services.COMPUTE)
        rows = list(_planned(core, wanted))
        common.show(("Server", "State", "How", "Reason"), rows)
        stay = sum(not how for _uuid, _state, how, _reason in rows)
        print(f"{wanted.kind} of {wanted.host}: {len(rows) - stay} would move, {stay} would stay")
        return 1 if stay else 0
    if arguments.stop:
        core.db.write(functools.partial(drains.stop, host=arguments.host))
    elif not arguments.status:
        keeper.begin(core, _wanted(arguments), arguments.reason or f"nova-manage host {arguments.kind}")
    try:
        if not arguments.status:
            _watch(core, arguments)
    except KeyboardInterrupt:
        print("The drain continues: --status prints its progress, --stop ends it.", flush=True)
    return _report(core, arguments)


def _wanted(arguments: argparse.Namespace) -> Drain:
    return Drain(uuid=new_uuid(), host=arguments.host, kind=arguments.kind, parallel=arguments.parallel,
                 cold=arguments.cold, target=arguments.to, patience=arguments.patience, created_at=clock.now())


def _watch(core: Core, arguments: argparse.Namespace) -> None:
    """Print each finished server, until all servers are finished or --timeout has passed."""
    reported: set[str] = set()
    until = time.monotonic() + (float("inf") if arguments.timeout is None else arguments.timeout)
    while True:
        drain, lines = core.db.read(functools.partial(drains.get, host=arguments.host))
        for line in lines:
            if line.ended_at is not None and line.instance_uuid not in reported:
                reported.add(line.instance_uuid)
                if not arguments.json:
                    print(f"{line.instance_uuid} {line.state} {line.how} {line.destination} {line.reason}".rstrip(),
                          flush=True)
        if drain.state == drain_states.ENDED or time.monotonic() >= until:
            return
        time.sleep(min(_POLL_INTERVAL, max(0.0, until - time.monotonic())))


def _report(core: Core, arguments: argparse.Namespace) -> int:
    """Print a row for each server and the number of servers in each state, and return the exit code."""
    drain, lines = core.db.read(functools.partial(drains.get, host=arguments.host))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode({"drain": drain, "servers": lines}), indent=2).decode())
    else:
        names = core.db.read(functools.partial(drains.names, uuids=[line.instance_uuid for line in lines]))
        common.show(("Server", "Name", "State", "How", "To", "Seconds", "Reason"),
                    (_row(line, names) for line in lines))
        counts = ", ".join(f"{count} {state}" for state in _STATES
                           if (count := sum(line.state == state for line in lines)))
        print(f"{drain.kind} of {drain.host}: {drain.state}; {counts or 'no servers'}")
    if drain.state != drain_states.ENDED:
        return _RUNNING
    return 1 if any(line.state == drain_states.LEFT for line in lines) else 0


def _row(line: DrainedServer, names: dict[str, str]) -> Sequence[Any]:
    seconds = f"{(line.ended_at - line.started_at).total_seconds():.1f}" if line.ended_at and line.started_at else ""
    return (line.instance_uuid, names.get(line.instance_uuid), line.state, line.how, line.destination, seconds,
            line.reason)


def _planned(core: Core, wanted: Drain) -> Iterator[tuple[str, str, str, str]]:
    after = ""
    while True:
        page = core.db.read(functools.partial(drains.candidates, drain=wanted, limit=_PAGE, after=after))
        for server in page:
            planned = plan(wanted, server)
            yield server.uuid, server.vm_state, planned.how, planned.reason
        if len(page) < _PAGE:
            break
        after = page[-1].uuid
    for uuid, host in core.db.read(functools.partial(drains.moved_out, drain=wanted)):
        yield uuid, "resized", "", f"the server runs on {host}, and its old disks are on this host"
