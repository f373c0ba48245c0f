"""What is asked of the scheduler, what it answers, and how it learns of the fleet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from nova.objects.base import Object
from nova.objects.dedicated_resources.fitting import DedicatedRequest, NodeDedicatedResources
from nova.objects.dedicated_resources.numa import GuestTopology
from nova.objects.dedicated_resources.pci import PciRequest
from nova.objects.flavor import Flavor
from nova.objects.image import Image
from nova.objects.node import Inventory, Provider

AFFINITY = "affinity"
ANTI_AFFINITY = "anti-affinity"
SOFT_AFFINITY = "soft-affinity"
SOFT_ANTI_AFFINITY = "soft-anti-affinity"


class GroupSpec(Object, kw_only=True):
    """The server group of a request.

    ``hosts``: host -> number of other members, as the scheduler was told. ``stale``: a claim found that members were
    placed since, so that a soft policy may be served better by another host; ``selections``: how often a scheduler was
    asked again for that reason.
    """

    uuid: str
    policy: str
    max_server_per_host: int = 1
    hosts: dict[str, int] = {}
    stale: bool = False
    selections: int = 0


class RequestGroup(Object, kw_only=True):
    """What one provider of a host's tree has to give, all of it."""

    resources: dict[str, int] = {}
    required: list[str] = []
    forbidden: list[str] = []


class RequestSpec(Object, kw_only=True):
    """Find hosts for ``instance_uuids`` (one flavor, one image, in this order).

    ``force_host``/``force_node`` skip all filters; ``requested_host``/``requested_node`` only
    narrow the fleet. ``ignore_hosts`` and ``ignore_nodes`` are never chosen. ``hint_hosts`` maps the server uuids
    named by same_host/different_host hints to their hosts (others than of the project are absent).
    ``in_place``: the server is on ``requested_host`` and stays there with what it has claimed; all that is asked is
    whether its new image may be there.
    ``alternates`` is how many further hosts to name per instance. ``resources`` come from anywhere in a host's tree of
    providers, those of each of ``groups`` from one provider (``group_policy`` isolate: of another one each).
    """

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
    # Property of the image -> host -> its servers whose images have the same value; where that is to be weighed.
    image_hosts: dict[str, dict[str, int]] = {}
    force_host: str | None = None
    force_node: str | None = None
    requested_host: str | None = None
    requested_node: str | None = None
    ignore_hosts: list[str] = []
    ignore_nodes: list[str] = []
    alternates: int = 2
    in_place: bool = False
    # The service version that nova-compute of the host must have; 0: any.
    release: int = 0

    def rule_out(self, chosen: Selection) -> None:
        """This node is not to be chosen again; nor its host, if a scheduler of an older release did so all the same."""
        if chosen.node in self.ignore_nodes:
            self.ignore_hosts = [*self.ignore_hosts, chosen.host]
        self.ignore_nodes = [*self.ignore_nodes, chosen.node]

    @property
    def forced(self) -> bool:
        """Whether the host was named in a way that skips the filters."""
        return bool(self.force_host or self.force_node)

    @property
    def dedicated_request(self) -> DedicatedRequest:
        """What it asks of a host's cells and devices."""
        return DedicatedRequest(self.numa_topology, self.pci_requests)


class Selection(Object, kw_only=True):
    """A host that fits: its node ``node_uuid``, which is the root of a tree of providers.

    ``allocations``: provider uuid -> what to claim of it, by resource class; {}: all of it from the root.
    ``tree``: the claim finds out by itself which provider of the tree gives what.
    ``aggregates``: the digest of the metadata by which the host was chosen; "": they did not matter.
    """

    node_uuid: str
    host: str
    node: str
    availability_zone: str | None = None
    allocations: dict[str, dict[str, int]] = {}
    tree: bool = False
    aggregates: str = ""


def metadata_digest(aggregates: Sequence[dict[str, str]]) -> str:
    """Of the metadata of a host's aggregates, in whatever order they come."""
    one_by_one = sorted(msgspec.json.encode(metadata, order="deterministic") for metadata in aggregates)
    return hashlib.blake2b(b"\n".join(one_by_one), digest_size=8).hexdigest()


class Verdict(Object, kw_only=True):
    """Why one node was or was not eligible: the first filter that refused it (None: it passed)."""

    host: str
    node: str
    refused_by: str | None = None
    reason: str = ""
    weight: float | None = None


class HostState(Object, kw_only=True):
    """One row of the fleet: a compute node with all that filters and weighers look at.

    ``aggregates`` are the metadata of the aggregates the host is in; ``generation`` orders two
    states of the same node.
    """

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
    # Orders ``up`` and ``disabled``.
    service_generation: int = 0
    # None: the node has neither cells nor devices for single guests.
    dedicated_resources: NodeDedicatedResources | None = msgspec.field(default=None, name="parts")
    # The providers below the node.
    children: list[Provider] = []


class NodeUsage(Object, kw_only=True):
    """The usage of a node after a claim or a release: absolute numbers, ordered by ``generation``."""

    node_uuid: str
    used: dict[str, int] = {}
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    generation: int = 0
    # None: nobody ever had cells or devices of it for himself.
    dedicated_resources: NodeDedicatedResources | None = msgspec.field(default=None, name="parts")
    # Provider uuid -> what is used of it, of the providers below the node that somebody claims of.
    children: dict[str, dict[str, int]] = {}


class ServiceFlags(Object, kw_only=True):
    """What schedulers are told of the compute of a host; ``generation`` orders it (0: a conductor that does not)."""

    up: bool
    disabled: bool
    generation: int = 0


class FleetDelta(Object, kw_only=True):
    """What one conductor process changed. ``seq`` counts its deltas: a gap means one was lost.

    ``states`` are new or wholly changed nodes; ``services`` maps host -> (up, disabled);
    ``removed`` are node uuids; ``reload`` asks for a full refresh (aggregates changed).
    """

    source: str
    seq: int
    usage: list[NodeUsage] = []
    states: list[HostState] = []
    services: dict[str, tuple[bool, bool]] = {}
    # The order of what is said of ``services``, among all conductors.
    service_generations: dict[str, int] = {}
    removed: list[str] = []
    reload: bool = False


class FleetPage(Object, kw_only=True):
    """A page of the fleet in node_uuid order; ``marker`` continues it, None ends it."""

    states: list[HostState]
    marker: str | None = None
