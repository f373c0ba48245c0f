"""Floating IP addresses. The hosts of a server receive them with its security group rules."""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.context import RequestContext
from nova.db.networks import floating_ips
from nova.db.servers import servers
from nova.objects.networks.network import FloatingIp
from nova.objects.servers.instance import Instance

LOG = logging.getLogger(__name__)


class FloatingIps(Endpoint):
    """Implements :class:`nova.rpcapi.networks.FloatingIps`."""

    index = reads(floating_ips.index)
    get = reads(floating_ips.get)
    on_host = reads(floating_ips.on_host)
    create = writes(floating_ips.create)
    delete = writes(floating_ips.delete)

    def pools(self, ctx: RequestContext) -> list[str]:
        return self.core.db.read(floating_ips.pools)

    def allocate(self, ctx: RequestContext, project_id: str, pool: str | None = None) -> FloatingIp:
        floating_ip = self.core.db.write(lambda connection: floating_ips.allocate(connection, project_id, pool))
        LOG.info("Floating IP %s of pool %s was allocated to project %s", floating_ip.address, floating_ip.pool,
                 project_id)
        return floating_ip

    def release(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        server = self.core.db.write(lambda connection: floating_ips.release(connection, uuid, project_id))
        LOG.info("Floating IP %s was released", uuid)
        if server is not None:
            self.core.filters.publish_server(server)

    def give(self, ctx: RequestContext, instance_uuid: str, address: str, fixed_address: str | None = None,
             project_id: str | None = None) -> None:
        def transaction(connection: sa.Connection) -> set[str]:
            instance = servers.get(connection, instance_uuid, project_id)
            former = floating_ips.server_of(connection, address, instance.project_id)
            uuids = {instance_uuid} | ({former} if former else set())
            # Lock in sorted order: a concurrent request may lock the same two servers in the opposite order.
            locked = {uuid: _lock(ctx, connection, uuid, project_id) for uuid in sorted(uuids)}
            try:
                if former is not None:
                    floating_ips.take(connection, locked[former], address)
                floating_ips.give(connection, servers.get(connection, instance_uuid), address, fixed_address)
            except (exception.FloatingIpNotAssociated, exception.FloatingIpInUse) as error:  # reassigned meanwhile
                raise db_exception.RetryRequest(error) from error
            return uuids

        for uuid in self.core.db.write(transaction):
            self.core.filters.publish_server(uuid)
        LOG.info("[instance: %s] Floating IP %s was associated", instance_uuid, address)

    def take(self, ctx: RequestContext, instance_uuid: str, address: str, project_id: str | None = None) -> None:
        self._change(ctx, instance_uuid, project_id,
                     lambda connection, instance: floating_ips.take(connection, instance, address))
        LOG.info("[instance: %s] Floating IP %s was disassociated", instance_uuid, address)

    def _change(self, ctx: RequestContext, uuid: str, project_id: str | None,
                change: Callable[[sa.Connection, Instance], None]) -> None:
        def transaction(connection: sa.Connection) -> None:
            change(connection, _lock(ctx, connection, uuid, project_id))

        self.core.db.write(transaction)
        self.core.filters.publish_server(uuid)


def _lock(ctx: RequestContext, connection: sa.Connection, uuid: str, project_id: str | None) -> Instance:
    """Lock the row of the server. Raises InstanceIsLocked, InstanceNotFound."""
    instance = servers.lock(connection, uuid, project_id)
    if instance.locked and not ctx.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=uuid)
    return instance
