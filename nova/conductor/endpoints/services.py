"""Services as operators see and change them."""

from __future__ import annotations

import logging
from typing import Any

from nova import bus
from nova.conductor import announcer
from nova.conductor.endpoints import telling
from nova.conductor.endpoints.derived import Endpoint, reads, told, write
from nova.context import RequestContext
from nova.db import aggregates, compute_nodes, drains, precaches, share_accesses
from nova.db import services as db
from nova.objects.service import Service

LOG = logging.getLogger(__name__)


class Services(Endpoint):
    """Implements :class:`nova.rpcapi.services.Services`."""

    index = reads(db.index)

    def get(self, ctx: RequestContext, uuid: str) -> Service:
        return self.core.db.read(lambda connection: db.get(connection, uuid))

    def update(self, ctx: RequestContext, service_id: str, disabled: bool | None = None, reason: str | None = None,
               forced_down: bool | None = None) -> Service:
        return self._announced(write(
            self.core, ctx, db.update, telling.service_changed, service_id, disabled, reason, forced_down))

    def update_by_host(self, ctx: RequestContext, host: str, binary: str, disabled: bool | None = None,
                       reason: str | None = None, forced_down: bool | None = None) -> Service:
        change = told(self.core, ctx, db.update, telling.service_changed)
        return self._announced(self.core.db.write(lambda connection: change(
            connection, db.uuid_of(connection, host, binary), disabled, reason, forced_down)))

    def delete(self, ctx: RequestContext, service_id: str) -> None:
        def transaction(connection: Any) -> tuple[Service, list[str], bool]:
            service = db.lock(connection, service_id)
            removed: list[str] = []
            changed = False
            if service.binary == db.COMPUTE:
                removed = compute_nodes.remove_host(connection, service.host)
                share_accesses.check_host(connection, service.host)
                changed = aggregates.forget_host(connection, service.host)
                drains.forget_host(connection, service.host)
                precaches.forget(connection, service.host)
            self.core.outbox.tell(connection, ctx, lambda teller: telling.service(teller, "delete", service))
            db.delete(connection, service)
            return service, removed, changed

        service, removed, changed = self.core.db.write(transaction)
        LOG.info("%s on %s was deleted with %d compute nodes", service.binary, service.host, len(removed))
        bus.forget(self.core.transport, service.topic, service.host)
        self.core.fleet.removed(removed)
        if changed:
            self.core.fleet.reload()

    def _announced(self, changed: tuple[Service, bool]) -> Service:
        service = changed[0]
        LOG.info("%s on %s is now %s%s", service.binary, service.host, "disabled" if service.disabled else "enabled",
                 ", forced down" if service.forced_down else "")
        announcer.publish_services(self.core, [changed])
        return service
