"""Telling the conductor what nodes a host has: page by page, and only pages that changed."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator

import msgspec

from nova import context
from nova.compute.monitors.chosen import Monitors
from nova.objects.node import ComputeNode
from nova.rpcapi.guests import Guests
from nova.virt.driver import Driver

# Nodes of one message (and of one transaction of the conductor).
_PAGE = 250
# Seconds after which everything is told again: whatever happened to the rows, they are right once more.
_ANEW = 600.0

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class NodeReports:
    """The inventory reports of one host."""

    def __init__(self, host: str, driver: Driver, guests: Guests, monitors: Monitors | None = None) -> None:
        self._host = host
        self._driver = driver
        self._guests = guests
        self._monitors = monitors or Monitors({})
        self._told: list[bytes] = []
        self._told_at = 0.0

    def report(self, anew: bool = False) -> None:
        """Tell the nodes as they are now; ``anew``: even those that the conductor has heard of."""
        now = time.monotonic()
        if anew or now - self._told_at > _ANEW:
            self._told, self._told_at = [], now
        heard, self._told = self._told, []
        for page, before in itertools.zip_longest(self._pages(), heard):
            if page is None:
                break
            after, upto, nodes = page
            digest = hashlib.blake2b(_encode((after, upto, nodes)), digest_size=16).digest()
            if digest != before:
                self._guests.report_nodes(context.admin(), self._host, nodes, after, upto)
            self._told.append(digest)

    def _pages(self) -> Iterator[tuple[str, str | None, list[ComputeNode]]]:
        """Each page is all that the host has after ``after`` and up to ``upto``, by uuid."""
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
        """With what was measured of the host, which all of them share."""
        nodes, measured = self._driver.nodes(), self._monitors.measure()
        if measured is None:
            return nodes
        return [msgspec.structs.replace(node, metrics=measured) for node in nodes]
