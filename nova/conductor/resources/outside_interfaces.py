"""Interfaces of a server in an external network service, for the external steps of its operations.

The service is called immediately, outside any transaction. Its results are written with the step.
"""

from __future__ import annotations

import logging

import msgspec

from nova import exception
from nova.conductor.resources.server_interfaces import StepTransaction
from nova.db.servers import servers
from nova.objects.networks.network import VIF, NetworkRequest

LOG = logging.getLogger(__name__)


class OutsideInterfaces:
    """A :class:`nova.operations.framework.resource_contexts.OutsideInterfaces`."""

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction
        self._allocator = transaction.core.allocator

    def take(self, host: str) -> None:
        ctx, instance = self._transaction.ctx, self._transaction.instance
        made = self._allocator.allocate(ctx, instance, instance.requested_networks or [])
        self._transaction.set(network_info=self._allocator.bind(ctx, instance, made, host))

    def add(self, wanted: NetworkRequest, host: str) -> VIF:
        ctx, instance = self._transaction.ctx, self._transaction.instance
        made = self._allocator.allocate(ctx, instance, [wanted])
        vif, = self._allocator.bind(ctx, instance, made, host)
        vif = msgspec.structs.replace(vif, active=False)

        self._transaction.effects.append(lambda connection: servers.change(
            connection, instance, "network_info", lambda vifs: [*vifs, vif]))
        return vif

    def give_back(self, wanted: NetworkRequest | None) -> None:
        unrecorded = self._allocator.unrecorded(self._transaction.ctx, self._transaction.instance)
        requested_port = wanted.port_id if wanted else None
        self.release(*(msgspec.structs.replace(vif, keep=vif.keep or vif.id == requested_port) for vif in unrecorded),
                     some=True)

    def bind(self, host: str) -> None:
        ctx, instance = self._transaction.ctx, self._transaction.instance
        bound: dict[str, VIF] = {}
        deleted_ports = set()
        for vif in instance.network_info:
            try:
                bound[vif.id], = self._allocator.bind(ctx, instance, [vif], host)
            except exception.PortNotFound:
                # The port was deleted and the event was lost. Keep the server running without the port.
                LOG.warning("[instance: %s] Port %s was deleted; the server continues without it", instance.uuid,
                            vif.id)
                deleted_ports.add(vif.id)

        def renewed(vifs: list[VIF]) -> list[VIF]:
            # Events of the service (nova.conductor.network_events) may have updated the row after it was read.
            return [msgspec.structs.replace(bound[vif.id], label=vif.label, mtu=vif.mtu, fixed_ips=vif.fixed_ips)
                    if vif.id in bound else vif for vif in vifs if vif.id not in deleted_ports]

        self._transaction.effects.append(
            lambda connection: servers.change(connection, instance, "network_info", renewed))

    def unbind(self) -> None:
        self._allocator.unbind(self._transaction.ctx, self._transaction.instance)

    def release(self, *vifs: VIF, some: bool = False) -> None:
        self._allocator.release(self._transaction.ctx, self._transaction.instance, vifs if vifs or some else None)
