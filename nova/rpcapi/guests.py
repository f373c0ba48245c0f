"""What a compute host tells of its nodes and guests."""

from __future__ import annotations

import datetime

from nova.bus import Interface, by_hosts, call
from nova.context import RequestContext
from nova.objects.action import Failure
from nova.objects.guest import Eviction, ExpectedGuest, GuestStatus, Resumed, Whereabouts
from nova.objects.image_cache import CacheResult
from nova.objects.instance import Instance
from nova.objects.node import ComputeNode
from nova.objects.volume import VolumeCounters
from nova.rpcapi import CONDUCTOR


class Guests(Interface):
    """What a compute host knows and the rows should."""

    topic = CONDUCTOR
    namespace = "guests"

    @by_hosts
    @call
    def report_nodes(self, ctx: RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        """Inventories and traits of all nodes of a host; returns them with their uuids.

        A host with many nodes tells them by pages: all that have uuids after ``after`` and up to ``upto``
        (None: the rest). Then the driver must give every node its uuid.
        """

    @by_hosts
    @call
    def on_host(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Instance]:
        """The instances that may be on a host (also those that are on their way), by uuid."""

    @by_hosts
    @call
    def expected(self, ctx: RequestContext, host: str, limit: int = 1000,
                 marker: str | None = None) -> list[ExpectedGuest]:
        """The same, and only what is compared with what runs there."""

    @by_hosts
    @call
    def described(self, ctx: RequestContext, uuids: list[str]) -> list[Instance]:
        """Those of these instances that exist; of a host's question those that may be there."""

    @by_hosts
    @call
    def power_states(self, ctx: RequestContext, host: str, guests: list[GuestStatus]) -> None:
        """Power states that changed on the host, seen by events or by the periodic sync.

        The rows follow, or an operation puts the guest right.
        """

    @by_hosts
    @call
    def whereabouts(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[Whereabouts]:
        """Whether the rows say that these guests may be on ``host``, which asks (absent: no row knows of it)."""

    @by_hosts
    @call
    def evictions(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Eviction]:
        """The guests that the host has to remove, by uuid."""

    @by_hosts
    @call
    def evicted(self, ctx: RequestContext, host: str, uuids: list[str],
                since: dict[str, datetime.datetime] | None = None) -> None:
        """The host has removed these guests. ``since``: of the evictions that it has carried out (None: of all)."""

    @by_hosts
    @call
    def resume(self, ctx: RequestContext, host: str, waiting: list[str], begun: list[str], at_once: int) -> Resumed:
        """The host was booted: start some of the guests that ``waiting`` names, so that ``at_once`` are being started.

        ``begun``: those that were begun before. Returns what is left of both: a server that is not ACTIVE there any
        more is no longer waited for, one whose operation has ended is no longer begun. Nothing is begun while an
        operator says that the host is down.
        """

    @by_hosts
    @call
    def images_cached(self, ctx: RequestContext, host: str, results: list[CacheResult]) -> None:
        """What has become of images that the host was asked to cache."""

    @by_hosts
    @call
    def volumes_used(self, ctx: RequestContext, host: str, counters: list[VolumeCounters]) -> None:
        """What the host's guests have done with volumes; it is told on the bus."""

    @by_hosts
    @call
    def hypervisor_lost(self, ctx: RequestContext, host: str, address: str, failure: Failure) -> None:
        """The host, which is at ``address``, cannot reach its hypervisor; it is told on the bus."""

    @by_hosts
    @call
    def by_address(self, ctx: RequestContext, network_id: str, address: str) -> Instance:
        """The instance with a fixed address on a network (metadata service). InstanceNotFound."""

    @by_hosts
    @call
    def set_password(self, ctx: RequestContext, uuid: str, items: dict[str, str]) -> None:
        """Keep what a guest has posted as its password (items of system_metadata).

        Raises InstanceNotFound, and Conflict when it has posted before.
        """
