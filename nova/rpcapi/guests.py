"""What a compute host tells of its nodes and guests."""

from __future__ import annotations

import datetime

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.guest import Eviction, ExpectedGuest, GuestStatus, Whereabouts
from nova.objects.instance import Instance
from nova.objects.node import ComputeNode
from nova.rpcapi import CONDUCTOR


class Guests(Interface):
    """What a compute host knows and the rows should."""

    topic = CONDUCTOR
    namespace = "guests"

    @call
    def report_nodes(self, ctx: RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        """Inventories and traits of all nodes of a host; returns them with their uuids.

        A host with many nodes tells them by pages: all that have uuids after ``after`` and up to ``upto``
        (None: the rest). Then the driver must give every node its uuid.
        """

    @call
    def on_host(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Instance]:
        """The instances that may be on a host (also those that are on their way), by uuid."""

    @call
    def expected(self, ctx: RequestContext, host: str, limit: int = 1000,
                 marker: str | None = None) -> list[ExpectedGuest]:
        """The same, and only what is compared with what runs there."""

    @call
    def described(self, ctx: RequestContext, uuids: list[str]) -> list[Instance]:
        """Those of these instances that exist."""

    @call
    def power_states(self, ctx: RequestContext, host: str, guests: list[GuestStatus]) -> None:
        """Power states that changed on the host, seen by events or by the periodic sync.

        The rows follow, or an operation puts the guest right.
        """

    @call
    def whereabouts(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[Whereabouts]:
        """Where the rows say that these guests may be (absent: no row knows of it). ``host`` asks."""

    @call
    def evictions(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Eviction]:
        """The guests that the host has to remove, by uuid."""

    @call
    def evicted(self, ctx: RequestContext, host: str, uuids: list[str],
                since: dict[str, datetime.datetime] | None = None) -> None:
        """The host has removed these guests. ``since``: of the evictions that it has carried out (None: of all)."""

    @call
    def by_address(self, ctx: RequestContext, network_id: str, address: str) -> Instance:
        """The instance with a fixed address on a network (metadata service). InstanceNotFound."""
