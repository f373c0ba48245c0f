"""Services, for operators."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from nova import bus, exception
from nova.conductor import announcer
from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, notifying, reads, write
from nova.context import RequestContext
from nova.db.hosts import aggregates, compute_nodes, drains, precaches, services
from nova.db.servers import server_migrations
from nova.db.volumes import share_accesses
from nova.objects.hosts.service import Service

LOG = logging.getLogger(__name__)

# A service, and whether its row counts as up.
Changed = tuple[Service, bool]
# Seconds that a request to force up a host waits for the host to confirm evictions, and between two checks of the rows.
_EVICTION_WAIT, _EVICTION_POLL = 5.0, 0.2


class Services(Endpoint):
    """Implements :class:`nova.rpcapi.hosts.Services`."""

    index = reads(services.index)

    def get(self, ctx: RequestContext, uuid: str) -> Service:
        return self.core.db.read(lambda connection: services.get(connection, uuid))

    def update(self, ctx: RequestContext, service_id: str, disabled: bool | None = None, reason: str | None = None,
               forced_down: bool | None = None) -> Service:
        return self._announced(self._after_evictions(ctx, lambda: write(
            self.core, ctx, services.update, notifications.service_changed, service_id, disabled, reason, forced_down)))

    def update_by_host(self, ctx: RequestContext, host: str, binary: str, disabled: bool | None = None,
                       reason: str | None = None, forced_down: bool | None = None) -> Service:
        change = notifying(self.core, ctx, services.update, notifications.service_changed)
        return self._announced(self._after_evictions(ctx, lambda: self.core.db.write(lambda connection: change(
            connection, services.uuid_of(connection, host, binary), disabled, reason, forced_down))))

    def _after_evictions(self, ctx: RequestContext, change: Callable[[], Changed]) -> Changed:
        """Run ``change``. If evacuated guests prevent it, request their removal from a running host and retry.

        Raises HostEvacuated if the host has not confirmed every removal by then.
        """
        deadline, requested = time.monotonic() + _EVICTION_WAIT, False
        while True:
            try:
                return change()
            except exception.HostEvacuated as refused:
                if not refused.kwargs["running"] or time.monotonic() >= deadline:
                    raise
                if not requested:
                    requested = True
                    self._request_evictions(ctx, refused.kwargs["host"])
            time.sleep(_EVICTION_POLL)

    def _request_evictions(self, ctx: RequestContext, host: str) -> None:
        """Request the removal of evacuated guests from the host."""
        uuids = self.core.db.read(lambda connection: server_migrations.unconfirmed_evacuations(connection, host))
        LOG.info("Forcing up host %s: requesting the removal of %d evacuated guests from it", host, len(uuids))
        try:
            for uuid in uuids:
                self.core.compute_at(host).reap(ctx, uuid)
        except exception.ServiceUnavailable as error:  # it just stopped; HostEvacuated names the missing evictions
            LOG.warning("Cannot request the removal of evacuated guests from host %s: %s", host, error)

    def delete(self, ctx: RequestContext, service_id: str) -> None:
        def transaction(connection: Any) -> tuple[Service, list[str], bool]:
            service = services.lock(connection, service_id)
            removed: list[str] = []
            changed = False
            if service.binary == services.COMPUTE:
                removed = compute_nodes.remove_host(connection, service.host)
                share_accesses.check_host(connection, service.host)
                changed = aggregates.forget_host(connection, service.host)
                drains.forget_host(connection, service.host)
                precaches.forget(connection, service.host)
            self.core.outbox.notify(connection, ctx, lambda builder: notifications.service(builder, "delete", service))
            services.delete(connection, service)
            return service, removed, changed

        service, removed, changed = self.core.db.write(transaction)
        LOG.info("%s on %s was deleted with %d compute nodes", service.binary, service.host, len(removed))
        bus.forget(self.core.transport, service.topic, service.host)
        self.core.fleet.removed(removed)
        if changed:
            self.core.fleet.reload()

    def _announced(self, changed: Changed) -> Service:
        service = changed[0]
        LOG.info("%s on %s is now %s%s", service.binary, service.host, "disabled" if service.disabled else "enabled",
                 ", forced down" if service.forced_down else "")
        announcer.publish_services(self.core, [changed])
        return service
