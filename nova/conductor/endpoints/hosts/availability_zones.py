"""Availability zones, derived from the services in them."""

from __future__ import annotations

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db.hosts import services
from nova.objects.hosts.service import Service


class Zones:
    """Implements :class:`nova.rpcapi.hosts.Zones`."""

    def __init__(self, core: Core) -> None:
        self.core = core

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
