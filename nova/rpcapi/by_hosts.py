"""RPC interfaces that hosts and schedulers call: guests, heartbeats, reports of steps, networks and the fleet."""

import datetime
from typing import Any

from nova.bus import brief_cast, by_hosts, slow_call
from nova.context import RequestContext
from nova.objects.hosts.node import ComputeNode
from nova.objects.hosts.scheduling import FleetPage
from nova.objects.hosts.service import Load, Service
from nova.objects.images.image_cache import CacheResult
from nova.objects.networks.network import Peers, RuleSet, ServedDomain
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import Eviction, ExpectedGuest, GuestStatus, Resumed, Whereabouts
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepOrder, StepReport
from nova.objects.volumes.volume import VolumeCounters
from nova.rpcapi import CONDUCTOR, HEARTBEATS, REPORTS, Interface


class Guests(Interface, topic=CONDUCTOR, namespace="guests"):
    """Reports of compute hosts, and requests for the servers that should run on them."""

    @by_hosts
    def report_nodes(self, ctx: RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        """Store the inventories and traits of all nodes of a host, and return the nodes with their uuids. A host with
        many nodes reports them in pages: all nodes with uuids after ``after`` and up to ``upto`` (None: the rest). For
        pages the driver must define the uuid of every node."""

    @by_hosts
    def share_nodes(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[str]:
        """Return which of these nodes, which several hosts can manage, the host must manage. Takes over nodes and their
        servers from hosts that are down. Raises CallerRefused if the host may not share nodes."""

    @by_hosts
    def on_host(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Instance]:
        """Return the instances that may exist on a host, including incoming ones, ordered by uuid."""

    @by_hosts
    def expected(self, ctx: RequestContext, host: str, limit: int = 1000,
                 marker: str | None = None) -> list[ExpectedGuest]:
        """Return the same instances as on_host, with only the fields for a comparison with guests."""

    @by_hosts
    def described(self, ctx: RequestContext, uuids: list[str]) -> list[Instance]:
        """Return those of the instances that exist. A host gets only instances that may exist on it."""

    @by_hosts
    def power_states(self, ctx: RequestContext, host: str, guests: list[GuestStatus]) -> None:
        """Report changed power states of guests, from events or the periodic sync. The rows are updated, or an
        operation restores the power state of the guest."""

    @by_hosts
    def whereabouts(self, ctx: RequestContext, host: str, uuids: list[str]) -> list[Whereabouts]:
        """Return for each guest whether it may exist on ``host``. Guests without any row are omitted."""

    @by_hosts
    def evictions(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Eviction]:
        """Return the evictions (guests that the host must remove), ordered by uuid."""

    @by_hosts
    def evicted(self, ctx: RequestContext, host: str, uuids: list[str],
                since: dict[str, datetime.datetime] | None = None) -> None:
        """Report removed guests, so that their evictions are deleted. ``since``: the time of the executed eviction of
        each guest; None: delete evictions of any time."""

    @by_hosts
    def resume(self, ctx: RequestContext, host: str, waiting: list[str], begun: list[str], at_once: int) -> Resumed:
        """Start guests of ``waiting`` after a reboot of the host, so that at most ``at_once`` start at the same time.
        ``begun`` lists the guests whose start was requested before. Returns both lists without completed starts and
        servers that are no longer ACTIVE on the host. No guest is started while the service is forced down."""

    @by_hosts
    def images_cached(self, ctx: RequestContext, host: str, results: list[CacheResult]) -> None:
        """Report the results of requests to cache images."""

    @by_hosts
    def volumes_used(self, ctx: RequestContext, host: str, counters: list[VolumeCounters]) -> None:
        """Report I/O counters of volumes, which are sent as notifications."""

    @by_hosts
    def hypervisor_lost(self, ctx: RequestContext, host: str, address: str, failure: Failure) -> None:
        """Report that the host at ``address`` cannot reach its hypervisor, which is sent as a notification."""

    @by_hosts
    def by_address(self, ctx: RequestContext, network_id: str, address: str) -> Instance:
        """Return the instance with a fixed address on a network, for the metadata service. Raises InstanceNotFound."""

    @by_hosts
    def set_password(self, ctx: RequestContext, uuid: str, items: dict[str, str]) -> None:
        """Store the encrypted password that a guest posted, as items of system_metadata. Raises InstanceNotFound, and
        Conflict if the guest posted a password before."""


class Heartbeat(Interface, topic=HEARTBEATS, namespace="heartbeat", former_topic=CONDUCTOR):
    """Registrations and heartbeats of services."""

    @by_hosts
    @slow_call(5)
    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int,
                 identity: str | None = None, connector: dict[str, Any] | None = None,
                 belongs_to: str | None = None, returning: bool = False) -> Service:
        """Register a service that started, and create its row if it is new.

        ``identity`` identifies the machine, ``connector`` describes its access to volumes; both are stored.
        ``belongs_to`` is the deployment in which the host registered last, ``returning`` is True if the host had a row
        in this deployment. Raises HostIdentityMismatch, and the service must not start, if the database has another
        machine with this name or this machine with another name, belongs to another deployment, or has no row of a
        ``returning`` host."""

    @by_hosts
    @slow_call(5)
    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str],
             load: Load | None = None) -> list[str]:
        """Record a heartbeat and renew the leases of the ``running`` actions. ``load`` has the statistics of each
        worker process. Returns the actions that this service must no longer run."""

    @by_hosts
    @slow_call(5)
    def beat_all(self, ctx: RequestContext, binary: str, running: dict[str, list[str]]) -> list[str]:
        """Record heartbeats of several hosts of one process; ``running`` maps each host to its actions. Returns the
        hosts without a registered service, which must register."""


