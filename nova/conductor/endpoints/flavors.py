"""Flavors, their extra specs and their access lists."""

from __future__ import annotations

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import flavors as db
from nova.objects.flavor import Flavor, FlavorQuery


class Flavors:
    """Implements :class:`nova.rpcapi.flavors.Flavors`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, query: FlavorQuery) -> list[Flavor]:
        return self.core.db.read(lambda connection: db.index(connection, query))

    def get(self, ctx: RequestContext, flavorid: str, project_id: str | None = None) -> Flavor:
        return self.core.db.read(lambda connection: db.get(connection, flavorid, project_id))

    def create(self, ctx: RequestContext, flavor: Flavor) -> Flavor:
        return self.core.db.write(lambda connection: db.create(connection, flavor))

    def update(self, ctx: RequestContext, flavorid: str, description: str | None) -> Flavor:
        return self.core.db.write(lambda connection: db.update(connection, flavorid, description=description))

    def delete(self, ctx: RequestContext, flavorid: str) -> None:
        self.core.db.write(lambda connection: db.delete(connection, flavorid))

    def set_extra_specs(self, ctx: RequestContext, flavorid: str, specs: dict[str, str]) -> dict[str, str]:
        return self.core.db.write(lambda connection: db.set_extra_specs(connection, flavorid, specs))

    def delete_extra_spec(self, ctx: RequestContext, flavorid: str, key: str) -> None:
        self.core.db.write(lambda connection: db.delete_extra_spec(connection, flavorid, key))

    def access(self, ctx: RequestContext, flavorid: str) -> list[str]:
        return self.core.db.read(lambda connection: db.access(connection, flavorid))

    def add_access(self, ctx: RequestContext, flavorid: str, project_id: str) -> list[str]:
        return self.core.db.write(lambda connection: db.add_access(connection, flavorid, project_id))

    def remove_access(self, ctx: RequestContext, flavorid: str, project_id: str) -> list[str]:
        return self.core.db.write(lambda connection: db.remove_access(connection, flavorid, project_id))
