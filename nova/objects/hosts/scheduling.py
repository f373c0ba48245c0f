"""Scheduler requests and results, and the state of the fleet that schedulers receive."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from nova.objects.accounts.flavor import Flavor
from nova.objects.base import Object
from nova.objects.dedicated_resources.fitting import DedicatedRequest, NodeDedicatedResources
from nova.objects.dedicated_resources.numa import GuestTopology
from nova.objects.dedicated_resources.pci import PciRequest
from nova.objects.hosts.node import Inventory, Provider
from nova.objects.images.image import Image

AFFINITY, ANTI_AFFINITY = "affinity", "anti-affinity"
SOFT_AFFINITY, SOFT_ANTI_AFFINITY = "soft-affinity", "soft-anti-affinity"
SAME_HOST, DIFFERENT_HOST = "same_host", "different_host"  # hints that name other servers


class GroupSpec(Object, kw_only=True):
    """The server group of a request. ``hosts``: host -> number of other members at the time of the request. ``stale``:
    a claim detected newer members, so another host may serve a soft policy better. ``selections``: number of repeated
    scheduler requests for that reason."""

    uuid: str
    policy: str
    max_server_per_host: int = 1
    hosts: dict[str, int] = {}
    stale: bool = False
    selections: int = 0


class RequestGroup(Object, kw_only=True):
    """Resources that must come from one provider of a host's tree."""

    resources: dict[str, int] = {}
    required: list[str] = []
    forbidden: list[str] = []


class RequestSpec(Object, kw_only=True):
    """A request for hosts for ``instance_uuids`` (same flavor and image, in this order).

    ``force_host`` and ``force_node`` skip all filters; ``requested_host`` and ``requested_node`` only restrict the
    candidates. ``ignore_hosts`` and ``ignore_nodes`` are never chosen. ``hint_hosts``: hosts of the servers named in
    same_host and different_host hints (servers of other projects are absent). ``in_place``: the server stays on
    ``requested_host`` with its claim; only check that the host supports its new image. ``alternates``: number of
    further hosts per instance. ``resources`` may come from any providers of a host's tree; the resources of each of
    ``groups`` from one provider (``group_policy`` isolate: a distinct provider per group)."""

    instance_uuids: list[str]
    project_id: str
    user_id: str = ""
    flavor: Flavor
    image: Image | None = None
    resources: dict[str, int] = {}
    required_traits: list[str] = []
    forbidden_traits: list[str] = []
    groups: list[RequestGroup] = []
    group_policy: str = "none"
    numa_topology: GuestTopology | None = None
    pci_requests: list[PciRequest] = []
    availability_zone: str | None = None
    hints: dict[str, Any] = {}
    hint_hosts: dict[str, str] = {}
    group: GroupSpec | None = None
    # Image property -> host -> number of its servers whose images have the same value; for properties that are weighed.
    image_hosts: dict[str, dict[str, int]] = {}
    force_host: str | None = None
    force_node: str | None = None
    requested_host: str | None = None
    requested_node: str | None = None
    ignore_hosts: list[str] = []
    ignore_nodes: list[str] = []
    alternates: int = 2
    in_place: bool = False
    release: int = 0  # minimum service version of the host's nova-compute; 0: any

    def rule_out(self, chosen: Selection) -> None:
        """Exclude the node from further selections, and its host, too, if a scheduler of an older release ignored the
        exclusion."""
        if chosen.node in self.ignore_nodes:
            self.ignore_hosts = [*self.ignore_hosts, chosen.host]
        self.ignore_nodes = [*self.ignore_nodes, chosen.node]

    def hint(self, name: str) -> list[str]:
        """Return the values of a hint that is a string or a list of strings."""
        value = self.hints.get(name) or []
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    @property
    def forced(self) -> bool:
        """Return True if the request names a host that skips the filters."""
        return bool(self.force_host or self.force_node)

    @property
    def dedicated_request(self) -> DedicatedRequest:
        return DedicatedRequest(self.numa_topology, self.pci_requests)


