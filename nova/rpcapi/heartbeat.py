"""That services live, and what they run."""

from __future__ import annotations

from typing import Any

from nova.bus import Interface, by_hosts, slow_call
from nova.context import RequestContext
from nova.objects.service import Load, Service
from nova.rpcapi import CONDUCTOR, HEARTBEATS


class Heartbeat(Interface):
    """Liveness of services."""

    topic = HEARTBEATS
    former_topic = CONDUCTOR
    namespace = "heartbeat"

    @by_hosts
    @slow_call(5)
    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int,
                 identity: str | None = None, connector: dict[str, Any] | None = None,
                 belongs_to: str | None = None, returning: bool = False) -> Service:
        """A service started; makes its row if it is new.

        ``identity``: of its machine, and ``connector``: how that reaches volumes, kept there. ``belongs_to``: the
        deployment that the host was told of when it registered last, and ``returning``: it has had a row of this
        deployment. Raises HostIdentityMismatch when the database knows another machine by this name, or this machine
        by another name, is of another deployment, or has forgotten the host: then the service must not start.
        """

    @by_hosts
    @slow_call(5)
    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str],
             load: Load | None = None) -> list[str]:
        """Alive, and running the steps of these actions (their leases are renewed).

        ``load``: of each worker process. Returns the actions among them that are no longer this service's to run.
        """

    @by_hosts
    @slow_call(5)
    def beat_all(self, ctx: RequestContext, binary: str, running: dict[str, list[str]]) -> list[str]:
        """Several hosts of one process are alive: host -> the actions whose steps it runs.

        Returns the hosts that have no such service (any more): they shall register.
        """
