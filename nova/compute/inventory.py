"""Reports of a host's nodes to the conductor, page by page; unchanged pages are not sent."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator

import msgspec

from nova import context
from nova.compute.monitors.base import Monitors
from nova.objects.hosts.node import ComputeNode
from nova.rpcapi.by_hosts import Guests
from nova.virt.driver import Driver

# Maximum number of nodes per message and per transaction of the conductor.
_PAGE = 250
# Interval in seconds after which all nodes are reported again, in case that rows were changed otherwise.
_FULL_REPORT = 600.0

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class NodeReports:
    """The node reports of one host."""

    def __init__(self, host: str, driver: Driver, guests: Guests, monitors: Monitors | None = None) -> None:
        self._host = host
        self._driver = driver
        self._guests = guests
        self._monitors = monitors or Monitors({})
        self._reported: list[bytes] = []
        self._full_report_at = 0.0

    def report(self, full: bool = False) -> None:
        """Report the current nodes. ``full``: report unchanged nodes, too."""
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

    def _pages(self) -> Iterator[tuple[str, str | None, list[ComputeNode]]]:
        """Yield pages. Each page has all nodes with uuids after ``after`` and up to ``upto``."""
        nodes = self._nodes()
        if len(nodes) <= _PAGE:
            yield "", None, nodes
            return
        nodes = sorted(nodes, key=lambda node: node.uuid)
        after = ""
        for start in range(0, len(nodes), _PAGE):
            page = nodes[start:start + _PAGE]
            upto = page[-1].uuid if start + _PAGE < len(nodes) else None
            yield after, upto, page
            after = page[-1].uuid

    def _nodes(self) -> list[ComputeNode]:
        """Return the driver's nodes with the metrics of the host, which all nodes share."""
        nodes, measured = self._driver.nodes(), self._monitors.measure()
        if measured is None:
            return nodes
        return [msgspec.structs.replace(node, metrics=measured) for node in nodes]
