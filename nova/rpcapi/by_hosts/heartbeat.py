"""The RPC interface of registrations and heartbeats of services."""

from __future__ import annotations

from typing import Any

from nova.bus import Interface, by_hosts, slow_call
from nova.context import RequestContext
from nova.objects.hosts.service import Load, Service
from nova.rpcapi import CONDUCTOR, HEARTBEATS


class Heartbeat(Interface):
    """Registrations and heartbeats of services."""

    topic = HEARTBEATS
    former_topic = CONDUCTOR
    namespace = "heartbeat"

    @by_hosts
    @slow_call(5)
    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int,
                 identity: str | None = None, connector: dict[str, Any] | None = None,
                 belongs_to: str | None = None, returning: bool = False) -> Service:
        """Register a service that started, and create its row if it is new.

        ``identity`` identifies the machine, ``connector`` describes its access to volumes; both are stored.
        ``belongs_to`` is the deployment in which the host registered last, ``returning`` is True if the host had a row
        in this deployment. Raises HostIdentityMismatch, and the service must not start, if the database has another
        machine with this name or this machine with another name, belongs to another deployment, or lacks the host.
        """

    @by_hosts
    @slow_call(5)
    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str],
             load: Load | None = None) -> list[str]:
        """Record a heartbeat and renew the leases of the ``running`` actions.

        ``load`` has the statistics of each worker process. Returns the actions that this service must no longer run.
        """

    @by_hosts
    @slow_call(5)
    def beat_all(self, ctx: RequestContext, binary: str, running: dict[str, list[str]]) -> list[str]:
        """Record heartbeats of several hosts of one process; ``running`` maps each host to its actions.

        Returns the hosts without a registered service, which must register.
        """
