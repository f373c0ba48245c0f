"""Endpoints of the Placement API. Changes in trees of compute nodes are published to the schedulers."""

import logging
from collections.abc import Callable

import sqlalchemy as sa

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.context import RequestContext
from nova.db.hosts import compute_nodes
from nova.db.placement import candidates, consumers, names, providers
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import CandidateRequest, Candidates, ConsumerChange, ProviderView
from nova.rpcapi import placement as placement_api

LOG = logging.getLogger(__name__)


class Placement(Endpoint, placement_api.Placement):
    index = reads(providers.index)
    get = reads(providers.get)
    list_names = reads(names.index)
    has_name = reads(names.exists)
    add_name = writes(names.register)
    remove_name = writes(names.remove)
    rename_class = writes(names.rename_class)
    get_consumer = reads(consumers.get)
    consumers_of = reads(consumers.of_provider)
    usages = reads(consumers.usages)

    def create(self, ctx: RequestContext, name: str, uuid: str | None = None,
               parent_uuid: str | None = None) -> ProviderView:
        return self._changed("created", lambda connection: providers.create(connection, name, uuid, parent_uuid))

    def update(self, ctx: RequestContext, uuid: str, name: str, parent_uuid: str | None, reparent: bool,
               move: bool) -> ProviderView:
        old_root = self.core.db.read(lambda connection: providers.get(connection, uuid)).root_uuid
        provider = self._changed("updated", lambda connection: providers.update(
            connection, uuid, name, parent_uuid, reparent, move))
        if provider.root_uuid != old_root:
            self._publish(old_root)
        return provider

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        root = self.core.db.write(lambda connection: providers.delete(connection, uuid))
        LOG.info("Resource provider %s was deleted", uuid)
        self._publish(root)

    def set_inventories(self, ctx: RequestContext, uuid: str, inventories: dict[str, Inventory],
                        generation: int | None = None, mode: str = "replace") -> ProviderView:
        return self._changed("got inventories", lambda connection: providers.set_inventories(
            connection, uuid, inventories, generation, mode))

    def set_traits(self, ctx: RequestContext, uuid: str, traits: list[str],
                   generation: int | None = None) -> ProviderView:
        return self._changed("got traits", lambda connection: providers.set_traits(
            connection, uuid, traits, generation))

    def set_aggregates(self, ctx: RequestContext, uuid: str, uuids: list[str],
                       generation: int | None = None) -> ProviderView:
        return self._changed("got aggregates", lambda connection: providers.set_aggregates(
            connection, uuid, uuids, generation))

    def allocate(self, ctx: RequestContext, changes: list[ConsumerChange]) -> None:
        self.core.fleet.states(self.core.db.write(lambda connection: consumers.replace(connection, changes)))
        LOG.info("Allocations of consumers %s were replaced", ", ".join(change.uuid for change in changes))

    def deallocate(self, ctx: RequestContext, uuid: str) -> None:
        self.core.fleet.states(self.core.db.write(lambda connection: consumers.remove(connection, uuid)))
        LOG.info("Allocations of consumer %s were removed", uuid)

    def find_candidates(self, ctx: RequestContext, request: CandidateRequest) -> Candidates:
        return self.core.db.read(lambda connection: candidates.find(connection, request))

    def _changed(self, what: str, change: Callable[[sa.Connection], ProviderView]) -> ProviderView:
        """Run a change of a provider and publish the state of its compute node."""
        provider = self.core.db.write(change)
        LOG.info("Resource provider %a (%s) %s", provider.name, provider.uuid, what)
        self._publish(provider.root_uuid)
        return provider

    def _publish(self, root: str) -> None:
        self.core.fleet.states(self.core.db.read(lambda connection: compute_nodes.states_of(connection, [root])))
