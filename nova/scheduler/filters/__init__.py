"""Filters: which nodes a request may go to.

A plugin derives from :class:`Filter` (a mask over all nodes at once: fast) or from
:class:`HostFilter` (one node at a time: simple).
"""

from nova.scheduler.filters.base import Filter, HostFilter
from nova.scheduler.plugin import Scope

__all__ = ["Filter", "HostFilter", "Scope"]
