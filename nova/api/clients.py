"""RPC clients of the API for the other services: one proxy per interface and process."""

import threading
import time
from collections.abc import Callable
from typing import Any, get_type_hints

from nova import bus
from nova.api.orphaned_creates import OrphanedCreates
from nova.rpcapi import networks as embedded
from nova.rpcapi.accounts import Certificates, Flavors, Keypairs, Quotas, Usages
from nova.rpcapi.compute import Compute
from nova.rpcapi.hosts import Aggregates, Hypervisors, Overviews, Services, Zones
from nova.rpcapi.placement import Placement
from nova.rpcapi.servers import Actions, Consoles, ExternalEvents, Migrations, ServerGroups, Servers
from nova.rpcapi.volumes import Volumes, VolumeSnapshots


class Clients:
    """Proxies of the declared interfaces: ``clients.servers.get(ctx, ...)``. A proxy connects at its first use."""

    servers: Servers
    actions: Actions
    migrations: Migrations
    server_groups: ServerGroups
    external_events: ExternalEvents
    consoles: Consoles
    flavors: Flavors
    keypairs: Keypairs
    certificates: Certificates
    quotas: Quotas
    usages: Usages
    services: Services
    hypervisors: Hypervisors
    aggregates: Aggregates
    zones: Zones
    overviews: Overviews
    networks: embedded.Networks
    fixed_ips: embedded.FixedIps
    floating_ips: embedded.FloatingIps
    floating_ip_dns: embedded.FloatingIpDns
    security_groups: embedded.SecurityGroups
    security_group_default_rules: embedded.SecurityGroupDefaultRules
    volumes: Volumes
    volume_snapshots: VolumeSnapshots
    compute: Compute
    placement: Placement

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
        """Return the result of ``ask``, cached in this process under ``name`` for ``seconds``."""
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
        setattr(self, name, proxy)  # __getattr__ then runs only once per interface.
        return proxy


# The interface of each attribute of Clients.
INTERFACES: dict[str, type[bus.Interface]] = get_type_hints(Clients)
