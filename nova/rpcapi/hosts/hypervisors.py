"""The RPC interface of compute nodes for operators."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers.instance import Instance
from nova.rpcapi import CONDUCTOR


class Hypervisors(Interface):
    topic = CONDUCTOR
    namespace = "hypervisors"

    @call
    def index(self, ctx: RequestContext, pattern: str | None = None, limit: int | None = None,
              marker: str | None = None, host: str | None = None) -> list[ComputeNode]:
        """Return nodes, optionally those whose hypervisor hostname contains ``pattern``, or those of ``host``.

        ``marker`` is an id or uuid. Raises MarkerNotFound.
        """

    @call
    def get(self, ctx: RequestContext, node_id: str) -> ComputeNode:
        """Return a node by its uuid or integer id. Raises ComputeHostNotFound."""

    @call
    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        """Return the servers on these hosts, with a few fields only."""
