"""The RPC interface of host aggregates."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.images.image import Image
from nova.rpcapi import CONDUCTOR


class Aggregates(Interface):
    """Management of host aggregates. Methods with an aggregate id raise AggregateNotFound."""

    topic = CONDUCTOR
    namespace = "aggregates"

    @call
    def index(self, ctx: RequestContext) -> list[Aggregate]: ...

    @call
    def get(self, ctx: RequestContext, aggregate_id: int) -> Aggregate: ...

    @call
    def create(self, ctx: RequestContext, name: str, availability_zone: str | None = None) -> Aggregate:
        """Create an aggregate. Raises AggregateNameExists."""

    @call
    def update(self, ctx: RequestContext, aggregate_id: int, name: str | None = None,
               availability_zone: str | None = None) -> Aggregate:
        """Change an aggregate. Raises AggregateNameExists, InvalidAggregateAction (zone change with servers in it)."""

    @call
    def delete(self, ctx: RequestContext, aggregate_id: int) -> None:
        """Delete an empty aggregate. Raises InvalidAggregateAction if it has hosts."""

    @call
    def add_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        """Raises ComputeHostNotFound, AggregateHostExists, AggregateHostConflict (another zone)."""

    @call
    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        """Raises AggregateHostNotFound, AggregateHostConflict."""

    @call
    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        """Merge the metadata; a value None deletes its key."""

    @call
    def cache_images(self, ctx: RequestContext, aggregate_id: int, images: list[Image]) -> None:
        """Request all hosts of the aggregate to cache these images, a few hosts at a time."""
