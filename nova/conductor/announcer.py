"""Messages to schedulers about changed services and compute nodes."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from nova import context
from nova.conductor.core import Core
from nova.conductor.feeds import host_notices
from nova.db.hosts import compute_nodes, services, shared_nodes
from nova.objects.hosts.node import ComputeNode
from nova.objects.hosts.scheduling import HostState
from nova.objects.hosts.service import Service

LOG = logging.getLogger(__name__)

_FEW = 5  # maximum number of changed nodes in a report that are logged one by one; above it only their number is logged


def publish_services(core: Core, changed: Iterable[tuple[Service, bool]]) -> None:
    """Publish services (each with True if its row counts as up) to the schedulers, if they are compute services."""
    core.fleet.services({service.host: services.effective(service, up) for service, up in changed
                         if service.binary == services.COMPUTE})


def report_nodes(core: Core, host: str, nodes: Sequence[ComputeNode], after: str = "",
                 upto: str | None = None, trusted: bool = True) -> list[ComputeNode]:
    """Store the nodes that a host reports and publish the differences to the schedulers; return the nodes. ``after``,
    ``upto``: see :meth:`nova.rpcapi.by_hosts.Guests.report_nodes`; ``trusted``: see
    :func:`nova.db.hosts.compute_nodes.report`."""

    def transaction(connection: Any) -> tuple[compute_nodes.Report, list[HostState]]:
        report = compute_nodes.report(connection, host, nodes, after, upto, trusted)
        anew = set(report.measured)
        if anew and core.outbox.on:
            rates = core.host_rates.measured(host, (node for node in report.nodes if node.uuid in anew))
            core.outbox.notify(connection, context.admin(), lambda builder: host_notices.measured(builder, host, rates))
        return report, compute_nodes.states_of(connection, sorted(anew.union(report.changed)))

    report, states = core.db.write(transaction)
    core.fleet.states(states)
    core.fleet.removed(report.removed)
    changed = set(report.changed)
    if len(changed) > _FEW:
        LOG.info("%d compute nodes of host %s are new or have changed", len(changed), host)
        return report.nodes
    for state in (state for state in states if state.node_uuid in changed):
        LOG.info("Compute node %s of host %s now has %s", state.node, host, ", ".join(
            f"{name} {inventory.total}" for name, inventory in sorted(state.inventories.items())))
    return report.nodes


def share_nodes(core: Core, host: str, uuids: Sequence[str], trusted: bool) -> list[str]:
    """Return the shared nodes among ``uuids`` that the host must manage; publish those that it takes over now."""
    plan = core.db.read(lambda connection: shared_nodes.plan(connection, host, uuids, trusted))
    if not plan.wanted:
        return plan.own

    def transaction(connection: Any) -> tuple[list[str], list[HostState]]:
        taken = shared_nodes.take_over(connection, host, plan.wanted)
        return taken, compute_nodes.states_of(connection, taken)

    taken, states = core.db.write(transaction)
    core.fleet.states(states)
    if taken:
        LOG.info("Host %s takes over %d bare metal nodes", host, len(taken))
    return [*plan.own, *taken]
