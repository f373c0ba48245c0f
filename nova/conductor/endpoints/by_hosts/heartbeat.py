"""Service heartbeats, and renewal of the leases of their running operations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from nova import exception
from nova.conductor import announcer
from nova.conductor.core import Core
from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import write
from nova.conductor.saga.run import owner_of
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.hosts import services
from nova.db.servers import actions
from nova.db.sql import clock
from nova.objects.hosts.service import Service, WorkerStats, check_connector
from nova.rpcapi import COMPUTE

LOG = logging.getLogger(__name__)


class Heartbeat:
    """Implements :class:`nova.rpcapi.by_hosts.Heartbeat`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int,
                 identity: str | None = None, connector: dict[str, Any] | None = None,
                 belongs_to: str | None = None, returning: bool = False) -> Service:
        _check_binary(ctx, binary)
        if ctx.calling_host and topic != COMPUTE:
            raise exception.CallerRefused(f"Host {host} must not use the topic {topic}.")
        check_connector(connector)
        service = write(self.core, ctx, services.register, notifications.service_registered,
                        host, binary, topic, version, identity, connector, belongs_to, returning)
        LOG.info("%s on %s started", binary, host)
        announcer.publish_services(self.core, [(service, True)])
        return service

    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str],
             load: Sequence[WorkerStats] | None = None) -> list[str]:
        _check_binary(ctx, binary)
        owner = owner_of(host, binary)

        def transaction(connection: Any) -> tuple[Service | None, list[str]]:
            until = clock.after(CONF.conductor.lease)
            return (services.beat(connection, host, binary, load),
                    actions.renew(connection, owner, running, until) if running else [])

        returned, lost = self.core.db.write(transaction)
        if returned is not None:
            self._up_again([returned])
        return lost

    def beat_all(self, ctx: RequestContext, binary: str, running: dict[str, list[str]]) -> list[str]:
        _check_binary(ctx, binary)
        if ctx.calling_host and set(running) != {ctx.calling_host}:
            raise exception.CallerRefused(f"Host {ctx.calling_host} may not speak for other hosts.")
        owners = {action: owner_of(host, binary) for host, held in running.items() for action in held}

        def transaction(connection: Any) -> tuple[list[Service], list[str]]:
            until = clock.after(CONF.conductor.lease)
            actions.renew_of(connection, owners, until)
            return services.beat_all(connection, list(running), binary)

        returned, unknown = self.core.db.write(transaction)
        if returned:
            self._up_again(returned)
        return unknown

    def _up_again(self, returned: list[Service]) -> None:
        LOG.info("%s on %s is up again", returned[0].binary, ", ".join(service.host for service in returned))
        announcer.publish_services(self.core, [(service, True) for service in returned])


def _check_binary(ctx: RequestContext, binary: str) -> None:
    """Raise CallerRefused if a compute host calls as a service of the control plane."""
    if ctx.calling_host and binary != services.COMPUTE:
        raise exception.CallerRefused(f"Host {ctx.calling_host} may not pass itself off as {binary}.")
