"""What is asked of the scheduler, what it answers, and how it learns of the fleet."""

from __future__ import annotations

from typing import Any

from nova.objects.base import Object
from nova.objects.compute import Inventory
from nova.objects.flavor import Flavor
from nova.objects.image import Image


class GroupSpec(Object, kw_only=True):
    """The server group of a request: where its members are now (host -> how many)."""

    uuid: str
    policy: str
    max_server_per_host: int = 1
    hosts: dict[str, int] = {}


class RequestSpec(Object, kw_only=True):
    """Find hosts for ``instance_uuids`` (one flavor, one image, in this order).

    ``force_host``/``force_node`` skip all filters; ``requested_host``/``requested_node`` only
    narrow the fleet. ``ignore_hosts`` are never chosen. ``hint_hosts`` maps the server uuids
    named by same_host/different_host hints to their hosts (unknown uuids are absent).
    ``alternates`` is how many further hosts to name per instance.
    """

    instance_uuids: list[str]
    project_id: str
    user_id: str = ""
    flavor: Flavor
    image: Image | None = None
    resources: dict[str, int] = {}
    required_traits: list[str] = []
    forbidden_traits: list[str] = []
    availability_zone: str | None = None
    hints: dict[str, Any] = {}
    hint_hosts: dict[str, str] = {}
    group: GroupSpec | None = None
    force_host: str | None = None
    force_node: str | None = None
    requested_host: str | None = None
    requested_node: str | None = None
    ignore_hosts: list[str] = []
    alternates: int = 2


class Selection(Object, kw_only=True):
    """A host that fits: claim on ``node_uuid`` (the root provider)."""

    node_uuid: str
    host: str
    node: str
    availability_zone: str | None = None


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


class NodeUsage(Object, kw_only=True):
    """The usage of a node after a claim or a release: absolute numbers, ordered by ``generation``."""

    node_uuid: str
    used: dict[str, int] = {}
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
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
    removed: list[str] = []
    reload: bool = False


class FleetPage(Object, kw_only=True):
    """A page of the fleet in node_uuid order; ``marker`` continues it, None ends it.

    ``seqs`` are the conductors' delta counters known to the conductor that answered.
    """

    states: list[HostState]
    marker: str | None = None
