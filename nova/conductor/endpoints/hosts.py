"""Endpoints of services, hypervisors, aggregates and availability zones."""

import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

from nova import bus, exception
from nova.conductor import announcer
from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, notifying, reads, write, writes
from nova.context import RequestContext
from nova.db.hosts import aggregates, compute_nodes, drains, precaches, services
from nova.db.maintenance import overview
from nova.db.servers import server_migrations, servers
from nova.db.volumes import share_accesses
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.service import Service
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance
from nova.rpcapi import hosts as hosts_api

LOG = logging.getLogger(__name__)

Changed = tuple[Service, bool]  # a service, and whether its row counts as up
# A request to force up a host waits at most so many seconds until the host confirms evictions, and checks the rows in
# this interval of seconds. After the limit the request fails.
_EVICTION_WAIT, _EVICTION_POLL = 5.0, 0.2


class Services(Endpoint, hosts_api.Services):
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
        """Run ``change``. If evacuated guests prevent it, request their removal from a running host and retry. Raises
        HostEvacuated if the host has not confirmed every removal after _EVICTION_WAIT seconds."""
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
        uuids = self.core.db.read(lambda connection: server_migrations.unconfirmed_evacuations(connection, host))
        LOG.info("Forcing up host %s: requesting the removal of %d evacuated guests from it", host, len(uuids))
        try:
            for uuid in uuids:
                self.core.compute_at(host).reap(ctx, uuid)
        except exception.ServiceUnavailable as error:  # the host stopped; the error HostEvacuated lists its evictions
            LOG.warning("Cannot request the removal of evacuated guests from host %s, waiting until the host checks "
                        "for evictions: %s", host, error)

    def delete(self, ctx: RequestContext, service_id: str) -> None:
        def transaction(connection: sa.Connection) -> tuple[Service, list[str], bool]:
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


_MOST_SERVERS = 10000  # maximum number of servers listed for the hosts of a request


class Hypervisors(Endpoint, hosts_api.Hypervisors):
    index = reads(compute_nodes.index)
    get = reads(compute_nodes.get)

    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        if not hosts:
            return []
        return self.core.db.read(lambda connection: servers.on_hosts_brief(connection, hosts, _MOST_SERVERS))


_MOST_NODES = 500  # maximum number of nodes of a host that are published; above it schedulers read the fleet again


class Aggregates(Endpoint, hosts_api.Aggregates):
    """Host aggregates. A change of an aggregate affects all its hosts, so schedulers read the fleet again. An added or
    removed host is published individually."""

    index = reads(aggregates.index)
    get = reads(aggregates.get)
    # Only an aggregate without hosts can be deleted, so schedulers need no update.
    delete = writes(aggregates.delete, notify=notifications.aggregate("delete"))
    create = writes(aggregates.create, notify=notifications.aggregate_created)

    def update(self, ctx: RequestContext, aggregate_id: int, name: str | None = None,
               availability_zone: str | None = None) -> Aggregate:
        return self._changed(write(self.core, ctx, aggregates.update, notifications.aggregate("update_prop"),
                                   aggregate_id, name, availability_zone))

    def add_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._moved(notifying(self.core, ctx, aggregates.add_host, notifications.aggregate("add_host")),
                           aggregate_id, host)

    def remove_host(self, ctx: RequestContext, aggregate_id: int, host: str) -> Aggregate:
        return self._moved(notifying(self.core, ctx, aggregates.remove_host, notifications.aggregate("remove_host")),
                           aggregate_id, host)

    def set_metadata(self, ctx: RequestContext, aggregate_id: int, metadata: dict[str, str | None]) -> Aggregate:
        return self._changed(write(self.core, ctx, aggregates.set_metadata, notifications.aggregate("update_metadata"),
                                   aggregate_id, metadata))

    def cache_images(self, ctx: RequestContext, aggregate_id: int, images: list[Image]) -> None:
        def request(connection: sa.Connection, aggregate_id: int) -> Aggregate:
            aggregate = aggregates.lock(connection, aggregate_id)
            precaches.ask(connection, aggregate_id, aggregate.hosts, images)
            return aggregate

        aggregate = write(self.core, ctx, request, notifications.aggregate("cache_images"), aggregate_id)
        LOG.info("Requested %d hosts of aggregate %s to cache images %s", len(aggregate.hosts), aggregate.name,
                 ", ".join(image.id for image in images))

    def _moved(self, change: Callable[[sa.Connection, int, str], Aggregate], aggregate_id: int, host: str) -> Aggregate:
        aggregate, states = self.core.db.write(lambda connection: (
            change(connection, aggregate_id, host), compute_nodes.renewed(connection, host, _MOST_NODES + 1)))
        LOG.info("Aggregate %s now has hosts %s", aggregate.name, aggregate.hosts)
        if len(states) > _MOST_NODES:
            self.core.fleet.reload()
        else:
            self.core.fleet.states(states)
        return aggregate

    def _changed(self, aggregate: Aggregate) -> Aggregate:
        LOG.info("Aggregate %s now has hosts %s and metadata %s", aggregate.name, aggregate.hosts, aggregate.metadata)
        self.core.fleet.reload()
        return aggregate


class Zones(Endpoint, hosts_api.Zones):
    def index(self, ctx: RequestContext) -> dict[str, bool]:
        available: dict[str, bool] = {}
        for service in self.core.db.read(lambda connection: services.index(connection, binary=services.COMPUTE)):
            zone = service.availability_zone or ""
            available[zone] = available.get(zone, False) or not service.disabled
        return available

    def detail(self, ctx: RequestContext) -> dict[str, list[Service]]:
        services_of_zone: dict[str, list[Service]] = {}
        for service in self.core.db.read(services.index):
            services_of_zone.setdefault(service.availability_zone or "", []).append(service)
        return services_of_zone


class Overviews(Endpoint, hosts_api.Overviews):
    get = reads(overview.get)
