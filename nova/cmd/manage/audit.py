"""The command nova-manage audit, which checks the consistency of the database, of guests on hosts and of ports."""

import argparse
import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from nova import context, exception
from nova.cmd.manage import audit_ports, common
from nova.conductor.core import Core
from nova.db import audit
from nova.db.audit import Finding
from nova.db.hosts import services
from nova.db.servers import evictions, servers
from nova.objects.servers import states
from nova.operations.power import OFF

_PAGE = 1000
# Kinds of findings whose repair changes nodes, so that schedulers must read the nodes again.
_KINDS_OF_NODES = frozenset({"claim", "usage", "node"})


def add_commands(commands: Any) -> None:
    command = common.add_action(commands, "audit", _audit, "Find inconsistencies in the database and on hosts. Exit "
                                "code 1 if there are any.")
    command.add_argument("--repair", action="store_true", help="repair the inconsistencies that can be repaired")
    command.add_argument("--settle", type=float, default=2.0, metavar="SECONDS",
                         help="time between the two comparisons of the database with guests and ports; differences "
                              "that exist in one comparison only are not reported")


def _audit(arguments: argparse.Namespace) -> int:
    core = common.core()
    inconsistent = False
    stale = False
    for finding in audit.audit(core.db, arguments.repair):
        print(finding)
        inconsistent = True
        stale = stale or (finding.repaired and finding.kind in _KINDS_OF_NODES)
    if stale:
        core.fleet.reload()
    for finding in _lasting(core, arguments.settle):
        repair = finding.repair if arguments.repair else None
        if repair is not None:
            repair()
        print(dataclasses.replace(finding, repaired=repair is not None))
        inconsistent = True
    return 1 if inconsistent else 0


def _lasting(core: Core, interval: float) -> list[Finding]:
    """Return differences of servers from guests and ports that exist in two comparisons ``interval`` seconds apart."""
    first = {str(finding) for finding in (*_guests(core), *audit_ports.findings(core))}
    if not first:
        return []
    time.sleep(interval)
    return [finding for finding in (*_guests(core), *audit_ports.findings(core)) if str(finding) in first]


def _guests(core: Core) -> Iterable[Finding]:
    """Yield differences between the servers in the database and the guests of all hosts that answer."""
    seen: dict[str, str] = {}
    for service in core.db.read(lambda connection: services.index(connection, binary=services.COMPUTE)):
        if not service.up:
            continue
        try:
            running = {guest.uuid: guest.power_state for guest in core.compute_at(service.host).guests(context.admin())}
        except exception.NovaException as error:
            yield Finding("host", service.host, f"does not report its guests: {error}")
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
        page = core.db.read(functools.partial(servers.on_host, host=host, limit=_PAGE, marker=marker))
        expected.update({instance.uuid: instance for instance in page})
        if len(page) < _PAGE:
            break
        marker = page[-1].uuid
    yield from _unexpected(core, host, sorted(running.keys() - expected.keys()))
    for uuid, instance in expected.items():
        if instance.host != host:
            continue  # the guest is on the other host of a resize
        if instance.task_state is None and instance.vm_state not in (states.ERROR, *OFF) and uuid not in running:
            yield Finding("guest", uuid, f"does not exist on {host}, though its server is {instance.vm_state}")


def _unexpected(core: Core, host: str, uuids: Sequence[str]) -> Iterable[Finding]:
    """Yield guests without a server on the host. --repair removes those whose server is deleted or evicted."""
    for start in range(0, len(uuids), _PAGE):
        page = uuids[start:start + _PAGE]
        registered_hosts = {where.uuid: where for where in core.db.read(
            functools.partial(evictions.whereabouts, host=host, uuids=page))}
        for uuid in page:
            where = registered_hosts.get(uuid)
            if where is None:
                yield Finding("guest", uuid, f"runs on {host} without a server: [compute]unknown_guests of the host "
                                             "determines what happens to the guest")
            elif where.must_leave:
                yield Finding("guest", uuid, f"runs on {host}, but its server is deleted or evicted",
                              repair=functools.partial(core.compute_at(host).reap, context.admin(), uuid))
            elif host not in where.possible_hosts:
                yield Finding("guest", uuid, f"runs on {host}, but its server is on "
                                             f"{', '.join(where.possible_hosts) or 'no host'}")


