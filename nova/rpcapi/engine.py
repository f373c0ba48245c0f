"""What the services tell the conductor while they work: reports, heartbeats, inventories, guests."""

from __future__ import annotations

from nova.bus import Interface, call, cast, slow_call
from nova.context import RequestContext
from nova.objects.compute import ComputeNode, ExpectedGuest, GuestStatus, Load, Service
from nova.objects.instance import Instance, StepOrder, StepReport
from nova.objects.scheduling import FleetPage
from nova.rpcapi import CONDUCTOR


class Engine(Interface):
    """The saga engine's side of the journal."""

    topic = CONDUCTOR
    namespace = "engine"

    @call
    def step_done(self, ctx: RequestContext, report: StepReport) -> None:
        """The steps of an order ended. Raises StaleReport when the attempt is not the current one."""

    @cast
    def progress(self, ctx: RequestContext, report: StepReport) -> None:
        """The next step of the same order began; losing this loses nothing but a task_state."""

    @call
    def resume(self, ctx: RequestContext, host: str) -> list[StepOrder]:
        """The unfinished steps of a host that has just started, as new attempts."""

    @cast
    def handed_over(self, ctx: RequestContext) -> None:
        """A conductor that ends has left actions: look for expired leases now rather than later."""


class Heartbeat(Interface):
    """Liveness of services."""

    topic = CONDUCTOR
    namespace = "heartbeat"

    @slow_call(5)
    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int) -> Service:
        """A service started; makes its row if it is new."""

    @slow_call(5)
    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str],
             load: list[Load] | None = None) -> list[str]:
        """Alive, and running the steps of these actions (their leases are renewed).

        ``load``: of each worker process. Answers the actions among them that are no longer this service's to run.
        """

    @slow_call(5)
    def beat_all(self, ctx: RequestContext, binary: str, running: dict[str, list[str]]) -> list[str]:
        """Several hosts of one process are alive: host -> the actions whose steps it runs.

        Answers the hosts that have no such service (any more): they shall register.
        """


class Guests(Interface):
    """What a compute host knows and the rows should."""

    topic = CONDUCTOR
    namespace = "guests"

    @call
    def report_nodes(self, ctx: RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        """Inventories and traits of all nodes of a host; answers them with their uuids.

        A host with many nodes tells them by pages: all that have uuids after ``after`` and up to ``upto``
        (None: the rest). Then the driver must give every node its uuid.
        """

    @call
    def on_host(self, ctx: RequestContext, host: str, limit: int = 1000, marker: str | None = None) -> list[Instance]:
        """The instances that belong on a host, by uuid."""

    @call
    def expected(self, ctx: RequestContext, host: str, limit: int = 1000,
                 marker: str | None = None) -> list[ExpectedGuest]:
        """The same, and only what is compared with what runs there."""

    @call
    def power_states(self, ctx: RequestContext, host: str, guests: list[GuestStatus]) -> None:
        """Power states that changed on the host, seen by events or by the periodic sync.

        The rows follow, or an operation puts the guest right.
        """

    @call
    def known(self, ctx: RequestContext, uuids: list[str]) -> dict[str, str | None]:
        """Of these guests: uuid -> the host it belongs on (absent: there is no such instance)."""

    @call
    def by_address(self, ctx: RequestContext, network_id: str, address: str) -> Instance:
        """The instance with a fixed address on a network (metadata service). InstanceNotFound."""


class Fleet(Interface):
    """The whole fleet, for a scheduler that starts or has missed a delta."""

    topic = CONDUCTOR
    namespace = "fleet"

    @slow_call(10)
    def page(self, ctx: RequestContext, marker: str | None = None, limit: int = 500) -> FleetPage: ...
