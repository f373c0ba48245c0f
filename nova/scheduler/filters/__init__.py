"""Filters: select the nodes that a request may use.

A plugin derives from :class:`Filter` (one mask for all nodes: fast) or from :class:`HostFilter` (one node at a time:
simple)."""

from nova.scheduler.filters.base import Filter, HostFilter
from nova.scheduler.plugin import Scope

__all__ = ["Filter", "HostFilter", "Scope"]
