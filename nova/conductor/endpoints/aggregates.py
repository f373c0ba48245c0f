"""Host aggregates. Every change may move hosts between zones, so schedulers read the fleet anew."""

from __future__ import annotations

import logging

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import aggregates as db
from nova.objects.compute import Aggregate

LOG = logging.getLogger(__name__)


class Aggregates:
    """Answers :class:`nova.rpcapi.hosts.Aggregates`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext) -> list[Aggregate]:
        return self.core.db.read(db.index)

    def get(self, ctx: RequestContext, aggregate_id: int) -> Aggregate:
        return self.core.db.read(lambda connection: db.get(connection, aggregate_id))

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
        return self._changed(self.core.db.write(lambda connection: db.add_host(connection, aggregate_id, host)))

    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._changed(self.core.db.write(lambda connection: db.remove_host(connection, aggregate_id, host)))

    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        return self._changed(self.core.db.write(
            lambda connection: db.set_metadata(connection, aggregate_id, metadata)))

    def _changed(self, aggregate: Aggregate) -> Aggregate:
        LOG.info("Aggregate %s now has hosts %s and metadata %s", aggregate.name, aggregate.hosts, aggregate.metadata)
        self.core.fleet.reload()
        return aggregate
