"""Weighers: rank the nodes that passed the filters.

The weight of a node is the sum over all weighers of multiplier * normalised score. A plugin derives from
:class:`Weigher` (a column of scores) or from :class:`HostWeigher` (one node at a time)."""

from nova.scheduler.plugin import Scope
from nova.scheduler.weighers.base import HostWeigher, Weigher

__all__ = ["HostWeigher", "Scope", "Weigher"]
