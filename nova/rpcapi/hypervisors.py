"""Compute nodes as operators see them."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.instance import Instance
from nova.objects.node import ComputeNode
from nova.rpcapi import CONDUCTOR


class Hypervisors(Interface):
    topic = CONDUCTOR
    namespace = "hypervisors"

    @call
    def index(self, ctx: RequestContext, pattern: str | None = None, limit: int | None = None,
              marker: str | None = None, host: str | None = None) -> list[ComputeNode]:
        """``pattern`` is matched anywhere in the hypervisor hostname. ``marker``: id or uuid; MarkerNotFound.
        ``host``: the nodes of this one."""

    @call
    def get(self, ctx: RequestContext, node_id: str) -> ComputeNode:
        """By uuid or integer id. Raises ComputeHostNotFound."""

    @call
    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        """The (brief) servers on these hosts."""
