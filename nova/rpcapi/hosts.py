"""Services, hypervisors, availability zones, aggregates, server groups."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.compute import Aggregate, ComputeNode, ServerGroup, Service
from nova.objects.instance import Instance
from nova.rpcapi import CONDUCTOR


class Services(Interface):
    """os-services: nova-compute, nova-conductor, nova-scheduler (never the API or metadata)."""

    topic = CONDUCTOR
    namespace = "services"

    @call
    def index(self, ctx: RequestContext, host: str | None = None, binary: str | None = None) -> list[Service]:
        """With availability zone and ``up`` filled in."""

    @call
    def get(self, ctx: RequestContext, uuid: str) -> Service:
        """Raises ServiceNotFound."""

    @call
    def update(self, ctx: RequestContext, service_id: str, disabled: bool | None = None,
               reason: str | None = None, forced_down: bool | None = None) -> Service:
        """``service_id`` is a uuid. Enabling clears the reason. Raises ServiceNotFound."""

    @call
    def update_by_host(self, ctx: RequestContext, host: str, binary: str, disabled: bool | None = None,
                       reason: str | None = None, forced_down: bool | None = None) -> Service:
        """Raises HostBinaryNotFound."""

    @call
    def delete(self, ctx: RequestContext, service_id: str) -> None:
        """``service_id`` is a uuid or (before 2.53) an integer. Raises ServiceNotFound, ServiceInUse."""


class Hypervisors(Interface):
    topic = CONDUCTOR
    namespace = "hypervisors"

    @call
    def index(self, ctx: RequestContext, pattern: str | None = None, limit: int | None = None,
              marker: str | None = None) -> list[ComputeNode]:
        """``pattern`` is matched anywhere in the hypervisor hostname. ``marker``: id or uuid; MarkerNotFound."""

    @call
    def get(self, ctx: RequestContext, node_id: str) -> ComputeNode:
        """By uuid or integer id. Raises ComputeHostNotFound."""

    @call
    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        """The (brief) servers on these hosts."""


class Zones(Interface):
    """Availability zones are host aggregates with the metadata key availability_zone."""

    topic = CONDUCTOR
    namespace = "zones"

    @call
    def index(self, ctx: RequestContext) -> dict[str, bool]:
        """Zone -> is there an enabled compute service in it (the default zone included, internal not)."""

    @call
    def detail(self, ctx: RequestContext) -> dict[str, list[Service]]:
        """Zone -> the services in it, the internal zone included."""


class Aggregates(Interface):
    """Methods that name an aggregate raise AggregateNotFound."""

    topic = CONDUCTOR
    namespace = "aggregates"

    @call
    def index(self, ctx: RequestContext) -> list[Aggregate]: ...

    @call
    def get(self, ctx: RequestContext, aggregate_id: int) -> Aggregate: ...

    @call
    def create(self, ctx: RequestContext, name: str, availability_zone: str | None = None) -> Aggregate:
        """Raises AggregateNameExists."""

    @call
    def update(self, ctx: RequestContext, aggregate_id: int, name: str | None = None,
               availability_zone: str | None = None) -> Aggregate:
        """Raises AggregateNameExists, InvalidAggregateAction (zone change with servers in it)."""

    @call
    def delete(self, ctx: RequestContext, aggregate_id: int) -> None:
        """Raises InvalidAggregateAction (not empty)."""

    @call
    def add_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        """Raises ComputeHostNotFound, AggregateHostExists, AggregateHostConflict (another zone)."""

    @call
    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        """Raises AggregateHostNotFound, AggregateHostConflict."""

    @call
    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        """Merge; null deletes a key."""


class ServerGroups(Interface):
    topic = CONDUCTOR
    namespace = "server_groups"

    @call
    def index(self, ctx: RequestContext, project_id: str | None, limit: int | None = None,
              offset: int = 0) -> list[ServerGroup]: ...

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> ServerGroup:
        """Raises ServerGroupNotFound."""

    @call
    def create(self, ctx: RequestContext, group: ServerGroup) -> ServerGroup:
        """Raises QuotaLimit ("Quota exceeded, too many server groups.")."""

    @call
    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None: ...
