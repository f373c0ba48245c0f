"""Flavors, their extra specs and their access lists."""

from __future__ import annotations

import sqlalchemy as sa

from nova.conductor.endpoints import telling
from nova.conductor.endpoints.derived import Endpoint, reads, write, writes
from nova.context import RequestContext
from nova.db import flavors as db
from nova.objects.flavor import Flavor


class Flavors(Endpoint):
    """Implements :class:`nova.rpcapi.flavors.Flavors`."""

    index = reads(db.index)
    get = reads(db.get)
    create = writes(db.create, tells=telling.flavor_created)
    delete = writes(db.delete, tells=telling.flavor_deleted)
    set_extra_specs = writes(db.set_extra_specs, tells=telling.flavor_changed)
    delete_extra_spec = writes(db.delete_extra_spec, tells=telling.flavor_changed)
    access = reads(db.access)
    add_access = writes(db.add_access, tells=telling.flavor_changed)
    remove_access = writes(db.remove_access, tells=telling.flavor_changed)

    def update(self, ctx: RequestContext, flavorid: str, description: str | None) -> Flavor:
        def describe(connection: sa.Connection, flavorid: str) -> Flavor:
            return db.update(connection, flavorid, description=description)

        return write(self.core, ctx, describe, telling.flavor_changed, flavorid)