class Engine(Interface, topic=REPORTS, namespace="engine", former_topic=CONDUCTOR):
    """Reports to the saga engine of conductors."""

    @by_hosts
    def step_done(self, ctx: RequestContext, report: StepReport) -> None:
        """Report the end of the steps that a conductor sent. Raises StaleReport if their attempt is not current."""

    @by_hosts
    @brief_cast(30)
    def progress(self, ctx: RequestContext, report: StepReport) -> None:
        """Report the start of the next sent step, or the progress of the running step. The message may get lost."""

    @by_hosts
    def begin(self, ctx: RequestContext, action_uuid: str, attempt: int, host: str) -> None:
        """Renew the lease of the sent steps before they start. Raises StaleReport if they are no longer current."""

    @by_hosts
    def resume(self, ctx: RequestContext, host: str) -> list[StepOrder]:
        """Return the unfinished steps of a host that has restarted, as new attempts."""

    @brief_cast(30)
    def handed_over(self, ctx: RequestContext) -> None:
        """Request an immediate check for expired leases, since a stopping conductor has left actions."""


class NetworkHosts(Interface, topic=CONDUCTOR, namespace="network_hosts"):
    """Requests of the network back ends of hosts."""

    @by_hosts
    @slow_call(10)
    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        """Report the tunnel ``address`` of a host, and the version of the stored peers (other hosts) of each network.
        ``complete``: the host has no further networks. Returns newer peers, and sends changes to the other hosts."""

    @by_hosts
    @slow_call(10)
    def rules(self, ctx: RequestContext, known: dict[str, int], grouped: bool = False) -> dict[str, RuleSet]:
        """Return the security group rules of guests with a version newer than in ``known``. Each group is sent
        once, with the first guest that needs it. ``grouped`` is ignored (False in requests of older hosts)."""

    @by_hosts
    @slow_call(10)
    def names(self, ctx: RequestContext, host: str, known: dict[str, int]) -> list[ServedDomain]:
        """Return DNS domains of the host that are newer than in ``known``, missing in it, or no longer needed. One call
        returns a limited number of domains; an empty list means that the host is up to date."""


class Fleet(Interface, topic=CONDUCTOR, namespace="fleet"):
    """The nodes of all hosts, for a scheduler that starts or has lost a message."""

    @slow_call(10)
    def page(self, ctx: RequestContext, marker: str | None = None, limit: int = 500) -> FleetPage:
        """Return a page of nodes after ``marker``."""
