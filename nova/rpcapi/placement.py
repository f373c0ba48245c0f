"""The RPC interface for the Placement API: resource providers, allocations and candidates."""

from nova.context import RequestContext
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import (
    CandidateRequest,
    Candidates,
    ConsumerChange,
    ConsumerView,
    ProviderFilter,
    ProviderView,
    TypeUsage,
)
from nova.rpcapi import CONDUCTOR, Interface


class Placement(Interface, topic=CONDUCTOR, namespace="placement"):
    """Providers, inventories and allocations. Methods with the uuid of a provider raise ProviderNotFound; changes of
    rows that Nova manages raise OwnedByNova. An outdated ``generation`` raises ConcurrentUpdate (None: not checked)."""

    def index(self, ctx: RequestContext, wanted: ProviderFilter) -> list[ProviderView]:
        """Return providers, without inventories, traits and aggregates. Raises Invalid for unknown names."""

    def get(self, ctx: RequestContext, uuid: str) -> ProviderView: ...

    def create(self, ctx: RequestContext, name: str, uuid: str | None = None,
               parent_uuid: str | None = None) -> ProviderView:
        """Create a resource provider. Raises UnknownProvider, DuplicateProvider, PlacementConflict."""

    def update(self, ctx: RequestContext, uuid: str, name: str, parent_uuid: str | None, reparent: bool,
               move: bool) -> ProviderView:
        """Rename a provider and, if ``reparent``, set its parent. ``move``: allowed even if it already has a parent.
        Raises UnknownProvider, DuplicateProvider, Invalid."""

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Delete a resource provider. Raises ProviderHasChildren, ProviderInUse."""

    def set_inventories(self, ctx: RequestContext, uuid: str, inventories: dict[str, Inventory],
                        generation: int | None = None, mode: str = "replace") -> ProviderView:
        """Change inventories: replace all, create or update the given classes, or delete them. Raises InventoryInUse,
        Invalid, NotFound, PlacementConflict."""

    def set_traits(self, ctx: RequestContext, uuid: str, traits: list[str],
                   generation: int | None = None) -> ProviderView:
        """Replace the traits of a provider. Raises Invalid for an unknown trait."""

    def set_aggregates(self, ctx: RequestContext, uuid: str, uuids: list[str],
                       generation: int | None = None) -> ProviderView: ...

    def list_names(self, ctx: RequestContext, kind: str, associated: bool | None = None) -> list[str]:
        """Return the names of traits or resource classes. ``associated``: only traits that a provider has (True), or
        that no provider has (False)."""

    def has_name(self, ctx: RequestContext, kind: str, name: str) -> bool: ...

    def add_name(self, ctx: RequestContext, kind: str, name: str) -> bool:
        """Register a custom trait or resource class; return False if it exists."""

    def remove_name(self, ctx: RequestContext, kind: str, name: str) -> None:
        """Delete a custom trait or class. Raises Invalid (a standard name), NotFound, PlacementConflict (in use)."""

    def rename_class(self, ctx: RequestContext, name: str, new: str) -> None:
        """Rename a custom resource class. Raises Invalid, NotFound, PlacementConflict."""

    def get_consumer(self, ctx: RequestContext, uuid: str) -> ConsumerView | None:
        """Return the allocations of a consumer; None if it has none."""

    def consumers_of(self, ctx: RequestContext, uuid: str) -> list[ConsumerView]:
        """Return the consumers of a provider with their allocations from it."""

    def allocate(self, ctx: RequestContext, changes: list[ConsumerChange]) -> None:
        """Replace the allocations of consumers. Raises UnknownProvider, ConsumerConflict, Invalid, PlacementConflict.
        """

    def deallocate(self, ctx: RequestContext, uuid: str) -> None:
        """Remove the allocations of a consumer. Raises NotFound."""

    def usages(self, ctx: RequestContext, project_id: str, user_id: str | None = None) -> dict[str, TypeUsage]:
        """Return the usage of a project (and user) by type of consumer."""

    def find_candidates(self, ctx: RequestContext, request: CandidateRequest) -> Candidates:
        """Return allocation candidates. Raises Invalid for unknown names."""
