"""nova-manage audit: do allocations, quotas, addresses, guests and rows agree?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from nova import context, exception
from nova.cmd.manage import common
from nova.conductor.core import Core
from nova.db import audit, evictions, servers, services
from nova.db.audit import Finding
from nova.objects import states
from nova.objects.instance import Instance
from nova.operations.power import OFF

_PAGE = 1000


# What schedulers have to hear of when it was repaired.
_OF_HOSTS = frozenset({"claim", "usage", "node"})


def add_commands(commands: Any) -> None:
    command = commands.add_parser("audit", help="find what does not agree; exit code 1 if anything was found")
    command.add_argument("--repair", action="store_true", help="put right what can be put right")
    command.add_argument("--settle", type=float, default=2.0, metavar="SECONDS",
                         help="guests and rows that do not agree twice this far apart are a finding")
    command.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    core = common.core()
    found = False
    stale = False
    for finding in audit.audit(core.db, arguments.repair):
        print(finding)
        found = True
        stale = stale or (finding.repaired and finding.kind in _OF_HOSTS)
    if stale:
        core.fleet.reload()
    for finding in _lasting(core, arguments.settle):
        repair = finding.repair if arguments.repair else None
        if repair is not None:
            core.db.write(repair)
        print(dataclasses.replace(finding, repaired=repair is not None))
        found = True
    return 1 if found else 0


def _lasting(core: Core, settle: float) -> list[Finding]:
    """Where guests and rows do not agree: what an operation changes in between is no finding."""
    first = {str(finding) for finding in _guests(core)}
    if not first:
        return []
    time.sleep(settle)
    return [finding for finding in _guests(core) if str(finding) in first]


def _guests(core: Core) -> Iterable[Finding]:
    """Disagreements between the rows and the guests of all hosts that answer."""
    seen: dict[str, str] = {}
    for service in core.db.read(lambda connection: services.index(connection, binary=services.COMPUTE)):
        if not service.up:
            continue
        try:
            running = {guest.uuid: guest.power_state for guest in core.compute_at(service.host).guests(
                context.admin())}
        except exception.NovaException as error:
            yield Finding("host", service.host, f"does not tell its guests: {error}")
            continue
        for uuid in running:
            if uuid in seen:
                yield Finding("guest", uuid, f"is on {seen[uuid]} and on {service.host}")
            seen[uuid] = service.host
        yield from _compare(core, service.host, running)


def _compare(core: Core, host: str, running: dict[str, int]) -> Iterable[Finding]:
    expected = {}
    marker: str | None = None
    while True:
        page = core.db.read(functools.partial(_page, host=host, marker=marker))
        expected.update({instance.uuid: instance for instance in page})
        if len(page) < _PAGE:
            break
        marker = page[-1].uuid
    yield from _unexpected(core, host, sorted(running.keys() - expected.keys()))
    for uuid, instance in expected.items():
        if instance.host != host:
            continue  # the other place of a server that was moved and may come back
        if instance.task_state is None and instance.vm_state not in (states.ERROR, *OFF) and uuid not in running:
            yield Finding("guest", uuid, f"does not exist on {host}, though its server is {instance.vm_state}")


def _unexpected(core: Core, host: str, uuids: Sequence[str]) -> Iterable[Finding]:
    """Guests that should not be there. Only of orphaned ones a row says that they may go."""
    for start in range(0, len(uuids), _PAGE):
        page = uuids[start:start + _PAGE]
        found = {where.uuid: where for where in core.db.read(
            functools.partial(evictions.whereabouts, host=host, uuids=page))}
        for uuid in page:
            where = found.get(uuid)
            if where is None:
                yield Finding("guest", uuid, f"runs on {host} and is unknown: [compute]unknown_guests of the host says "
                                             "what is done with it")
            elif where.gone:
                yield Finding("guest", uuid, f"runs on {host}, but may not stay",
                              repair=functools.partial(_reap, core=core, host=host, uuid=uuid))
            elif host not in where.places:
                yield Finding("guest", uuid, f"runs on {host}, but its server is on "
                                             f"{', '.join(where.places) or 'no host'}")


def _page(connection: Any, host: str, marker: str | None) -> list[Instance]:
    return servers.on_host(connection, host, _PAGE, marker)


def _reap(_connection: Any, core: Core, host: str, uuid: str) -> None:
    core.compute_at(host).reap(context.admin(), uuid)
