"""Host aggregates. A change of an aggregate affects all its hosts, so schedulers read the fleet again. An added or
removed host is published individually."""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa

from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, notifying, reads, write, writes
from nova.context import RequestContext
from nova.db.hosts import aggregates, compute_nodes, precaches
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.scheduling import HostState
from nova.objects.images.image import Image

LOG = logging.getLogger(__name__)

# The nodes of a host with more nodes than this are not published individually.
_MOST_NODES = 500


class Aggregates(Endpoint):
    """Implements :class:`nova.rpcapi.hosts.Aggregates`."""

    index = reads(aggregates.index)
    get = reads(aggregates.get)

    # Only an aggregate without hosts can be deleted, so schedulers need no update.
    delete = writes(aggregates.delete, notify=notifications.aggregate("delete"))

    def create(self, ctx: RequestContext, name: str, availability_zone: str | None = None) -> Aggregate:
        return write(self.core, ctx, aggregates.create, notifications.aggregate_created, name, availability_zone)

    def update(self, ctx: RequestContext, aggregate_id: int, name: str | None = None,
               availability_zone: str | None = None) -> Aggregate:
        return self._changed(write(self.core, ctx, aggregates.update, notifications.aggregate("update_prop"),
                                   aggregate_id, name, availability_zone))

    def add_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._moved(notifying(self.core, ctx, aggregates.add_host, notifications.aggregate("add_host")),
                           aggregate_id, host)

    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._moved(notifying(self.core, ctx, aggregates.remove_host, notifications.aggregate("remove_host")),
                           aggregate_id, host)

    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        return self._changed(write(self.core, ctx, aggregates.set_metadata, notifications.aggregate("update_metadata"),
                                   aggregate_id, metadata))

    def cache_images(self, ctx: RequestContext, aggregate_id: int, images: list[Image]) -> None:
        def request(connection: sa.Connection, aggregate_id: int) -> Aggregate:
            aggregate = aggregates.lock(connection, aggregate_id)
            precaches.ask(connection, aggregate_id, aggregate.hosts, images)
            return aggregate

        aggregate = write(self.core, ctx, request, notifications.aggregate("cache_images"), aggregate_id)
        LOG.info("Requested %d hosts of aggregate %s to cache images %s", len(aggregate.hosts), aggregate.name,
                 ", ".join(image.id for image in images))

    def _moved(self, change: Callable[[sa.Connection, int, str], Aggregate], aggregate_id: int, host: str) -> Aggregate:
        def transaction(connection: sa.Connection) -> tuple[Aggregate, list[HostState]]:
            return change(connection, aggregate_id, host), compute_nodes.renewed(connection, host, _MOST_NODES + 1)

        aggregate, states = self.core.db.write(transaction)
        LOG.info("Aggregate %s now has hosts %s", aggregate.name, aggregate.hosts)
        if len(states) > _MOST_NODES:
            self.core.fleet.reload()
        else:
            self.core.fleet.states(states)
        return aggregate

    def _changed(self, aggregate: Aggregate) -> Aggregate:
        LOG.info("Aggregate %s now has hosts %s and metadata %s", aggregate.name, aggregate.hosts, aggregate.metadata)
        self.core.fleet.reload()
        return aggregate
