"""Interfaces of a server, for the steps of its operations. Changes are written in the transaction of the step."""

from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from nova.conductor.core import StepTransaction
from nova.conductor.resources import addresses
from nova.db.networks import security_filters
from nova.db.servers import servers
from nova.objects.networks.network import VIF, NetworkRequest


class ServerInterfaces:
    """A :class:`nova.operations.framework.resource_contexts.ServerInterfaces`. ``connection``: of the transaction that
    accepts an operation. For external interfaces, only the row of the server is changed."""

    def __init__(self, transaction: StepTransaction, connection: sa.Connection | None = None) -> None:
        self._transaction, self._connection = transaction, connection
        self._outside = transaction.core.allocator.external

    def add(self, wanted: NetworkRequest, host: str) -> VIF:
        connection, instance = self._connection, self._transaction.instance
        assert connection is not None, "only in the accepting transaction"
        addresses.check_more(connection, instance)
        made, = addresses.allocate(connection, instance, [wanted])
        vif = msgspec.structs.replace(made, active=False)
        self._transaction.set(network_info=[*instance.network_info, vif])
        self._transaction.effects.append(self._mark_groups)
        return vif

    # --- changes in the transaction of the step --------------------------------------------------------
    def take(self, host: str) -> None:
        instance = self._transaction.instance
        if instance.network_info or instance.requested_networks == [] or self._outside:
            return

        def take(connection: sa.Connection) -> None:
            self._transaction.set(network_info=addresses.allocate(
                connection, instance, instance.requested_networks or []))
            self._mark_groups(connection)

        self._transaction.effects.append(take)

    def complete(self, *vifs: str) -> None:
        if vifs:
            self.change(lambda stored: [
                msgspec.structs.replace(item, active=True) if item.id in vifs else item for item in stored])

    def release(self, *vifs: VIF) -> None:
        only = [vif.id for vif in vifs]
        if not self._transaction.instance.network_info:
            return
        if only:
            # The first change, because it locks the server's row: no address can be added to the interface meanwhile.
            self.change(lambda stored: [item for item in stored if item.id not in only])

        def release(connection: sa.Connection) -> None:
            self._mark_groups(connection)
            addresses.release(connection, self._transaction.instance.uuid, only)

        if not self._outside:
            self._transaction.effects.append(release)
        if not only:
            self._transaction.set(network_info=[])

    def change(self, change: Callable[[list[VIF]], list[VIF]]) -> None:
        instance = self._transaction.instance
        self._transaction.effects.append(
            lambda connection: servers.change(connection, instance, "network_info", change))

    def _mark_groups(self, connection: sa.Connection) -> None:
        self._transaction.filters.update(security_filters.moved(connection, self._transaction.instance.uuid))
