"""Hosts and their resources: services, compute nodes, providers, inventories, allocations, aggregates."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object

VCPU = "VCPU"
MEMORY_MB = "MEMORY_MB"
DISK_GB = "DISK_GB"


class Service(Object, kw_only=True):
    """A running Nova process as os-services shows it; ``up`` is decided by the conductor's clock."""

    id: int = 0
    uuid: str
    host: str
    binary: str
    topic: str = ""
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    up: bool = False
    last_seen_up: datetime.datetime | None = None
    version: int = 0
    availability_zone: str | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    # Of each worker process, as the last heartbeat told it; None: it does not tell.
    load: list[Load] | None = None


class Load(Object, kw_only=True):
    """What one worker process of a service did since its last heartbeat, and does now."""

    worker: int = 0
    pid: int = 0
    at: datetime.datetime | None = None
    # Requests, messages and steps ended.
    per_second: float = 0.0
    # Under way, and waiting for a thread.
    busy: int = 0
    waiting: int = 0
    # Of one CPU.
    cpu_percent: float = 0.0
    rss_mb: int = 0


class Inventory(Object, kw_only=True):
    """A resource class of a provider. Room for a claim: (total - reserved) * ratio - used."""

    total: int
    reserved: int = 0
    ratio: float = 1.0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    used: int = 0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.ratio)


class Provider(Object, kw_only=True):
    """One node of a host's tree of resource providers."""

    uuid: str
    name: str
    parent_uuid: str | None = None
    inventories: dict[str, Inventory] = {}
    traits: list[str] = []


class ComputeNode(Object, kw_only=True):
    """A hypervisor node as its driver reports it and as the API shows it.

    The root provider has the node's uuid. ``disk_available_least`` and sizes in GiB, memory in MiB.
    ``provider`` is the root; ``children`` its sub-providers (GPUs, ...).
    """

    id: int = 0
    uuid: str = ""
    host: str
    hypervisor_hostname: str
    hypervisor_type: str
    hypervisor_version: int
    host_ip: str = ""
    cpu_info: dict[str, Any] = {}
    # (architecture, hypervisor type, vm mode) triples
    supported_instances: list[tuple[str, str, str]] = []
    disk_available_least: int | None = None
    uptime: str | None = None
    provider: Provider
    children: list[Provider] = []
    # Kept by the conductor, not reported:
    service_id: int = 0
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    generation: int = 0
    service: Service | None = None

    def inventory(self, resource_class: str) -> Inventory:
        return self.provider.inventories.get(resource_class, Inventory(total=0))


class Allocation(Object, kw_only=True):
    """What one consumer (an instance, or a migration holding a second claim) has of one provider."""

    consumer_uuid: str
    provider_uuid: str
    resources: dict[str, int]
    project_id: str = ""
    user_id: str = ""


class Aggregate(Object, kw_only=True):
    id: int = 0
    uuid: str
    name: str
    hosts: list[str] = []
    metadata: dict[str, str] = {}
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None


class ServerGroup(Object, kw_only=True):
    id: int = 0
    uuid: str
    name: str
    project_id: str
    user_id: str
    policy: str
    rules: dict[str, Any] = {}
    members: list[str] = []
    created_at: datetime.datetime | None = None


class Quotas(Object, kw_only=True):
    """The limits of a project (or of one user in it) by resource, and what is in use of them."""

    limits: dict[str, int]
    in_use: dict[str, int] = {}


class GuestStatus(Object, kw_only=True):
    """One guest as the hypervisor of a host sees it (power sync, audit).

    ``late``: an order that nobody waited for any more may have made it so.
    """

    uuid: str
    power_state: int
    late: bool = False


class ExpectedGuest(Object, kw_only=True):
    """What the rows say of a guest; ``settled``: it was started once, and no operation is under way."""

    uuid: str
    power_state: int
    settled: bool


class Diagnostics(Object, kw_only=True):
    """Standardised diagnostics of a guest, 2.48; unknown values are null."""

    values: dict[str, Any] = {}
