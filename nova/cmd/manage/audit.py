"""nova-manage audit: do allocations, quotas, addresses, guests and rows agree?"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterable
from typing import Any

from nova import context, exception
from nova.cmd.manage import common
from nova.conductor.core import Core
from nova.db import audit, instances, services
from nova.db.audit import Finding
from nova.objects import states
from nova.objects.instance import Instance

_PAGE = 1000


def add_commands(commands: Any) -> None:
    command = commands.add_parser("audit", help="find what does not agree; exit code 1 if anything was found")
    command.add_argument("--repair", action="store_true", help="put right what can be put right")
    command.add_argument("--settle", type=float, default=2.0, metavar="SECONDS",
                         help="what is wrong twice this far apart is a finding (operations may be under way)")
    command.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    core = common.core()
    first = {str(finding) for finding in findings(core)}
    if not first:
        return 0
    # What an operation changes in between was no finding.
    time.sleep(arguments.settle)
    lasting = [finding for finding in findings(core) if str(finding) in first]
    for finding in lasting:
        print(finding, end="")
        if arguments.repair and finding.repair is not None:
            core.db.write(finding.repair)
            print(" (repaired)", end="")
        print()
    return 1 if lasting else 0


def findings(core: Core) -> list[Finding]:
    """Disagreements among the rows, and between rows and the guests of all hosts that answer."""
    return [*core.db.read(audit.audit), *_guests(core)]


def _guests(core: Core) -> Iterable[Finding]:
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
    for uuid in running.keys() - expected.keys():
        yield Finding("guest", uuid, f"runs on {host}, but no server is there",
                      functools.partial(_reap, core=core, host=host, uuid=uuid))
    for uuid, instance in expected.items():
        if instance.task_state is None and instance.vm_state != states.ERROR and uuid not in running:
            yield Finding("guest", uuid, f"does not exist on {host}, though its server is {instance.vm_state}")


def _page(connection: Any, host: str, marker: str | None) -> list[Instance]:
    return instances.on_host(connection, host, _PAGE, marker)


def _reap(_connection: Any, core: Core, host: str, uuid: str) -> None:
    core.compute_at(host).reap(context.admin(), uuid)
