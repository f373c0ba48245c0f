"""The part of nova-manage audit that compares servers with the ports of an external network service."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.db.audit import Finding
from nova.db.hosts import services
from nova.db.servers import servers
from nova.network.base import OutsidePort
from nova.objects.base import is_canonical

_PAGE = 100  # servers per request to the network service


def findings(core: Core) -> Iterator[Finding]:
    """Yield differences between servers without a running operation and their ports, and ports of deleted servers."""
    if not core.allocator.external:
        return
    try:
        yield from _of_servers(core)
        for service in core.db.read(lambda connection: services.index(connection, binary=services.COMPUTE)):
            yield from _of_deleted_servers(core, service.host)
    except exception.NetworkServiceUnavailable as error:
        yield Finding("network service", "-", f"the ports of servers cannot be compared: {error}")


def _of_servers(core: Core) -> Iterator[Finding]:
    marker = ""
    while True:
        rows = core.db.read(functools.partial(servers.with_interfaces, after=marker, limit=_PAGE))
        if not rows:
            return
        marker = rows[-1].uuid
        ports = core.allocator.ports_of_servers(context.admin(), [row.uuid for row in rows])
        for row in rows:
            if row.action_uuid is None and row.task_state is None:
                yield from _compare(row, [port for port in ports
                                          if (port.server, port.project_id) == (row.uuid, row.project_id)])


def _compare(row: Any, ports: Iterable[OutsidePort]) -> Iterator[Finding]:
    by_id = {port.id: port for port in ports}
    for vif in row.network_info:
        port = by_id.pop(vif.id, None)
        if port is None:
            yield Finding("port", vif.id, f"server {row.uuid} has an interface with this port, which does not exist or "
                                          "belongs to another server")
        elif port.host != (row.host or ""):
            yield Finding("port", vif.id, f"is bound to {port.host or 'no host'}, but its server {row.uuid} is on "
                                          f"{row.host or 'no host'}")
    for port in by_id.values():
        yield Finding("port", port.id, f"has the device_id {row.uuid}, but is no interface of this server")


def _of_deleted_servers(core: Core, host: str) -> Iterator[Finding]:
    ports = [port for port in core.allocator.ports_at(context.admin(), host) if is_canonical(port.server)]
    for first in range(0, len(ports), _PAGE):
        page = ports[first:first + _PAGE]
        uuids = {port.server for port in page}
        # The order of the queries matters: a server created between them never counts as deleted.
        recorded = core.db.read(functools.partial(servers.ever, uuids=uuids))
        existing = core.db.read(functools.partial(servers.placed, uuids=uuids))
        for port in page:
            if port.server not in recorded:
                yield Finding("port", port.id, f"is bound to {host} for server {port.server}, which does not exist")
            elif port.server not in existing:
                yield Finding("port", port.id, f"is bound to {host} for server {port.server}, which is deleted",
                              repair=functools.partial(_release, core=core, uuid=port.server))


def _release(core: Core, uuid: str) -> None:
    """Delete the ports of a deleted server, and unbind those that users created."""
    instance = core.db.read(lambda connection: servers.get(connection, uuid, deleted=True))
    ConductorControl(core, context.admin(), instance).outside_interfaces.release()
