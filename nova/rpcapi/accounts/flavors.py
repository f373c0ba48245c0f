"""The RPC interface of flavors, their extra specs and access lists."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.accounts.flavor import Flavor, FlavorQuery
from nova.rpcapi import CONDUCTOR


class Flavors(Interface):
    """Management of flavors. Methods with a flavorid raise FlavorNotFound."""

    topic = CONDUCTOR
    namespace = "flavors"

    @call
    def index(self, ctx: RequestContext, query: FlavorQuery) -> list[Flavor]:
        """Raises MarkerNotFound."""

    @call
    def get(self, ctx: RequestContext, flavorid: str, project_id: str | None = None) -> Flavor:
        """Return a flavor. With ``project_id`` private flavors without access for the project are not found."""

    @call
    def create(self, ctx: RequestContext, flavor: Flavor) -> Flavor:
        """Raises FlavorExists (name) or FlavorIdExists."""

    @call
    def update(self, ctx: RequestContext, flavorid: str, description: str | None) -> Flavor: ...

    @call
    def delete(self, ctx: RequestContext, flavorid: str) -> None:
        """Delete a flavor. Existing servers keep a copy of it."""

    @call
    def set_extra_specs(self, ctx: RequestContext, flavorid: str, specs: dict[str, str]) -> dict[str, str]:
        """Merge the extra specs and return all of them."""

    @call
    def delete_extra_spec(self, ctx: RequestContext, flavorid: str, key: str) -> None:
        """Raises FlavorExtraSpecsNotFound."""

    @call
    def access(self, ctx: RequestContext, flavorid: str) -> list[str]:
        """Return the ids of the projects with access to a private flavor."""

    @call
    def add_access(self, ctx: RequestContext, flavorid: str, project_id: str) -> list[str]:
        """Raises FlavorAccessExists."""

    @call
    def remove_access(self, ctx: RequestContext, flavorid: str, project_id: str) -> list[str]:
        """Raises FlavorAccessNotFound."""
