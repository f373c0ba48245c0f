"""The interfaces of one server, for the steps of its operations: what they want is written in their transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from nova import context
from nova.conductor.core import Core
from nova.db import security_filters, servers
from nova.objects.instance import Instance
from nova.objects.network import VIF, NetworkRequest


class Wishes(Protocol):
    """What is known of a step: its instance, and what its transaction is to do."""

    core: Core
    ctx: context.RequestContext
    instance: Instance
    effects: list[Callable[[sa.Connection], None]]
    # What changed of security groups: the hosts that let their members in hear of the addresses of this one.
    filters: set[str]

    def set(self, **changes: Any) -> None: ...


class ServerInterfaces:
    """A :class:`nova.operations.resource_contexts.ServerInterfaces`. ``vifs`` () stands for all interfaces of the
    server.

    Of those that an outside service keeps these are the server's row only.
    """

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._allocator = wishes.core.allocator

    # --- in the accepting transaction ------------------------------------------------------------------
    def add(self, wanted: NetworkRequest, connection: sa.Connection) -> VIF:
        """Raises NetworkNotFound, NoMoreFixedIps, FixedIpInUse, QuotaLimit."""
        ctx, instance = self._wishes.ctx, self._wishes.instance
        self._allocator.check_more(connection, instance)
        made = self._allocator.allocate(ctx, instance, [wanted], connection)
        vif, = self._allocator.bind(ctx, instance, made, instance.host or "", connection)
        vif = msgspec.structs.replace(vif, active=False)
        self._wishes.set(network_info=[*instance.network_info, vif])
        self._wishes.effects.append(self._tell_peers)
        return vif

    # --- written with the step -------------------------------------------------------------------------
    def take(self) -> None:
        ctx, instance = self._wishes.ctx, self._wishes.instance
        if instance.network_info or instance.requested_networks == [] or self._allocator.external:
            return

        def take(connection: sa.Connection) -> None:
            self._wishes.set(network_info=self._allocator.allocate(
                ctx, instance, instance.requested_networks or [], connection))
            self._tell_peers(connection)

        self._wishes.effects.append(take)

    def complete(self, *vifs: str) -> None:
        if not vifs:
            return

        def change(known: list[VIF]) -> list[VIF]:
            return [msgspec.structs.replace(item, active=True) if item.id in vifs else item for item in known]

        self._wishes.effects.append(lambda connection: self._change(connection, change))

    def release(self, *vifs: VIF) -> None:
        ctx, instance = self._wishes.ctx, self._wishes.instance
        if not instance.network_info:
            return
        only = {vif.id for vif in vifs}

        def release(connection: sa.Connection) -> None:
            if only:
                # first, so that the server's row is held: nobody gives the interface an address meanwhile
                self._change(connection, lambda known: [item for item in known if item.id not in only])
            if not self._allocator.external:
                self._tell_peers(connection)
                self._allocator.release(ctx, instance, vifs or None, connection)

        self._wishes.effects.append(release)
        if not only:
            self._wishes.set(network_info=[])

    def _tell_peers(self, connection: sa.Connection) -> None:
        self._wishes.filters.update(security_filters.moved(connection, self._wishes.instance.uuid))

    def _change(self, connection: sa.Connection, change: Callable[[list[VIF]], list[VIF]]) -> None:
        """``change`` the interfaces of the server as its row has them when the step is written."""
        servers.change(connection, self._wishes.instance, "network_info", change)
