"""Host aggregates. A change of one moves all its hosts, so schedulers read the fleet anew; a host that comes or goes
is told by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.context import RequestContext
from nova.db import aggregates as db
from nova.db import compute_nodes
from nova.objects.aggregate import Aggregate
from nova.objects.scheduling import HostState

LOG = logging.getLogger(__name__)

# A host with more nodes is not told node by node.
_MOST_NODES = 500


class Aggregates(Endpoint):
    """Implements :class:`nova.rpcapi.aggregates.Aggregates`."""

    index = reads(db.index)
    get = reads(db.get)

    def create(self, ctx: RequestContext, name: str, availability_zone: str | None = None) -> Aggregate:
        return self.core.db.write(lambda connection: db.create(connection, name, availability_zone))

    def update(self, ctx: RequestContext, aggregate_id: int, name: str | None = None,
               availability_zone: str | None = None) -> Aggregate:
        return self._changed(self.core.db.write(
            lambda connection: db.update(connection, aggregate_id, name, availability_zone)))

    def delete(self, ctx: RequestContext, aggregate_id: int) -> None:
        # Only an aggregate without hosts can go: no scheduler has to hear of it.
        self.core.db.write(lambda connection: db.delete(connection, aggregate_id))

    def add_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._moved(db.add_host, aggregate_id, host)

    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._moved(db.remove_host, aggregate_id, host)

    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        return self._changed(self.core.db.write(
            lambda connection: db.set_metadata(connection, aggregate_id, metadata)))

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
