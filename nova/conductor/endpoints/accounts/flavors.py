"""Flavors, their extra specs and their access lists."""

from __future__ import annotations

import sqlalchemy as sa

from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, reads, write, writes
from nova.context import RequestContext
from nova.db.accounts import flavors
from nova.objects.accounts.flavor import Flavor


class Flavors(Endpoint):
    """Implements :class:`nova.rpcapi.accounts.Flavors`."""

    index = reads(flavors.index)
    get = reads(flavors.get)
    create = writes(flavors.create, notify=notifications.flavor_created)
    delete = writes(flavors.delete, notify=notifications.flavor_deleted)
    set_extra_specs = writes(flavors.set_extra_specs, notify=notifications.flavor_changed)
    delete_extra_spec = writes(flavors.delete_extra_spec, notify=notifications.flavor_changed)
    access = reads(flavors.access)
    add_access = writes(flavors.add_access, notify=notifications.flavor_changed)
    remove_access = writes(flavors.remove_access, notify=notifications.flavor_changed)

    def update(self, ctx: RequestContext, flavorid: str, description: str | None) -> Flavor:
        def describe(connection: sa.Connection, flavorid: str) -> Flavor:
            return flavors.update(connection, flavorid, description=description)

        return write(self.core, ctx, describe, notifications.flavor_changed, flavorid)
