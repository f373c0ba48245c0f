"""The RPC interface for reports of compute hosts about their nodes and guests."""

from __future__ import annotations

import datetime

from nova.bus import Interface, by_hosts, call
from nova.context import RequestContext
from nova.objects.hosts.node import ComputeNode
from nova.objects.images.image_cache import CacheResult
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import Eviction, ExpectedGuest, GuestStatus, Resumed, Whereabouts
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeCounters
from nova.rpcapi import CONDUCTOR


class Guests(Interface):
    """Reports of compute hosts, and requests for the servers that should run on them."""

    topic = CONDUCTOR
    namespace = "guests"

    @by_hosts
    @call
    def report_nodes(self, ctx: RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        """Store the inventories and traits of all nodes of a host, and return the nodes with their uuids.

        A host with many nodes reports them in pages: all nodes with uuids after ``after`` and up to ``upto``
        (None: the rest). The driver must define the uuid of every node then.
        """

    @by_hosts
    @call
    def on_host(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Instance]:
        """Return the instances that may exist on a host, including incoming ones, ordered by uuid."""

    @by_hosts
    @call
    def expected(self, ctx: RequestContext, host: str, limit: int = 1000,
                 marker: str | None = None) -> list[ExpectedGuest]:
        """Return the same instances as on_host, with only the fields for a comparison with guests."""

    @by_hosts
    @call
    def described(self, ctx: RequestContext, uuids: list[str]) -> list[Instance]:
        """Return those of the instances that exist. A host gets only instances that may exist on it."""

    @by_hosts
    @call
    def power_states(self, ctx: RequestContext, host: str, guests: list[GuestStatus]) -> None:
        """Report changed power states of guests, from events or the periodic sync.

        The rows are updated, or an operation restores the power state of the guest.
        """

    @by_hosts
    @call
    def whereabouts(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[Whereabouts]:
        """Return for each guest whether it may exist on ``host``. Guests without any row are omitted."""

    @by_hosts
    @call
    def evictions(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Eviction]:
        """Return the evictions (guests that the host must remove), ordered by uuid."""

    @by_hosts
    @call
    def evicted(self, ctx: RequestContext, host: str, uuids: list[str],
                since: dict[str, datetime.datetime] | None = None) -> None:
        """Report removed guests. ``since`` holds the times of the executed evictions (None: all of them)."""

    @by_hosts
    @call
    def resume(self, ctx: RequestContext, host: str, waiting: list[str], begun: list[str], at_once: int) -> Resumed:
        """Start guests of ``waiting`` after a reboot of the host, so that at most ``at_once`` start at the same time.

        ``begun`` lists the guests whose start was requested before. Returns the remaining entries of both lists:
        servers that are no longer ACTIVE on the host, and completed starts, are removed. No guest is started while the
        service is forced down.
        """

    @by_hosts
    @call
    def images_cached(self, ctx: RequestContext, host: str, results: list[CacheResult]) -> None:
        """Report the results of requests to cache images."""

    @by_hosts
    @call
    def volumes_used(self, ctx: RequestContext, host: str, counters: list[VolumeCounters]) -> None:
        """Report I/O counters of volumes, which are sent as notifications."""

    @by_hosts
    @call
    def hypervisor_lost(self, ctx: RequestContext, host: str, address: str, failure: Failure) -> None:
        """Report that the host at ``address`` cannot reach its hypervisor, which is sent as a notification."""

    @by_hosts
    @call
    def by_address(self, ctx: RequestContext, network_id: str, address: str) -> Instance:
        """Return the instance with a fixed address on a network, for the metadata service. Raises InstanceNotFound."""

    @by_hosts
    @call
    def set_password(self, ctx: RequestContext, uuid: str, items: dict[str, str]) -> None:
        """Store the encrypted password that a guest posted, as items of system_metadata.

        Raises InstanceNotFound, and Conflict if the guest posted a password before.
        """
