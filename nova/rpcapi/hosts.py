"""RPC interfaces for services, hypervisors, aggregates and availability zones."""

from nova.context import RequestContext
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.node import ComputeNode
from nova.objects.hosts.overview import Overview
from nova.objects.hosts.service import Service
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance
from nova.rpcapi import CONDUCTOR, Interface


class Services(Interface, topic=CONDUCTOR, namespace="services"):
    """The services of os-services: nova-compute, nova-conductor and nova-scheduler."""

    def index(self, ctx: RequestContext, host: str | None = None, binary: str | None = None) -> list[Service]:
        """Return services, with their availability zone and ``up``."""

    def get(self, ctx: RequestContext, uuid: str) -> Service:
        """Return a service. Raises ServiceNotFound."""

    def update(self, ctx: RequestContext, service_id: str, disabled: bool | None = None,
               reason: str | None = None, forced_down: bool | None = None) -> Service:
        """Change a service by its uuid. Enabling clears the reason. Raises ServiceNotFound."""

    def update_by_host(self, ctx: RequestContext, host: str, binary: str, disabled: bool | None = None,
                       reason: str | None = None, forced_down: bool | None = None) -> Service:
        """Enable, disable or force down a service of a host. Raises HostBinaryNotFound."""

    def delete(self, ctx: RequestContext, service_id: str) -> None:
        """Delete a service by its uuid or, before 2.53, its integer id. Raises ServiceNotFound, ServiceInUse."""


class Hypervisors(Interface, topic=CONDUCTOR, namespace="hypervisors"):
    """Compute nodes, for operators."""

    def index(self, ctx: RequestContext, pattern: str | None = None, limit: int | None = None,
              marker: str | None = None, host: str | None = None) -> list[ComputeNode]:
        """Return nodes, optionally those whose hypervisor hostname contains ``pattern``, or those of ``host``.
        ``marker`` is an id or uuid. Raises MarkerNotFound."""

    def get(self, ctx: RequestContext, node_id: str) -> ComputeNode:
        """Return a node by its uuid or integer id. Raises ComputeHostNotFound."""

    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        """Return the servers on these hosts, with a few fields only."""


class Aggregates(Interface, topic=CONDUCTOR, namespace="aggregates"):
    """Management of host aggregates. Methods with an aggregate id raise AggregateNotFound."""

    def index(self, ctx: RequestContext) -> list[Aggregate]: ...

    def get(self, ctx: RequestContext, aggregate_id: int) -> Aggregate: ...

    def create(self, ctx: RequestContext, name: str, availability_zone: str | None = None) -> Aggregate:
        """Create an aggregate. Raises AggregateNameExists."""

    def update(self, ctx: RequestContext, aggregate_id: int, name: str | None = None,
               availability_zone: str | None = None) -> Aggregate:
        """Change an aggregate. Raises AggregateNameExists, InvalidAggregateAction (zone change with servers in it)."""

    def delete(self, ctx: RequestContext, aggregate_id: int) -> None:
        """Delete an empty aggregate. Raises InvalidAggregateAction if it has hosts."""

    def add_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        """Add a host to an aggregate. Raises ComputeHostNotFound, AggregateHostExists, AggregateHostConflict (zone)."""

    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        """Remove a host from an aggregate. Raises AggregateHostNotFound, AggregateHostConflict."""

    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        """Merge the metadata; a value None deletes its key."""

    def cache_images(self, ctx: RequestContext, aggregate_id: int, images: list[Image]) -> None:
        """Request all hosts of the aggregate to cache these images, a few hosts at a time."""


class Zones(Interface, topic=CONDUCTOR, namespace="zones"):
    """Availability zones are host aggregates with the metadata key availability_zone."""

    def index(self, ctx: RequestContext) -> dict[str, bool]:
        """Return for each zone except the internal zone True if it has an enabled compute service."""

    def detail(self, ctx: RequestContext) -> dict[str, list[Service]]:
        """Return the services of each zone, including the internal zone."""


class Overviews(Interface, topic=CONDUCTOR, namespace="overview"):
    """The overview of a deployment."""

    def get(self, ctx: RequestContext, limit: int) -> Overview:
        """Return at most ``limit`` each of nodes, running operations, and failures among the newest 10,000 actions."""
