"""Clients of the other services for the API: a proxy per interface and process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nova import bus
from nova.api.orphaned_creates import OrphanedCreates
from nova.rpcapi.accounts.flavors import Flavors
from nova.rpcapi.accounts.keypairs import Keypairs
from nova.rpcapi.accounts.quotas import Quotas
from nova.rpcapi.accounts.usages import Usages
from nova.rpcapi.compute import Compute
from nova.rpcapi.hosts.aggregates import Aggregates
from nova.rpcapi.hosts.availability_zones import Zones
from nova.rpcapi.hosts.hypervisors import Hypervisors
from nova.rpcapi.hosts.overview import Overviews
from nova.rpcapi.hosts.services import Services
from nova.rpcapi.networks.fixed_ips import FixedIps
from nova.rpcapi.networks.floating_ip_dns import FloatingIpDns
from nova.rpcapi.networks.floating_ips import FloatingIps
from nova.rpcapi.networks.networks import Networks
from nova.rpcapi.networks.security_group_default_rules import SecurityGroupDefaultRules
from nova.rpcapi.networks.security_groups import SecurityGroups
from nova.rpcapi.scheduler import Scheduler
from nova.rpcapi.servers.consoles import Consoles
from nova.rpcapi.servers.external_events import ExternalEvents
from nova.rpcapi.servers.instance_actions import Actions
from nova.rpcapi.servers.migrations import Migrations
from nova.rpcapi.servers.server_groups import ServerGroups
from nova.rpcapi.servers.servers import Servers
from nova.rpcapi.volumes.volume_snapshots import VolumeSnapshots
from nova.rpcapi.volumes.volumes import Volumes

INTERFACES: dict[str, Any] = {
    "servers": Servers, "actions": Actions, "flavors": Flavors, "keypairs": Keypairs, "quotas": Quotas,
    "services": Services, "hypervisors": Hypervisors, "zones": Zones, "aggregates": Aggregates,
    "server_groups": ServerGroups, "networks": Networks, "floating_ips": FloatingIps, "security_groups": SecurityGroups,
    "scheduler": Scheduler, "compute": Compute, "volumes": Volumes,
    "migrations": Migrations, "external_events": ExternalEvents, "usages": Usages,
    "volume_snapshots": VolumeSnapshots,
    "overviews": Overviews,
    "consoles": Consoles,
    "fixed_ips": FixedIps, "floating_ip_dns": FloatingIpDns,
    "security_group_default_rules": SecurityGroupDefaultRules,
}


class Clients:
    """``clients.servers.get(ctx, ...)`` connects to the broker at the first use (after a fork)."""

    if TYPE_CHECKING:
        servers: Servers
        actions: Actions
        flavors: Flavors
        keypairs: Keypairs
        quotas: Quotas
        services: Services
        hypervisors: Hypervisors
        zones: Zones
        aggregates: Aggregates
        server_groups: ServerGroups
        networks: Networks
        floating_ips: FloatingIps
        security_groups: SecurityGroups
        scheduler: Scheduler
        compute: Compute
        volumes: Volumes
        migrations: Migrations
        external_events: ExternalEvents
        usages: Usages
        volume_snapshots: VolumeSnapshots
        overviews: Overviews
        consoles: Consoles
        fixed_ips: FixedIps
        floating_ip_dns: FloatingIpDns
        security_group_default_rules: SecurityGroupDefaultRules

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._transport: Any = None
        self._cached_values: dict[str, tuple[float, Any]] = {}
        self.orphaned_creates = OrphanedCreates(lambda: self.servers)

    def transport(self) -> Any:
        with self._lock:
            if self._transport is None:
                self._transport = self._connect()
            return self._transport

    def cached(self, name: str, seconds: float, ask: Callable[[], Any]) -> Any:
        """Return what ``ask`` returned at most ``seconds`` ago (in this process), or call it."""
        until, value = self._cached_values.get(name, (0.0, None))
        if time.monotonic() >= until:
            value = ask()
            self._cached_values[name] = (time.monotonic() + seconds, value)
        return value

    def __getattr__(self, name: str) -> Any:
        declared = INTERFACES.get(name)
        if declared is None:
            raise AttributeError(name)
        proxy = bus.client(self.transport(), declared)
        setattr(self, name, proxy)  # So that __getattr__ runs once per interface.
        return proxy
