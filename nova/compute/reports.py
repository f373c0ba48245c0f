"""Reports of a host to the conductor: its nodes, page by page, and the volume usage of its guests."""

import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from nova import context, exception
from nova.compute.host import Machine
from nova.compute.monitors.base import Monitors
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers import states
from nova.objects.servers.guest import Eviction, ExpectedGuest
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeCounters
from nova.rpcapi.by_hosts import Guests
from nova.virt.driver import Driver

LOG = logging.getLogger(__name__)

T = TypeVar("T", ExpectedGuest, Eviction, Instance)
# A query for a page of a host's guests, sorted by uuid. Arguments: context, host, page size, uuid before the page.
Query = Callable[[context.RequestContext, str, int, str | None], list[T]]

# Maximum number of nodes per message and per transaction of the conductor.
_PAGE = 250
# Maximum number of servers whose volumes are requested in one message.
_SERVERS = 200
# Interval in seconds after which unchanged nodes are reported again, in case another process changed their rows.
_FULL_REPORT = 600.0

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class NodeReports:
    """The node reports of one host."""

    def __init__(self, host: str, driver: Driver, guests: Guests, monitors: Monitors | None = None) -> None:
        self._host, self._driver, self._guests = host, driver, guests
        self._monitors = monitors or Monitors({})
        # Serializes requests, so that the response to the newest request is stored last.
        self._assigning = threading.Lock()
        self._assigned: frozenset[str] = frozenset()
        self._reported: list[bytes] = []
        self._full_report_at = 0.0

    def assign(self) -> bool:
        """Request the nodes that this host manages, if it shares nodes. Return True if nodes were added."""
        with self._assigning:
            visible = self._driver.shared_nodes()
            if visible is None:
                return False
            before, self._assigned = self._assigned, frozenset(
                self._guests.share_nodes(context.admin(), self._host, visible))
            self._driver.manage(self._assigned)
            return not self._assigned <= before

    def report(self, full: bool = False) -> bool:
        """Report the current nodes. ``full``: report unchanged nodes, too. Return True if the host has nodes that it
        took over from another one."""
        gained = self.assign()
        now = time.monotonic()
        if full or now - self._full_report_at > _FULL_REPORT:
            self._reported, self._full_report_at = [], now
        previous, self._reported = self._reported, []
        for page, before in itertools.zip_longest(self._pages(), previous):
            if page is None:
                break
            after, upto, nodes = page
            digest = hashlib.blake2b(_encode((after, upto, nodes)), digest_size=16).digest()
            if digest != before:
                self._guests.report_nodes(context.admin(), self._host, nodes, after, upto)
            self._reported.append(digest)
        return gained

    def _pages(self) -> Iterator[tuple[str, str | None, list[ComputeNode]]]:
        """Yield pages (after, upto, nodes): all nodes with ``after`` < uuid <= ``upto`` (None: no upper limit)."""
        nodes, measured = self._driver.nodes(), self._monitors.measure()
        if measured is not None:  # the metrics of the host, which all nodes share
            nodes = [msgspec.structs.replace(node, metrics=measured) for node in nodes]
        if len(nodes) <= _PAGE:
            yield "", None, nodes
            return
        nodes = sorted(nodes, key=lambda node: node.uuid)
        after = ""
        for start in range(0, len(nodes), _PAGE):
            page = nodes[start:start + _PAGE]
            yield after, page[-1].uuid if start + _PAGE < len(nodes) else None, page
            after = page[-1].uuid


def pages(query: Query[T], ctx: context.RequestContext, host: str, size: int) -> Iterator[list[T]]:
    """Yield the pages of a query for the guests of a host. The last page may be empty."""
    page = query(ctx, host, size, None)
    while len(page) >= size:
        yield page
        page = query(ctx, host, size, page[-1].uuid)
    yield page


class VolumeUsage:
    """The volume usage reports of one host."""

    def __init__(self, machine: Machine, guests: Guests) -> None:
        self._machine, self._guests = machine, guests

    def report(self) -> None:
        """Report the counters of all volumes of running guests."""
        ctx, host = context.admin(), self._machine.name
        for page in pages(self._guests.on_host, ctx, host, _SERVERS):
            counters = [usage for instance in page if instance.host == host for usage in self._of(instance)]
            if counters:
                self._guests.volumes_used(ctx, host, counters)

    def _of(self, instance: Instance) -> Iterator[VolumeCounters]:
        if not instance.volumes or instance.power_state not in (states.RUNNING, states.POWER_PAUSED):
            return
        try:
            counted = self._machine.driver.guests.diagnostics(instance).flat
        except exception.NovaException as error:
            LOG.info("[instance: %s] Cannot read the I/O counters of the volumes, not reporting their usage: %s",
                     instance.uuid, error)
            return
        for device in instance.volumes:
            name = (device.device_name or "").removeprefix("/dev/")
            if device.volume_id and f"{name}_read" in counted:
                yield VolumeCounters(instance_uuid=instance.uuid, volume_id=device.volume_id,
                                     reads=counted[f"{name}_read_req"], read_bytes=counted[f"{name}_read"],
                                     writes=counted[f"{name}_write_req"], write_bytes=counted[f"{name}_write"])