class Selection(Object, kw_only=True):
    """A selected host with its node ``node_uuid``, which is the root of a provider tree.

    ``allocations``: provider uuid -> amounts to claim by resource class; {}: everything from the root. ``tree``: the
    claim chooses the provider of each resource. ``aggregates``: digest of the aggregate metadata used for the
    selection; "": not used. ``max_instances`` and ``max_io_ops``: limits of the node that filters enforced; 0: none.
    ``hints``: names of the enforced hints that refer to other servers (same_host, different_host)."""

    node_uuid: str
    host: str
    node: str
    availability_zone: str | None = None
    allocations: dict[str, dict[str, int]] = {}
    tree: bool = False
    aggregates: str = ""
    max_instances: int = 0
    max_io_ops: int = 0
    hints: list[str] = []


def metadata_digest(aggregates: Sequence[dict[str, str]]) -> str:
    """Return a digest of the metadata of a host's aggregates, independent of their order."""
    encoded = sorted(msgspec.json.encode(metadata, order="deterministic") for metadata in aggregates)
    return hashlib.blake2b(b"\n".join(encoded), digest_size=8).hexdigest()


class Verdict(Object, kw_only=True):
    """The result for one node: the first filter that rejected it (None: it passed)."""

    host: str
    node: str
    refused_by: str | None = None
    reason: str = ""
    weight: float | None = None


class HostState(Object, kw_only=True):
    """The state of a compute node for filters and weighers. ``aggregates``: metadata of the host's aggregates. The
    state with the greater ``generation`` is newer."""

    node_uuid: str
    host: str
    node: str
    up: bool = True
    disabled: bool = False
    inventories: dict[str, Inventory] = {}
    traits: list[str] = []
    availability_zone: str | None = None
    aggregates: list[dict[str, str]] = []
    aggregate_ids: list[int] = []
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    hypervisor_type: str = ""
    hypervisor_version: int = 0
    host_ip: str = ""
    cpu_info: dict[str, Any] = {}
    supported_instances: list[tuple[str, str, str]] = []
    metrics: dict[str, float] = {}
    generation: int = 0
    service_generation: int = 0  # version of ``up`` and ``disabled``
    # None: the node has no dedicated resources.
    dedicated_resources: NodeDedicatedResources | None = msgspec.field(default=None, name="parts")
    children: list[Provider] = []  # the providers below the root provider


class NodeUsage(Object, kw_only=True):
    """The usage of a node after a claim or release: absolute numbers. The greater ``generation`` is newer."""

    node_uuid: str
    used: dict[str, int] = {}
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    generation: int = 0
    # None: no dedicated resource of the node was ever claimed.
    dedicated_resources: NodeDedicatedResources | None = msgspec.field(default=None, name="parts")
    children: dict[str, dict[str, int]] = {}  # provider uuid -> usage of providers below the root, if they have claims


class ServiceFlags(Object, kw_only=True):
    """State of a host's compute service for schedulers. The state with the greater ``generation`` is newer (0: not
    supported by the conductor)."""

    up: bool
    disabled: bool
    generation: int = 0


class FleetDelta(Object, kw_only=True):
    """The changes made by one conductor process. ``seq`` numbers its deltas; a gap means that a delta was lost.
    ``states``: new or changed nodes. ``services``: host -> (up, disabled). ``removed``: node uuids. ``reload``: read
    the complete fleet again (aggregates changed)."""

    source: str
    seq: int
    usage: list[NodeUsage] = []
    states: list[HostState] = []
    services: dict[str, tuple[bool, bool]] = {}
    # Versions of the entries of ``services``, comparable among all conductors.
    service_generations: dict[str, int] = {}
    removed: list[str] = []
    reload: bool = False


class FleetPage(Object, kw_only=True):
    """A page of the fleet in order of node_uuid. ``marker``: start of the next page; None: last page."""

    states: list[HostState]
    marker: str | None = None
