"""Flavors, their extra specs and their access lists."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.context import RequestContext
from nova.db import flavors as db
from nova.objects.flavor import Flavor


class Flavors(Endpoint):
    """Implements :class:`nova.rpcapi.flavors.Flavors`."""

    index = reads(db.index)
    get = reads(db.get)
    create = writes(db.create)
    delete = writes(db.delete)
    set_extra_specs = writes(db.set_extra_specs)
    delete_extra_spec = writes(db.delete_extra_spec)
    access = reads(db.access)
    add_access = writes(db.add_access)
    remove_access = writes(db.remove_access)

    def update(self, ctx: RequestContext, flavorid: str, description: str | None) -> Flavor:
        return self.core.db.write(lambda connection: db.update(connection, flavorid, description=description))
