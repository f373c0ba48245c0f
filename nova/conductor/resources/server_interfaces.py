"""Interfaces of a server, for the steps of its operations. Changes are written in the transaction of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from nova import context
from nova.conductor.core import Core
from nova.db.networks import security_filters
from nova.db.servers import servers
from nova.objects.networks.network import VIF, NetworkRequest
from nova.objects.servers.instance import Instance


class StepTransaction(Protocol):
    """The context of a step: its instance, and the effects of its transaction."""

    core: Core
    ctx: context.RequestContext
    instance: Instance
    effects: list[Callable[[sa.Connection], None]]
    # Changed security groups, published to the hosts whose rules name them as remote groups.
    filters: set[str]

    def set(self, **changes: Any) -> None: ...


class ServerInterfaces:
    """A :class:`nova.operations.framework.resource_contexts.ServerInterfaces`.

    ``vifs`` () stands for all interfaces of the server.

    For interfaces of an external service, only the server's row is changed.
    """

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction
        self._allocator = transaction.core.allocator

    # --- in the accepting transaction ------------------------------------------------------------------
    def add(self, wanted: NetworkRequest, connection: sa.Connection) -> VIF:
        """Raises NetworkNotFound, NoMoreFixedIps, FixedIpInUse, QuotaLimit."""
        ctx, instance = self._transaction.ctx, self._transaction.instance
        self._allocator.check_more(connection, instance)
        made = self._allocator.allocate(ctx, instance, [wanted], connection)
        vif, = self._allocator.bind(ctx, instance, made, instance.host or "", connection)
        vif = msgspec.structs.replace(vif, active=False)
        self._transaction.set(network_info=[*instance.network_info, vif])
        self._transaction.effects.append(self._mark_groups)
        return vif

    # --- written with the step -------------------------------------------------------------------------
    def take(self) -> None:
        ctx, instance = self._transaction.ctx, self._transaction.instance
        if instance.network_info or instance.requested_networks == [] or self._allocator.external:
            return

        def take(connection: sa.Connection) -> None:
            self._transaction.set(network_info=self._allocator.allocate(
                ctx, instance, instance.requested_networks or [], connection))
            self._mark_groups(connection)

        self._transaction.effects.append(take)

    def complete(self, *vifs: str) -> None:
        if not vifs:
            return

        def change(stored: list[VIF]) -> list[VIF]:
            return [msgspec.structs.replace(item, active=True) if item.id in vifs else item for item in stored]

        self._transaction.effects.append(lambda connection: self._change(connection, change))

    def release(self, *vifs: VIF) -> None:
        ctx, instance = self._transaction.ctx, self._transaction.instance
        if not instance.network_info:
            return
        only = {vif.id for vif in vifs}

        def release(connection: sa.Connection) -> None:
            if only:
                # First, to lock the server's row: no address can be added to the interface meanwhile.
                self._change(connection, lambda stored: [item for item in stored if item.id not in only])
            if not self._allocator.external:
                self._mark_groups(connection)
                self._allocator.release(ctx, instance, vifs or None, connection)

        self._transaction.effects.append(release)
        if not only:
            self._transaction.set(network_info=[])

    def _mark_groups(self, connection: sa.Connection) -> None:
        self._transaction.filters.update(security_filters.moved(connection, self._transaction.instance.uuid))

    def _change(self, connection: sa.Connection, change: Callable[[list[VIF]], list[VIF]]) -> None:
        """``change`` the interfaces of the server as its row has them when the step is written."""
        servers.change(connection, self._transaction.instance, "network_info", change)
